#pragma once
// Writes a safetensors file tensor by tensor without holding it in memory. The tensors are declared first; their bytes follow in the
// declared order, in pieces of any size. The file appears under its name only when it is complete. Symbolic links are followed to the file
// they name; what exists and is no regular file (a device, a pipe) is an InputError and stays as it is.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"

namespace tetrad {

struct TensorSpec {
  std::string name;
  DType dtype = DType::kBF16;
  std::vector<std::int64_t> shape;
};

std::uint64_t tensor_bytes(const TensorSpec& spec);  // throws InternalError for a negative length or overflow

class SafetensorsWriter {
 public:
  // Declare wide element types first: then every tensor lies aligned to its element size. Throws InputError if the file cannot be made.
  SafetensorsWriter(std::filesystem::path path, const std::vector<TensorSpec>& tensors,
                    const std::map<std::string, std::string>& metadata = {});
  ~SafetensorsWriter();  // drops the file if finish() was not reached
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  void write(std::span<const std::byte> bytes);  // InputError if the disk is full
  void finish();                                 // InternalError unless exactly the declared bytes were written

 private:
  std::filesystem::path path_, partial_path_;
  std::ofstream out_;
  std::uint64_t expected_bytes_ = 0, written_bytes_ = 0;
  bool finished_ = false;
};

}  // namespace tetrad
