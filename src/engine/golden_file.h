#pragma once
// Reads tensors of a golden safetensors file as floats or ids.
#include <filesystem>
#include <string>
#include <vector>

#include "io/safetensors.h"

namespace tetrad {

class GoldenFile {
 public:
  explicit GoldenFile(const std::filesystem::path& path) : file_(SafetensorsFile::open(path)) {}

  bool has(const std::string& name) const { return file_.find(name) != nullptr; }
  std::vector<float> floats(const std::string& name) const;           // BF16, F32
  std::vector<std::int64_t> integers(const std::string& name) const;  // I32, I64, U8
  // The same, of so many elements, else LoadError.
  std::vector<float> floats(const std::string& name, std::size_t count) const;
  std::vector<std::int64_t> integers(const std::string& name, std::size_t count) const;
  const SafetensorsFile& file() const { return file_; }

 private:
  void check_count(const std::string& name, std::size_t got, std::size_t expected) const;

  SafetensorsFile file_;
};

}  // namespace tetrad
