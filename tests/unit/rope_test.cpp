#include "cpu/rope.h"

#include <gtest/gtest.h>

#include "support/op_rig.h"

namespace tetrad::cpu::rope_test {
namespace {

using test::Bounded;

RopeConfig plain(int rotary_dim, double theta = 1e7) {
  RopeConfig rope;
  rope.rotary_dim = rotary_dim;
  rope.theta = theta;
  return rope;
}

// The frequency and the angle are float32 (pow within a unit or two in the last place), cosine and sine move no faster than the angle,
// and the result is rounded to bf16.
TEST(rope, angles_agree_with_double) {
  for (const int dim : {2, 4, 6, 64}) {
    const RopeTable table(plain(dim));
    ASSERT_EQ(table.rotary_dim(), dim);
    std::vector<float> cos(static_cast<std::size_t>(dim / 2)), sin(cos.size());
    for (const int position : {0, 1, 2, 3, 100, 4095, 262143}) {
      table.angles(position, cos.data(), sin.data());
      for (int i = 0; i < dim / 2; ++i) {
        const double angle = position * std::pow(1e7, -2.0 * i / dim);
        // The exponent 2i/DR carries half a step, which ln(theta) = 16 magnifies; pow, division and product add a few more.
        const double angle_error = angle * 24 * test::kFloatHalfStep;
        const double tolerance = angle_error + test::kBf16HalfStep;
        EXPECT_NEAR(cos[static_cast<std::size_t>(i)], std::cos(angle), tolerance) << dim << " " << position << " " << i;
        EXPECT_NEAR(sin[static_cast<std::size_t>(i)], std::sin(angle), tolerance) << dim << " " << position << " " << i;
      }
    }
  }
}

TEST(rope, position_zero_is_the_identity) {
  const RopeTable table(plain(8));
  float cos[4], sin[4];
  table.angles(0, cos, sin);
  test::RandomValues random(1);
  std::vector<float> x = random.row(11, 3.0);
  const std::vector<float> before = x;
  RopeTable::rotate(x.data(), cos, sin, 8);
  EXPECT_EQ(x, before);
}

TEST(rope, pairs_i_with_half_plus_i_and_leaves_the_rest) {
  // A quarter turn by hand: out[i] = -x[i+h], out[i+h] = x[i].
  std::vector<float> x{1, 2, 3, 4, 5, 6, 7};
  const float cos[3] = {0, 0, 0}, sin[3] = {1, 1, 1};
  RopeTable::rotate(x.data(), cos, sin, 6);
  EXPECT_EQ(x, (std::vector<float>{-4, -5, -6, 1, 2, 3, 7}));
  std::vector<float> none{1, 2};
  RopeTable::rotate(none.data(), cos, sin, 0);
  EXPECT_EQ(none, (std::vector<float>{1, 2}));
}

TEST(rope, rounds_products_before_it_adds_them) {
  // 1.0078125 * 0.99609375 = 1.00387..., which rounds to 1: 1 + 256 is a tie that goes to 256, where 257.00387 would go to 258.
  float x[] = {1.0078125f, -256.0f};
  const float cos[] = {0.99609375f}, sin[] = {1.0f};
  RopeTable::rotate(x, cos, sin, 2);
  EXPECT_EQ(x[0], 256.0f);
}

TEST(rope, rotation_agrees_with_double) {
  test::RandomValues random(2);
  for (const int dim : {2, 6, 64}) {
    const RopeTable table(plain(dim, 1e4));
    std::vector<float> cos(static_cast<std::size_t>(dim / 2)), sin(cos.size());
    for (const int position : {1, 7, 1000}) {
      table.angles(position, cos.data(), sin.data());
      std::vector<float> x = random.row(dim + 3, 1.0);
      const std::vector<float> before = x;
      RopeTable::rotate(x.data(), cos.data(), sin.data(), dim);
      test::BoundedRow expected = test::exactly(before);
      const auto at = [&](int i) { return Bounded(before[static_cast<std::size_t>(i)]); };
      for (int i = 0; i < dim / 2; ++i) {
        const Bounded c(cos[static_cast<std::size_t>(i)]), s(sin[static_cast<std::size_t>(i)]);
        expected[static_cast<std::size_t>(i)] = bf(bf(at(i) * c) - bf(at(i + dim / 2) * s));
        expected[static_cast<std::size_t>(i + dim / 2)] = bf(bf(at(i + dim / 2) * c) + bf(at(i) * s));
      }
      test::expect_within(x, expected, 0.1, "dim " + std::to_string(dim));
    }
  }
}

TEST(rope, yarn_keeps_fast_frequencies_divides_slow_ones_and_scales) {
  RopeConfig rope = plain(64);
  rope.type = RopeType::kYarn;
  rope.yarn_factor = 4.0;
  rope.yarn_original_positions = 262144;
  const RopeTable table(rope);
  float cos[32], sin[32];
  table.angles(1, cos, sin);
  const double scale = 0.1 * std::log(4.0) + 1.0;
  // Turns over the original context: frequency * 262144 / 2 pi. More than 32 of them: kept; fewer than 1: divided by the factor.
  int kept = 0, divided = 0;
  for (int i = 0; i < 32; ++i) {
    const double frequency = std::pow(1e7, -2.0 * i / 64), turns = frequency * 262144 / (2 * M_PI);
    const double expected = turns > 40 ? frequency : turns < 0.7 ? frequency / 4 : 0.0;
    if (expected == 0.0) continue;
    (turns > 40 ? kept : divided) += 1;
    EXPECT_NEAR(sin[i], std::sin(expected) * scale, 0x1p-7 * std::sin(expected) * scale) << i;
    EXPECT_NEAR(cos[i], std::cos(expected) * scale, 0x1p-8 * scale) << i;
  }
  EXPECT_GT(kept, 5);
  EXPECT_GT(divided, 2);
  rope.yarn_attention_factor = 1.0;
  RopeTable(rope).angles(0, cos, sin);
  EXPECT_EQ(cos[0], 1.0f);
}

}  // namespace
}  // namespace tetrad::cpu::rope_test
