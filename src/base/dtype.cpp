#include "base/dtype.h"

#include <array>
#include <utility>

namespace tetrad {
namespace {

struct Row {
  DType dtype;
  std::string_view name;
  std::size_t size;
};
constexpr std::array<Row, 7> kRows{{{DType::kBF16, "BF16", 2},
                                    {DType::kF16, "F16", 2},
                                    {DType::kF32, "F32", 4},
                                    {DType::kF8E4M3, "F8_E4M3", 1},
                                    {DType::kU8, "U8", 1},
                                    {DType::kI32, "I32", 4},
                                    {DType::kI64, "I64", 8}}};

}  // namespace

std::size_t dtype_size(DType dtype) { return kRows[static_cast<std::size_t>(dtype)].size; }

std::string_view dtype_name(DType dtype) { return kRows[static_cast<std::size_t>(dtype)].name; }

std::optional<DType> parse_dtype(std::string_view name) {
  for (const Row& row : kRows)
    if (row.name == name) return row.dtype;
  return std::nullopt;
}

}  // namespace tetrad
