#pragma once
// Checkpoints taken apart, changed and put together again, for tests of what a damaged one is met with.
#include <cstddef>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"

namespace tetrad::test {

// A directory of its own under the system's temporary one, removed at the end.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

std::string read_bytes(const std::filesystem::path& path);
void write_bytes(const std::filesystem::path& path, std::string_view bytes);

// The bytes of a safetensors file with this header text, whatever it says, and this data.
std::string safetensors_bytes(std::string_view header, std::string_view data);

struct EditTensor {
  std::string name;
  DType dtype = DType::kBF16;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> bytes;
};

struct EditCheckpoint {
  nlohmann::json config;
  std::vector<EditTensor> tensors;  // ascending in name

  EditTensor& at(std::string_view name);  // throws std::out_of_range
  void erase(std::string_view name);
  void rename(std::string_view from, std::string_view to);
  // Writes config.json and one model.safetensors.
  void write(const std::filesystem::path& directory) const;
  // Writes config.json, files of about equal numbers of tensors, and their index.
  void write_shards(const std::filesystem::path& directory, std::size_t num_files) const;
};

EditCheckpoint read_checkpoint(const std::filesystem::path& directory);

// Every file of the directory, copied.
void copy_checkpoint(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace tetrad::test
