#include "base/dtype.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/fp8.h"

namespace tetrad::dtype_test {
namespace {

TEST(dtype, names_and_sizes) {
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32, DType::kF8E4M3, DType::kU8, DType::kI32, DType::kI64})
    EXPECT_EQ(parse_dtype(dtype_name(dtype)), dtype);
  EXPECT_EQ(dtype_size(DType::kF8E4M3), 1u);
  EXPECT_EQ(dtype_size(DType::kI64), 8u);
  EXPECT_FALSE(parse_dtype("F8_E5M2"));
  EXPECT_FALSE(parse_dtype(""));
}

TEST(fp8, known_values) {
  EXPECT_EQ(e4m3_to_float(0x00), 0.0f);
  EXPECT_TRUE(std::signbit(e4m3_to_float(0x80)));
  EXPECT_EQ(e4m3_to_float(0x01), 0x1p-9f);  // least subnormal
  EXPECT_EQ(e4m3_to_float(0x08), 0x1p-6f);  // least normal
  EXPECT_EQ(e4m3_to_float(0x38), 1.0f);
  EXPECT_EQ(e4m3_to_float(0xb9), -1.125f);
  EXPECT_EQ(e4m3_to_float(0x7e), 448.0f);
  EXPECT_TRUE(std::isnan(e4m3_to_float(0x7f)));
  EXPECT_TRUE(std::isnan(e4m3_to_float(0xff)));
}

TEST(fp8, every_code_comes_back) {
  for (int code = 0; code < 256; ++code) {
    if ((code & 0x7f) == 0x7f) continue;
    EXPECT_EQ(to_e4m3(e4m3_to_float(static_cast<std::uint8_t>(code))), code);
  }
}

TEST(fp8, rounds_to_nearest_even_and_saturates) {
  for (int code = 0; code < 0x7e; ++code) {
    const float low = e4m3_to_float(static_cast<std::uint8_t>(code)), high = e4m3_to_float(static_cast<std::uint8_t>(code + 1));
    const float middle = (low + high) / 2;  // exact
    EXPECT_EQ(to_e4m3(std::nextafter(middle, low)), code);
    EXPECT_EQ(to_e4m3(std::nextafter(middle, high)), code + 1);
    EXPECT_EQ(to_e4m3(middle), code % 2 == 0 ? code : code + 1) << code;
    EXPECT_EQ(to_e4m3(-middle), 0x80 | (code % 2 == 0 ? code : code + 1)) << code;
  }
  EXPECT_EQ(to_e4m3(1e9f), 0x7e);
  EXPECT_EQ(to_e4m3(-INFINITY), 0xfe);
  EXPECT_EQ(to_e4m3(NAN) & 0x7f, 0x7f);
}

}  // namespace
}  // namespace tetrad::dtype_test
