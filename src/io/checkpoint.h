#pragma once
// All tensors of a checkpoint directory, as views of its mapped files.
//
// Which files belong to it:
//   - with model.safetensors.index.json: exactly the files that the index names;
//   - without: model.safetensors alone.
// Other .safetensors files are left alone (goldens and adapters may lie beside a checkpoint) unless their name begins with "model":
// such a file is a shard that the index forgot, and the directory is refused. A lone file of any other name is not guessed at.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "io/safetensors.h"

namespace tetrad {

struct CheckpointTensor {
  std::string name;
  DType dtype = DType::kBF16;
  std::vector<std::int64_t> shape;
  const std::byte* data = nullptr;  // aligned to the element size
  std::uint64_t num_bytes = 0;
  int file = 0;  // into Checkpoint::files(); -1 for a tensor made in memory
};

class Checkpoint {
 public:
  // Throws LoadError; absent shards and disagreements between index and shards are all listed in one message.
  static std::shared_ptr<const Checkpoint> open(const std::filesystem::path& directory);
  // Tensors that never were in a file; `data` need not be set. Each num_bytes is allocated and filled by `fill`; those of more than
  // `largest` bytes stay without data, for a backend that makes up random weights where it needs them.
  using Fill = std::function<void(const CheckpointTensor& tensor, std::span<std::byte> bytes)>;
  static std::shared_ptr<const Checkpoint> in_memory(std::vector<CheckpointTensor> tensors, const Fill& fill,
                                                     std::uint64_t largest = std::numeric_limits<std::uint64_t>::max());

  const std::filesystem::path& directory() const { return directory_; }
  const std::vector<SafetensorsFile>& files() const { return files_; }
  const std::vector<CheckpointTensor>& tensors() const { return tensors_; }        // ascending in name
  const CheckpointTensor* find(std::string_view name) const;                       // null if absent
  std::string file_name(const CheckpointTensor& tensor) const;                     // "model-00001-of-00003.safetensors"
  std::uint64_t total_bytes() const;                                               // of all tensors
  std::optional<std::uint64_t> declared_bytes() const { return declared_bytes_; }  // metadata.total_size of the index
  void prefetch(const CheckpointTensor& tensor) const;

 private:
  explicit Checkpoint(std::filesystem::path directory) : directory_(std::move(directory)) {}
  void add_tensors();
  void index_tensors();

  std::filesystem::path directory_;
  std::vector<SafetensorsFile> files_;
  std::vector<CheckpointTensor> tensors_;
  std::unordered_map<std::string_view, std::size_t> index_;  // keys are the names in tensors_
  std::vector<std::unique_ptr<std::byte[]>> owned_;  // tensors made in memory, and copies of those that lie misaligned in their file
  std::optional<std::uint64_t> declared_bytes_;
};

}  // namespace tetrad
