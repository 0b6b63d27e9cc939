#pragma once
// The safetensors container: an 8-byte little-endian header length, a JSON header, then the bytes of the tensors without gaps.
// Every fault of a header is refused before any tensor is looked at; the message names file and tensor, expected and got.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/dtype.h"
#include "io/mapped_file.h"

namespace tetrad {

inline constexpr std::uint64_t kMaxSafetensorsHeader = 100'000'000;  // bytes; the bound of the format's own library
inline constexpr std::size_t kMaxTensorRank = 8;

struct TensorInfo {
  std::string name;
  DType dtype = DType::kBF16;
  std::vector<std::int64_t> shape;   // empty for a scalar
  std::uint64_t begin = 0, end = 0;  // bytes from the start of the data section
};

struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;              // ascending in `begin`, together covering the data section exactly
  std::map<std::string, std::string> metadata;  // "__metadata__"
  std::uint64_t data_start = 0;                 // bytes from the start of the file
};

// Reads and checks the header of a whole file. Throws LoadError.
SafetensorsHeader parse_safetensors_header(std::span<const std::byte> file, std::string_view where);

class SafetensorsFile {
 public:
  static SafetensorsFile open(const std::filesystem::path& path);

  const std::vector<TensorInfo>& tensors() const { return header_.tensors; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  const MappedFile& file() const { return file_; }
  const TensorInfo* find(std::string_view name) const;  // null if absent
  const TensorInfo& at(std::string_view name) const;    // LoadError naming file and tensor if absent
  std::span<const std::byte> bytes(const TensorInfo& tensor) const;

 private:
  SafetensorsFile(MappedFile file, SafetensorsHeader header);

  MappedFile file_;
  SafetensorsHeader header_;
  std::unordered_map<std::string, std::size_t> index_;
};

// "[2, 3]"
std::string shape_text(std::span<const std::int64_t> shape);

}  // namespace tetrad
