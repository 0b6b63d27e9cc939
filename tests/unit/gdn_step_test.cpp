// The vector kernel equals a scalar program bit by bit, for any split of tokens and columns.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "cpu/gdn_step_kernels.h"
#include "support/simd_targets.h"

namespace tetrad::cpu::gdn_step_test {
namespace {

bool same(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b) || (std::isnan(a) && std::isnan(b));
}

struct Case {
  int T, K, V, ld_qkv, ld_gates, ld_o;
  std::vector<float> q, k, v, decay, beta, S, o;

  Case(int T_, int K_, int V_, std::uint32_t seed) : T(T_), K(K_), V(V_), ld_qkv(std::max(K, V) + 3), ld_gates(2), ld_o(V + 1) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<float>& x, int n, float scale, float shift) {
      x.resize(n);
      for (float& value : x) value = normal(random) * scale + shift;
    };
    const float unit = 1 / std::sqrt(static_cast<float>(std::max(K, 1)));
    fill(q, T * ld_qkv, unit, 0);
    fill(k, T * ld_qkv, unit, 0);
    fill(v, T * ld_qkv, 1, 0);
    fill(decay, T * ld_gates, 0.05f, 0.9f);
    fill(beta, T * ld_gates, 0.1f, 0.5f);
    fill(S, K * V, 0.3f, 0);
    o.assign(T * ld_o, -7.0f);
  }

  GdnStepArgs args(int first_token, int num_tokens, int first_column, int num_columns) {
    return {.T = num_tokens,
            .K = K,
            .V = V,
            .first_column = first_column,
            .num_columns = num_columns,
            .q = &q[first_token * ld_qkv],
            .k = &k[first_token * ld_qkv],
            .v = &v[first_token * ld_qkv],
            .ld_qkv = ld_qkv,
            .decay = &decay[first_token * ld_gates],
            .beta = &beta[first_token * ld_gates],
            .ld_gates = ld_gates,
            .S = S.data(),
            .o = &o[first_token * ld_o],
            .ld_o = ld_o};
  }
};

void oracle(Case& c, bool fused) {
  const auto multiply_add = [&](float a, float b, float sum) {
    const float product = a * b;
    return fused ? std::fma(a, b, sum) : product + sum;
  };
  for (int t = 0; t < c.T; ++t) {
    const float decay = c.decay[t * c.ld_gates], beta = c.beta[t * c.ld_gates];
    for (int j = 0; j < c.V; ++j) {
      float r = 0, o = 0;
      for (int i = 0; i < c.K; ++i) r = multiply_add(c.k[t * c.ld_qkv + i], c.S[i * c.V + j], r);
      const float recalled = decay * r;
      const float u = beta * (c.v[t * c.ld_qkv + j] - recalled);
      for (int i = 0; i < c.K; ++i) {
        float& s = c.S[i * c.V + j];
        const float kept = decay * s;
        s = multiply_add(c.k[t * c.ld_qkv + i], u, kept);
        o = multiply_add(c.q[t * c.ld_qkv + i], s, o);
      }
      c.o[t * c.ld_o + j] = o;
    }
  }
}

void expect_same(const Case& got, const Case& expected) {
  for (std::size_t i = 0; i < expected.S.size(); ++i) ASSERT_TRUE(same(got.S[i], expected.S[i])) << "S " << i;
  for (std::size_t i = 0; i < expected.o.size(); ++i) ASSERT_TRUE(same(got.o[i], expected.o[i])) << "o " << i;
}

TEST(gdn_step, equals_the_scalar_program) {
  test::for_each_simd_target([](const char* name, bool fused) {
    SCOPED_TRACE(name);
    for (const int V : {1, 3, 8, 16, 29, 32, 64, 100, 256})
      for (const int K : {1, 2, 16, 33, 300})
        for (const int T : {1, 2, 7}) {
          Case got(T, K, V, V + K), expected = got;
          oracle(expected, fused);
          gdn_step_columns(got.args(0, T, 0, V));
          SCOPED_TRACE(::testing::Message() << "V " << V << " K " << K << " T " << T);
          expect_same(got, expected);
        }
  });
}

TEST(gdn_step, bits_do_not_depend_on_the_split) {
  const int T = 13, K = 32, V = 80;
  Case expected(T, K, V, 3);
  const Case start = expected;
  gdn_step_columns(expected.args(0, T, 0, V));
  for (const int tokens : {1, 2, 5, 12})
    for (const int columns : {1, 7, 16, 32, 50}) {
      Case got = start;
      for (int t = 0; t < T; t += tokens)
        for (int j = 0; j < V; j += columns) gdn_step_columns(got.args(t, std::min(tokens, T - t), j, std::min(columns, V - j)));
      SCOPED_TRACE(::testing::Message() << "tokens " << tokens << " columns " << columns);
      expect_same(got, expected);
    }
}

TEST(gdn_step, nothing_to_do_changes_nothing) {
  Case got(2, 8, 8, 1);
  const Case before = got;
  gdn_step_columns(got.args(0, 0, 0, 8));
  gdn_step_columns(got.args(0, 2, 4, 0));
  expect_same(got, before);
}

TEST(gdn_step, poison_stays_in_its_column) {
  Case got(3, 16, 40, 5);
  got.S[5 * 40 + 33] = std::numeric_limits<float>::quiet_NaN();
  gdn_step_columns(got.args(0, 3, 0, 40));
  for (int t = 0; t < 3; ++t)
    for (int j = 0; j < 40; ++j) EXPECT_EQ(std::isnan(got.o[t * got.ld_o + j]), j == 33) << t << " " << j;
}

}  // namespace
}  // namespace tetrad::cpu::gdn_step_test
