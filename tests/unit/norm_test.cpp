#include "cpu/norm.h"

#include <gtest/gtest.h>

#include <limits>

#include "support/op_rig.h"

namespace tetrad::cpu::norm_test {
namespace {

struct Shape {
  int rows, groups, group, padding;  // padding: elements between rows that belong to neither
};

// bf16 half step plus the float error of a mean of `group` squares: the bound comes from bounded_norm.
TEST(norm, agrees_with_double_over_ragged_shapes) {
  test::RandomValues random(1);
  ThreadPool pool(3);
  for (const Shape s :
       {Shape{0, 1, 8, 0}, {1, 1, 1, 0}, {1, 1, 7, 3}, {3, 1, 8, 0}, {5, 4, 9, 1}, {17, 2, 33, 5}, {2, 8, 64, 0}, {1, 3, 257, 2}}) {
    const int width = s.groups * s.group, ld = width + s.padding;
    const std::vector<float> x = random.row(s.rows * ld, 2.0), scale = random.row(width, 1.0);
    std::vector<float> out(x.size(), -7.0f);
    rms_norm({.rows = s.rows,
              .groups = s.groups,
              .group = s.group,
              .eps = 1e-6f,
              .x = x.data(),
              .ldx = ld,
              .scale = scale.data(),
              .out = out.data(),
              .ldo = ld},
             pool);
    for (int t = 0; t < s.rows; ++t) {
      const auto row = std::span(x).subspan(static_cast<std::size_t>(t * ld), static_cast<std::size_t>(width));
      const test::BoundedRow expected = test::bounded_norm(test::exactly(row), scale, 1e-6, s.groups);
      test::expect_within({out.data() + t * ld, static_cast<std::size_t>(width)}, expected, 0.1, "row " + std::to_string(t));
      for (int i = width; i < ld; ++i) EXPECT_EQ(out[static_cast<std::size_t>(t * ld + i)], -7.0f) << "written past the row";
    }
  }
}

TEST(norm, hand_numbers) {
  const std::vector<float> x{3.0f, 4.0f, 0.0f, 0.0f}, scale{1.0f, 2.0f, 1.0f, 1.0f};
  std::vector<float> out(4);
  rms_norm_row(x.data(), scale.data(), 0.0f, 1, 4, out.data());  // mean of squares 25/4, inverse root 0.4
  EXPECT_EQ(out[0], round_bf16(1.2f));
  EXPECT_EQ(out[1], round_bf16(3.2f));
  EXPECT_EQ(out[2], 0.0f);
  rms_norm_row(x.data(), scale.data(), 0.0f, 2, 2, out.data());  // groups of their own: 25/2 and 0, whose inverse root is infinite
  EXPECT_EQ(out[0], round_bf16(static_cast<float>(3.0 / std::sqrt(12.5))));
  EXPECT_TRUE(std::isnan(out[2]));                                // 0 * infinity stays visible
  rms_norm_row(x.data(), scale.data(), 1e-6f, 2, 2, out.data());  // which is what the epsilon is for
  EXPECT_EQ(out[2], 0.0f);
  EXPECT_EQ(inverse_rms(x.data(), 4, 0.0f), 0.4f);
}

TEST(norm, a_nan_stays_in_its_own_group_and_row) {
  ThreadPool pool(2);
  std::vector<float> x(24, 1.0f), out(24), scale(8, 1.0f);
  x[9] = std::numeric_limits<float>::quiet_NaN();  // row 1, group 0
  rms_norm({.rows = 3, .groups = 2, .group = 4, .eps = 1e-6f, .x = x.data(), .ldx = 8, .scale = scale.data(), .out = out.data(), .ldo = 8},
           pool);
  for (int i = 0; i < 24; ++i) EXPECT_EQ(std::isnan(out[static_cast<std::size_t>(i)]), i >= 8 && i < 12) << i;
}

TEST(norm, in_place_is_the_same) {
  test::RandomValues random(2);
  ThreadPool pool(2);
  std::vector<float> x = random.row(5 * 12, 1.0), out(x.size());
  const std::vector<float> scale = random.row(12, 1.0);
  NormArgs a{
      .rows = 5, .groups = 3, .group = 4, .eps = 1e-6f, .x = x.data(), .ldx = 12, .scale = scale.data(), .out = out.data(), .ldo = 12};
  rms_norm(a, pool);
  a.out = x.data();
  rms_norm(a, pool);
  EXPECT_EQ(x, out);
}

}  // namespace
}  // namespace tetrad::cpu::norm_test
