// Functions within a stated error are compared with double precision over the whole range of floats; everything else bit by bit with the
// scalar formula of the header. Sizes 0..70 meet every tail of every vector width; each instruction set of the machine takes its turn.
#include "cpu/vector_math.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "support/simd_targets.h"

namespace tetrad::cpu::vector_math_test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kTiny = std::numeric_limits<float>::denorm_min();
constexpr int kMaxSize = 70;

bool same(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b) || (std::isnan(a) && std::isnan(b));
}

const std::vector<float>& special_values() {
  static const std::vector<float> values{0.0f,     -0.0f,  1.0f,       -1.0f,           kInfinity,   -kInfinity, kNan,   -kNan,
                                         kTiny,    -kTiny, 1e-40f,     1.17549435e-38f, 3.4e38f,     -3.4e38f,   88.72f, 88.73f,
                                         -87.33f,  -87.4f, -103.9f,    -103.98f,        -104.5f,     1e10f,      -1e10f, 20.0f,
                                         20.0001f, 0.5f,   0.3465736f, -0.3465736f,     1.00390625f, 1.01171875f};
  return values;
}

// Mixed magnitudes; `specials` puts special values among them.
std::vector<float> values(int n, std::uint32_t seed, bool specials = false) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (float& v : x) {
    v = normal(random) * std::ldexp(1.0f, static_cast<int>(random() % 12) - 6);
    if (specials && random() % 4 == 0) v = special_values()[random() % special_values().size()];
  }
  return x;
}

// Every 4099th float of either sign, and the special ones.
std::vector<float> sweep() {
  std::vector<float> x = special_values();
  for (std::uint64_t bits = 0; bits < (1ull << 32); bits += 4099) x.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
  for (int i = -4000; i <= 4000; ++i) x.push_back(static_cast<float>(i) * 0.0261f);  // the range that matters, more densely
  return x;
}

// The distance of `got` from `exact` in units of the last place of the float nearest to `exact`; 0 if both are the same NaN or infinity.
double ulps(float got, double exact) {
  const auto rounded = static_cast<float>(exact);
  if (std::isnan(exact) || std::isnan(got)) return std::isnan(exact) && std::isnan(got) ? 0 : 1e30;
  if (std::isinf(rounded)) return got == rounded ? 0 : (got == std::copysign(std::numeric_limits<float>::max(), rounded) ? 0.5 : 1e30);
  if (std::isinf(got)) return std::abs(exact) > std::ldexp(1.0, 128) * (1 - std::ldexp(1.0, -24)) ? 0.5 : 1e30;
  const int exponent = std::max(std::ilogb(rounded == 0 ? kTiny : rounded), -126);
  return std::abs(static_cast<double>(got) - exact) / std::ldexp(1.0, exponent - 23);
}

using Unary = void (*)(const float*, float*, int);

// The worst distance over the sweep; also checks that an element's bits do not depend on its place, on n or on running in place.
double worst_ulps(Unary function, double (*exact)(double)) {
  const auto x = sweep();
  std::vector<float> y(x.size());
  function(x.data(), y.data(), static_cast<int>(x.size()));
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double error = ulps(y[i], exact(x[i]));
    EXPECT_LT(error, 1e6) << "x " << x[i] << " got " << y[i] << " exact " << exact(x[i]);
    worst = std::max(worst, error);
  }
  for (int n = 0; n <= kMaxSize; ++n) {
    std::vector<float> part(x.begin() + n, x.begin() + 2 * n);
    part.push_back(-7.0f);
    function(part.data(), part.data(), n);
    for (int i = 0; i < n; ++i) EXPECT_TRUE(same(part[i], y[n + i])) << "n " << n << " i " << i << " x " << x[n + i];
    EXPECT_EQ(part[n], -7.0f) << "n " << n;
  }
  return worst;
}

double exact_exp(double x) { return std::exp(x); }
double exact_sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
// The float formula overflows its exponential below -88.7 and has no number for -infinity.
double exact_silu(double x) { return x < -88.7 ? (std::isinf(x) ? kNan : static_cast<double>(-0.0f)) : x / (1 + std::exp(-x)); }
double exact_softplus(double x) { return x > 20 ? x : std::log1p(std::exp(x)); }

TEST(vector_math, exp_is_within_one_unit) {
  test::for_each_simd_target([](const char* name, bool) {
    SCOPED_TRACE(name);
    const double worst = worst_ulps(exp, exact_exp);
    RecordProperty(std::string("ulps_") + name, std::to_string(worst));
    EXPECT_LE(worst, 1.0);
  });
}

TEST(vector_math, exp_is_almost_correctly_rounded_with_fma) {
  const auto x = sweep();
  std::vector<float> y(x.size());
  exp(x.data(), y.data(), static_cast<int>(x.size()));
  std::size_t off = 0;
  for (std::size_t i = 0; i < x.size(); ++i) off += !same(y[i], static_cast<float>(std::exp(static_cast<double>(x[i]))));
  EXPECT_LT(off, x.size() / 50);
}

TEST(vector_math, exp_at_the_borders) {
  const std::vector<float> x{kNan, kInfinity, -kInfinity, 88.7228f, 88.7229f, -103.97f, -103.98f, -1e30f, 0.0f, -0.0f, kTiny};
  std::vector<float> y(x.size());
  test::for_each_simd_target([&](const char* name, bool) {
    SCOPED_TRACE(name);
    exp(x.data(), y.data(), static_cast<int>(x.size()));
    EXPECT_TRUE(std::isnan(y[0]));
    EXPECT_EQ(y[1], kInfinity);
    EXPECT_EQ(y[2], 0);
    EXPECT_TRUE(std::isfinite(y[3]));
    EXPECT_EQ(y[4], kInfinity);
    EXPECT_EQ(y[5], kTiny);
    EXPECT_EQ(y[6], 0);
    EXPECT_EQ(y[7], 0);
    EXPECT_EQ(y[8], 1);
    EXPECT_EQ(y[9], 1);
    EXPECT_EQ(y[10], 1);
  });
}

TEST(vector_math, logistic_functions_are_within_three_units) {
  test::for_each_simd_target([](const char* name, bool) {
    SCOPED_TRACE(name);
    EXPECT_LE(worst_ulps(
                  [](const float* x, float* y, int n) {
                    sigmoid(x, y, n);
                    for (int i = 0; i < n; ++i) y[i] = y[i] < 1e-38f ? 0.0f : y[i];  // 1 / exp(-x) is gone before the true value is
                  },
                  [](double x) { return exact_sigmoid(x) < 1.0000001e-38 ? 0.0 : exact_sigmoid(x); }),
              3.0);
    EXPECT_LE(worst_ulps(
                  [](const float* x, float* y, int n) {
                    std::vector<float> in(x, x + n);
                    silu(x, y, n);
                    for (int i = 0; i < n; ++i)
                      if (in[i] < -80 && std::isfinite(in[i])) y[i] = std::abs(y[i]) < 2e-33f ? -0.0f : kInfinity;
                  },
                  [](double x) { return x < -80 && std::isfinite(static_cast<float>(x)) ? -0.0 : exact_silu(x); }),
              3.0);
    EXPECT_LE(worst_ulps(softplus, exact_softplus), 3.0);
  });
}

TEST(vector_math, rounded_forms_are_the_rounding_of_the_others) {
  test::for_each_simd_target([](const char* name, bool) {
    SCOPED_TRACE(name);
    const auto x = values(3000, 5, true);
    std::vector<float> plain(x.size()), rounded(x.size());
    const int n = static_cast<int>(x.size());
    sigmoid(x.data(), plain.data(), n);
    sigmoid_bf16(x.data(), rounded.data(), n);
    for (int i = 0; i < n; ++i) ASSERT_TRUE(same(rounded[i], round_bf16(plain[i]))) << x[i];
    silu(x.data(), plain.data(), n);
    silu_bf16(x.data(), rounded.data(), n);
    for (int i = 0; i < n; ++i) ASSERT_TRUE(same(rounded[i], round_bf16(plain[i]))) << x[i];
  });
}

TEST(vector_math, conversions_equal_the_scalar_ones_on_every_bit_pattern_near_a_border) {
  test::for_each_simd_target([](const char* name, bool) {
    SCOPED_TRACE(name);
    std::vector<float> x;
    for (std::uint32_t upper = 0; upper < 65536; ++upper)
      for (const std::uint32_t lower : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) x.push_back(std::bit_cast<float>(upper << 16 | lower));
    const int n = static_cast<int>(x.size());
    std::vector<bf16> codes(x.size());
    std::vector<float> back(x.size()), in_place = x;
    to_bf16_array(x.data(), codes.data(), n);
    to_float_array(codes.data(), back.data(), n);
    round_bf16_array(in_place.data(), n);
    for (int i = 0; i < n; ++i) {
      ASSERT_EQ(codes[i], to_bf16(x[i])) << x[i];
      ASSERT_EQ(std::bit_cast<std::uint32_t>(back[i]), std::bit_cast<std::uint32_t>(to_float(codes[i])));
      ASSERT_EQ(std::bit_cast<std::uint32_t>(in_place[i]), std::bit_cast<std::uint32_t>(round_bf16(x[i])));
    }
  });
}

// Compares an array function with its scalar formula for sizes 0..70, with guards behind the end.
template <class Function, class Formula>
void check_elementwise(const char* what, const Function& function, const Formula& formula) {
  for (int n = 0; n <= kMaxSize; ++n) {
    const auto a = values(n, 100 + n, n % 2 == 0), b = values(n, 200 + n, n % 3 == 0), before = values(n, 300 + n);
    std::vector<float> y = before;
    y.push_back(-7.0f);
    function(a.data(), b.data(), y.data(), n);
    for (int i = 0; i < n; ++i)
      ASSERT_TRUE(same(y[i], formula(a[i], b[i], before[i]))) << what << " n " << n << " i " << i << " a " << a[i] << " b " << b[i];
    ASSERT_EQ(y[n], -7.0f) << what << " n " << n;
  }
}

TEST(vector_math, elementwise_functions_equal_their_formulas) {
  test::for_each_simd_target([](const char* name, bool) {
    SCOPED_TRACE(name);
    const auto bf = [](float x) { return round_bf16(x); };
    check_elementwise(
        "scale_round_bf16", [](auto a, auto b, auto y, int n) { scale_round_bf16(a, 0.37f, b, y, n); },
        [&](float a, float b, float) { return bf((a * 0.37f) * b); });
    check_elementwise(
        "mul_round_bf16", [](auto a, auto b, auto y, int n) { mul_round_bf16(a, b, y, n); },
        [&](float a, float b, float) { return bf(a * b); });
    check_elementwise(
        "add_round_bf16", [](auto a, auto b, auto y, int n) { add_round_bf16(a, b, y, n); },
        [&](float a, float b, float) { return bf(a + b); });
    check_elementwise(
        "scale", [](auto a, auto, auto y, int n) { scale(-1.7f, a, y, n); }, [&](float a, float, float) { return -1.7f * a; });
    check_elementwise(
        "add_product", [](auto a, auto b, auto y, int n) { add_product(a, b, y, n); },
        [&](float a, float b, float y) {
          const float p = a * b;
          return y + p;
        });
    check_elementwise(
        "add_rounded_product", [](auto a, auto, auto y, int n) { add_rounded_product(0.77f, a, y, n); },
        [&](float a, float, float y) { return y + bf(0.77f * a); });
    check_elementwise(
        "inject_round_bf16", [](auto a, auto, auto y, int n) { inject_round_bf16(0.77f, a, y, n); },
        [&](float a, float, float y) { return bf(y + bf(0.77f * a)); });
    const auto coded = [](auto b, int n) {
      std::vector<bf16> codes;
      for (int i = 0; i < n; ++i) codes.push_back(to_bf16(b[i]));
      return codes;
    };
    check_elementwise(
        "add_product bf16", [&](auto a, auto b, auto y, int n) { add_product(a, coded(b, n).data(), y, n); },
        [&](float a, float b, float y) {
          const float p = a * bf(b);
          return y + p;
        });
    check_elementwise(
        "add_scaled", [&](auto, auto b, auto y, int n) { add_scaled(0.31f, coded(b, n).data(), y, n); },
        [&](float, float b, float y) {
          const float p = 0.31f * bf(b);
          return y + p;
        });
  });
}

TEST(vector_math, gated_mean_equals_its_formula) {
  test::for_each_simd_target([](const char* name, bool) {
    SCOPED_TRACE(name);
    for (const int rows : {1, 3, 4})
      for (int n = 0; n <= kMaxSize; ++n) {
        const auto gate = values(rows * n, n, n % 2 == 0), x = values(rows * n, n + 1);
        std::vector<float> out(n + 1, -7.0f);
        gated_mean_bf16(gate.data(), x.data(), rows, out.data(), n);
        for (int d = 0; d < n; ++d) {
          float sum = 0;
          for (int r = 0; r < rows; ++r) sum += round_bf16(gate[r * n + d] * x[r * n + d]);
          ASSERT_TRUE(same(out[d], round_bf16(sum / static_cast<float>(rows)))) << rows << " " << n << " " << d;
        }
        ASSERT_EQ(out[n], -7.0f);
      }
  });
}

template <class Term>
float eight_lanes(int n, const Term& term) {
  float s[8] = {};
  for (int i = 0; i < n; ++i) {
    const float value = term(i);
    s[i % 8] = s[i % 8] + value;
  }
  return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

TEST(vector_math, reductions_follow_the_eight_lane_order) {
  test::for_each_simd_target([](const char* name, bool) {
    SCOPED_TRACE(name);
    std::vector<int> sizes{128, 1000};
    for (int n = 0; n <= kMaxSize; ++n) sizes.push_back(n);
    for (const int n : sizes)
      for (const bool specials : {false, true}) {
        const auto x = values(n, n + 1, specials), y = values(n, n + 2);
        std::vector<bf16> z;
        for (const float v : y) z.push_back(to_bf16(v));
        ASSERT_TRUE(same(sum(x.data(), n), eight_lanes(n, [&](int i) { return x[i]; }))) << n;
        ASSERT_TRUE(same(sum_of_squares(x.data(), n), eight_lanes(n, [&](int i) { return x[i] * x[i]; }))) << n;
        ASSERT_TRUE(same(dot(x.data(), y.data(), n), eight_lanes(n, [&](int i) { return x[i] * y[i]; }))) << n;
        ASSERT_TRUE(same(dot(x.data(), z.data(), n), eight_lanes(n, [&](int i) { return x[i] * to_float(z[i]); }))) << n;
        ASSERT_TRUE(same(dot_rounded_products(x.data(), y.data(), n), eight_lanes(n, [&](int i) { return round_bf16(x[i] * y[i]); }))) << n;
      }
  });
}

TEST(vector_math, reduction_order_is_visible) {
  int differ = 0;
  for (int seed = 0; seed < 50; ++seed) {
    const auto x = values(100, seed);
    float sequential = 0;
    for (const float v : x) sequential += v;
    differ += !same(sum(x.data(), 100), sequential);
  }
  EXPECT_GT(differ, 25);
}

TEST(vector_math, max_shows_a_nan_wherever_it_stands) {
  test::for_each_simd_target([](const char* name, bool) {
    SCOPED_TRACE(name);
    EXPECT_EQ(max_value(nullptr, 0), -kInfinity);
    for (int n = 1; n <= kMaxSize; ++n) {
      auto x = values(n, n);
      EXPECT_EQ(max_value(x.data(), n), *std::max_element(x.begin(), x.end()));
      for (int i = 0; i < n; ++i) {
        const float kept = std::exchange(x[i], kNan);
        EXPECT_TRUE(std::isnan(max_value(x.data(), n))) << n << " " << i;
        x[i] = 1e30f;
        EXPECT_EQ(max_value(x.data(), n), 1e30f) << n << " " << i;
        x[i] = kept;
      }
    }
    const float infinities[] = {-kInfinity, -kInfinity};
    EXPECT_EQ(max_value(infinities, 2), -kInfinity);
  });
}

TEST(vector_math, softmax_equals_double_precision) {
  test::for_each_simd_target([](const char* name, bool) {
    SCOPED_TRACE(name);
    std::vector<int> sizes{512, 2051};
    for (int n = 1; n <= kMaxSize; ++n) sizes.push_back(n);
    for (const int n : sizes) {
      auto x = values(n, n);
      if (n > 3) x[1] = -kInfinity, x[2] = -200.0f;
      std::vector<float> y(n + 1, -7.0f);
      softmax(x.data(), y.data(), n);
      const double max = *std::max_element(x.begin(), x.end());
      double total = 0;
      for (const float v : x) total += std::exp(v - max);
      for (int i = 0; i < n; ++i) {
        const double exact = std::exp(x[i] - max) / total;
        // The difference to the maximum is rounded to half a unit, which exp turns into a relative error of its size.
        const double bound = std::isinf(x[i]) ? 0 : exact * (4e-7 + (max - x[i]) * std::ldexp(1.0, -24)) + 1e-37;
        ASSERT_NEAR(y[i], exact, bound) << n << " " << i;
      }
      ASSERT_EQ(y[n], -7.0f);
      // The steps of the header, from the array functions themselves.
      std::vector<float> steps(n);
      for (int i = 0; i < n; ++i) steps[i] = x[i] - static_cast<float>(max);
      exp(steps.data(), steps.data(), n);
      const float sum_of_steps = eight_lanes(n, [&](int i) { return steps[i]; });
      for (int i = 0; i < n; ++i) ASSERT_TRUE(same(y[i], steps[i] / sum_of_steps)) << n << " " << i;
      softmax(x.data(), x.data(), n);
      for (int i = 0; i < n; ++i) ASSERT_TRUE(same(x[i], y[i]));
    }
  });
}

TEST(vector_math, softmax_hides_no_poison) {
  test::for_each_simd_target([](const char* name, bool) {
    SCOPED_TRACE(name);
    for (const float poison : {kNan, kInfinity})
      for (const int n : {1, 3, 20}) {
        auto x = values(n, n);
        x[n / 2] = poison;
        softmax(x.data(), x.data(), n);
        for (const float v : x) EXPECT_TRUE(std::isnan(v));
      }
    std::vector<float> nothing(9, -kInfinity);
    softmax(nothing.data(), nothing.data(), 9);
    for (const float v : nothing) EXPECT_TRUE(std::isnan(v));
    softmax(nullptr, nullptr, 0);
  });
}

}  // namespace
}  // namespace tetrad::cpu::vector_math_test
