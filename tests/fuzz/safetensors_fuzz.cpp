// Any bytes are either refused with a LoadError or give tensors that lie inside the file and do not overlap.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "base/error.h"
#include "io/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> file(reinterpret_cast<const std::byte*>(data), size);
  try {
    const auto header = tetrad::parse_safetensors_header(file, "fuzz");
    std::uint64_t covered = 0;
    for (const auto& tensor : header.tensors) {
      if (tensor.begin != covered || tensor.end < tensor.begin) std::abort();
      covered = tensor.end;
    }
    if (header.data_start + covered != size) std::abort();
  } catch (const tetrad::LoadError&) {
  }
  return 0;
}
