#pragma once
// Element types a checkpoint may hold, by their safetensors names.
#include <cstddef>
#include <optional>
#include <string_view>

namespace tetrad {

enum class DType { kBF16, kF16, kF32, kF8E4M3, kU8, kI32, kI64 };

std::size_t dtype_size(DType dtype);                      // bytes per element
std::string_view dtype_name(DType dtype);                 // "BF16", "F16", "F32", "F8_E4M3", "U8", "I32", "I64"
std::optional<DType> parse_dtype(std::string_view name);  // the inverse; nullopt for any other name

}  // namespace tetrad
