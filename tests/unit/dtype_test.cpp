#include "base/dtype.h"

#include <gtest/gtest.h>

namespace tetrad {
namespace {

constexpr DType kAll[] = {DType::kBF16, DType::kF16, DType::kF32, DType::kF8E4M3, DType::kU8, DType::kI32, DType::kI64};

TEST(dtype, name_and_parse_are_inverse) {
  for (const DType dtype : kAll) EXPECT_EQ(parse_dtype(dtype_name(dtype)), dtype) << dtype_name(dtype);
}

TEST(dtype, sizes_are_those_of_the_format) {
  constexpr std::size_t kBytes[] = {2, 2, 4, 1, 1, 4, 8};
  for (std::size_t i = 0; i < std::size(kAll); ++i) EXPECT_EQ(dtype_size(kAll[i]), kBytes[i]) << dtype_name(kAll[i]);
}

TEST(dtype, other_names_are_refused) {
  for (const char* name : {"", "bf16", "BF16 ", "F8_E5M2", "F64", "BOOL", "I8"}) EXPECT_EQ(parse_dtype(name), std::nullopt) << name;
}

}  // namespace
}  // namespace tetrad
