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
  std::vector<std::int64_t> shape(const std::string& name) const { return file_.at(name).shape; }
  const SafetensorsFile& file() const { return file_; }

 private:
  SafetensorsFile file_;
};

}  // namespace tetrad
