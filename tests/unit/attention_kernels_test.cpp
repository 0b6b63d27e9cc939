// Both sums equal their scalar orders bit by bit, at ragged sizes, with rows that are not neighbours.
#include "cpu/attention_kernels.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "support/simd_targets.h"

namespace tetrad::cpu::attention_kernels_test {
namespace {

bool same(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b) || (std::isnan(a) && std::isnan(b));
}

struct Rows {
  std::vector<bf16> memory;
  std::vector<const bf16*> pointers;
  Rows(int num_rows, int stride, std::uint32_t seed) : memory(static_cast<std::size_t>(num_rows) * stride) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (bf16& value : memory) value = to_bf16(normal(random));
    for (int n = 0; n < num_rows; ++n) pointers.push_back(&memory[static_cast<std::size_t>((n * 7) % num_rows) * stride]);
  }
};

std::vector<float> bf16_values(int n, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (float& value : x) value = round_bf16(normal(random));
  return x;
}

float score(const std::vector<float>& q, const bf16* row, int DH) {
  float s[8] = {};
  for (int d = 0; d < DH; ++d) {
    const float product = q[d] * to_float(row[d]);
    s[d % 8] = s[d % 8] + product;
  }
  return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

TEST(attention_kernels, equal_the_scalar_orders) {
  test::for_each_simd_target([](const char* name, bool) {
    SCOPED_TRACE(name);
    for (const int DH : {1, 7, 8, 20, 64, 130, 256})
      for (const int num_rows : {0, 1, 3, 4, 6, 33}) {
        const int offset = 5;
        const Rows rows(num_rows, DH + 9, DH + num_rows);
        const auto q = bf16_values(DH, 1), weights = bf16_values(num_rows, 2);
        std::vector<float> scores(num_rows + 1, -7.0f), out(DH + 1, -7.0f);
        attention_scores(q.data(), rows.pointers.data(), num_rows, offset, DH, scores.data());
        attention_weighted_sum(weights.data(), rows.pointers.data(), num_rows, offset, DH, out.data());
        for (int n = 0; n < num_rows; ++n) ASSERT_TRUE(same(scores[n], score(q, rows.pointers[n] + offset, DH))) << DH << " row " << n;
        for (int d = 0; d < DH; ++d) {
          float sum = 0;
          for (int n = 0; n < num_rows; ++n) {
            const float product = weights[n] * to_float(rows.pointers[n][offset + d]);
            sum = sum + product;
          }
          ASSERT_TRUE(same(out[d], sum)) << DH << " x " << num_rows << " element " << d;
        }
        EXPECT_EQ(scores[num_rows], -7.0f);
        EXPECT_EQ(out[DH], -7.0f);
      }
  });
}

TEST(attention_kernels, hide_no_poison) {
  Rows rows(6, 64, 3);
  const auto q = bf16_values(64, 4);
  const std::vector<float> weights{0, 0, 0, 0, 0, 1};
  rows.memory[2 * 64 + 40] = to_bf16(std::numeric_limits<float>::quiet_NaN());
  std::vector<float> scores(6), out(64);
  attention_scores(q.data(), rows.pointers.data(), 6, 0, 64, scores.data());
  attention_weighted_sum(weights.data(), rows.pointers.data(), 6, 0, 64, out.data());
  for (int n = 0; n < 6; ++n) EXPECT_EQ(std::isnan(scores[n]), rows.pointers[n] == &rows.memory[2 * 64]) << n;
  for (int d = 0; d < 64; ++d) EXPECT_EQ(std::isnan(out[d]), d == 40) << d;  // a weight of zero does not hide it
}

}  // namespace
}  // namespace tetrad::cpu::attention_kernels_test
