// Every result is compared bit by bit with a scalar oracle that states the order: one chain per output, columns ascending.
#include "cpu/matmul.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/bf16.h"
#include "base/error.h"
#include "support/simd_targets.h"

namespace tetrad::cpu::matmul_test {
namespace {

struct Weight {
  std::vector<std::byte> bytes, scale_bytes;
  std::vector<float> values;  // [rows, columns], as the kernels must see them
  LinearView view;
};

template <class T>
void append(std::vector<std::byte>& bytes, T value) {
  const auto* p = reinterpret_cast<const std::byte*>(&value);
  bytes.insert(bytes.end(), p, p + sizeof(T));
}

void finish(Weight& w, DType dtype, int rows, int columns) {
  w.view.weight = {.data = w.bytes.data(), .dtype = dtype, .shape = {rows, columns}, .name = "layer.weight"};
}

Weight bf16_weight(int rows, int columns, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Weight w;
  w.bytes.reserve(static_cast<std::size_t>(rows) * columns * 2 + 2);
  for (int i = 0; i < rows * columns; ++i) {
    w.values.push_back(round_bf16(normal(random)));
    append(w.bytes, to_bf16(w.values.back()).bits);
  }
  finish(w, DType::kBF16, rows, columns);
  return w;
}

float e4m3(std::uint8_t code) {
  const int exponent = (code >> 3) & 15, mantissa = code & 7;
  const float magnitude =
      exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9) : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

Weight fp8_weight(int rows, int columns, int block_rows, int block_columns, std::uint32_t seed, bool bf16_scales = true) {
  std::mt19937 random(seed);
  const int scale_rows = (rows + block_rows - 1) / block_rows, scale_columns = (columns + block_columns - 1) / block_columns;
  Weight w;
  std::vector<float> scales;
  for (int i = 0; i < scale_rows * scale_columns; ++i) {
    const float scale = std::uniform_real_distribution<float>(-0.02f, 0.03f)(random);
    scales.push_back(bf16_scales ? round_bf16(scale) : scale);
    if (bf16_scales)
      append(w.scale_bytes, to_bf16(scale).bits);
    else
      append(w.scale_bytes, scale);
  }
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < columns; ++c) {
      auto code = static_cast<std::uint8_t>(random() & 0xff);
      if ((code & 0x7f) == 0x7f) code ^= 1;
      append(w.bytes, code);
      w.values.push_back(e4m3(code) * scales[(r / block_rows) * scale_columns + c / block_columns]);
    }
  finish(w, DType::kF8E4M3, rows, columns);
  w.view.scale_inv = WeightView{.data = w.scale_bytes.data(),
                                .dtype = bf16_scales ? DType::kBF16 : DType::kF32,
                                .shape = {scale_rows, scale_columns},
                                .name = "layer.weight_scale_inv"};
  w.view.block_rows = block_rows;
  w.view.block_columns = block_columns;
  return w;
}

std::vector<float> inputs(int rows, int stride, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<std::size_t>(rows) * stride);
  for (float& value : x) value = round_bf16(normal(random));
  return x;
}

float oracle(const Weight& w, int columns, int n, const float* x, bool round, bool fused) {
  float sum = 0;
  for (int k = 0; k < columns; ++k) {
    const float value = w.values[static_cast<std::size_t>(n) * columns + k];
    sum = fused ? std::fma(x[k], value, sum) : sum + x[k] * value;
  }
  return round ? round_bf16(sum) : sum;
}

::testing::AssertionResult same_bits(float got, float expected) {
  if (std::bit_cast<std::uint32_t>(got) == std::bit_cast<std::uint32_t>(expected) || (std::isnan(got) && std::isnan(expected)))
    return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "got " << got << ", expected " << expected;
}

constexpr float kUntouched = -12345.5f;

// Computes T rows with wide strides, compares every element, and the gaps between rows for stray writes.
void check(const Weight& w, int rows, int columns, int T, bool round, ThreadPool& pool, bool fused) {
  const int ldx = columns + 3, ldy = rows + 5;
  auto x = inputs(T, ldx, 7);
  for (int t = 0; t < T; ++t)
    for (int k = columns; k < ldx; ++k) x[static_cast<std::size_t>(t) * ldx + k] = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> y(static_cast<std::size_t>(T) * ldy, kUntouched);
  matmul(PackedLinear::pack(w.view), {.T = T, .x = x.data(), .ldx = ldx, .y = y.data(), .ldy = ldy, .round = round}, pool);
  for (int t = 0; t < T; ++t)
    for (int n = 0; n < ldy; ++n) {
      const float expected = n < rows ? oracle(w, columns, n, &x[static_cast<std::size_t>(t) * ldx], round, fused) : kUntouched;
      ASSERT_TRUE(same_bits(y[static_cast<std::size_t>(t) * ldy + n], expected)) << "T " << T << " [" << t << ", " << n << "]";
    }
}

TEST(matmul, equals_the_scalar_chain_on_every_target) {
  ThreadPool pool(2);
  test::for_each_simd_target([&](const char* name, bool fused) {
    SCOPED_TRACE(name);
    for (const auto& [rows, columns] : {std::pair{1, 1}, {3, 2}, {16, 7}, {17, 64}, {100, 33}, {272, 300}}) {
      SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(columns));
      const Weight plain = bf16_weight(rows, columns, 1);
      const Weight coded = fp8_weight(rows, columns, 24, 10, 2);
      for (const int T : {1, 2, 3, 4, 5, 6, 7, 8, 13, 19}) {
        check(plain, rows, columns, T, T % 2 == 0, pool, fused);
        check(coded, rows, columns, T, T % 2 == 1, pool, fused);
      }
    }
  });
}

TEST(matmul, blocks_of_rows_and_columns_join_without_a_seam) {
  ThreadPool pool(2);
  for (const int T : {95, 96, 97, 193}) check(bf16_weight(40, 513, 3), 40, 513, T, true, pool, true);
  check(bf16_weight(40, 769, 3), 40, 769, 30, false, pool, true);
  check(fp8_weight(150, 600, 128, 128, 4), 150, 600, 30, true, pool, true);
}

TEST(matmul, a_row_does_not_depend_on_rows_beside_it_or_on_threads) {
  const int rows = 200, columns = 384, T = 130;
  const auto x = inputs(T, columns, 11);
  for (const bool coded : {false, true}) {
    const Weight w = coded ? fp8_weight(rows, columns, 128, 128, 5) : bf16_weight(rows, columns, 5);
    const PackedLinear packed = PackedLinear::pack(w.view);
    ThreadPool single(1);
    std::vector<float> expected(static_cast<std::size_t>(T) * rows);
    for (int t = 0; t < T; ++t)
      matmul(packed, {.T = 1, .x = &x[t * columns], .ldx = columns, .y = &expected[t * rows], .ldy = rows}, single);
    for (const int threads : {1, 2, 3, 5}) {
      ThreadPool pool(threads);
      for (const int step : {2, 3, 5, 6, 7, 64, 130}) {
        std::vector<float> y(expected.size());
        for (int t = 0; t < T; t += step)
          matmul(packed, {.T = std::min(step, T - t), .x = &x[t * columns], .ldx = columns, .y = &y[t * rows], .ldy = rows}, pool);
        ASSERT_EQ(std::memcmp(y.data(), expected.data(), y.size() * sizeof(float)), 0) << threads << " threads, step " << step;
      }
    }
  }
}

TEST(matmul, order_is_visible) {
  // Exact sums are equal in any order; these terms are not: reversed columns must give other bits, or the tests above prove nothing.
  const int columns = 512, rows = 32;
  Weight w = bf16_weight(rows, columns, 9);
  auto x = inputs(1, columns, 10);
  Weight backward = w;
  for (int n = 0; n < rows; ++n) std::reverse(&backward.values[n * columns], &backward.values[n * columns] + columns);
  std::vector<float> x_backward(x.rbegin(), x.rend());
  int by_order = 0;
  for (int n = 0; n < rows; ++n)
    by_order += !same_bits(oracle(backward, columns, n, x_backward.data(), false, true), oracle(w, columns, n, x.data(), false, true));
  EXPECT_GT(by_order, rows / 2);
}

TEST(matmul, fusing_matters_only_for_products_that_do_not_fit) {
  const int columns = 512, rows = 32;
  const auto x = inputs(1, columns, 10);
  const auto count = [&](const Weight& w) {
    int differ = 0;
    for (int n = 0; n < rows; ++n)
      differ += !same_bits(oracle(w, columns, n, x.data(), false, true), oracle(w, columns, n, x.data(), false, false));
    return differ;
  };
  EXPECT_EQ(count(bf16_weight(rows, columns, 9)), 0);
  EXPECT_EQ(count(fp8_weight(rows, columns, 128, 128, 9, true)), 0);
  EXPECT_GT(count(fp8_weight(rows, columns, 128, 128, 9, false)), rows / 2);
}

TEST(matmul, every_fp8_code_and_extreme_scales_are_exact) {
  // One column per code: an input that is one at a single place reads a weight back.
  std::vector<std::uint8_t> codes;
  for (int code = 0; code < 256; ++code)
    if ((code & 0x7f) != 0x7f) codes.push_back(static_cast<std::uint8_t>(code));
  const int columns = static_cast<int>(codes.size());
  ThreadPool pool(1);
  test::for_each_simd_target([&](const char* name, bool) {
    SCOPED_TRACE(name);
    for (const float scale : {1.0f, 0.0123f, -3.7f, 1e-38f, 1e-41f, 1e30f}) {
      Weight w;
      for (const auto code : codes) append(w.bytes, code);
      append(w.scale_bytes, scale);
      finish(w, DType::kF8E4M3, 1, columns);
      w.view.scale_inv = WeightView{.data = w.scale_bytes.data(), .dtype = DType::kF32, .shape = {1, 1}, .name = "scale"};
      w.view.block_rows = w.view.block_columns = 256;
      const PackedLinear packed = PackedLinear::pack(w.view);
      for (int k = 0; k < columns; ++k) {
        std::vector<float> x(columns);
        x[k] = 1;
        float y = kUntouched;
        matmul(packed, {.T = 1, .x = x.data(), .ldx = columns, .y = &y, .ldy = 1, .round = false}, pool);
        ASSERT_EQ(y, e4m3(codes[k]) * scale) << "code " << static_cast<int>(codes[k]) << " scale " << scale;
      }
    }
  });
}

TEST(matmul, rounds_other_dtypes_to_bf16) {
  ThreadPool pool(1);
  for (const DType dtype : {DType::kF16, DType::kF32}) {
    Weight w;
    std::vector<float> expected;
    for (int i = 0; i < 1024; ++i) {
      if (dtype == DType::kF16) {
        const auto bits = static_cast<std::uint16_t>(i * 61);
        const int exponent = (bits >> 10) & 31, mantissa = bits & 1023;
        float value =
            exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -24) : std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25);
        if (exponent == 31) value = mantissa == 0 ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
        append(w.bytes, bits);
        expected.push_back((bits & 0x8000) != 0 ? -value : value);
      } else {
        expected.push_back(std::ldexp(1.0f + static_cast<float>(i) * 0.00137f, i / 8 - 64));
        append(w.bytes, expected.back());
      }
    }
    finish(w, dtype, 1024, 1);
    const float one = 1;
    std::vector<float> y(1024);
    matmul(PackedLinear::pack(w.view), {.T = 1, .x = &one, .ldx = 1, .y = y.data(), .ldy = 1024, .round = false}, pool);
    for (int i = 0; i < 1024; ++i) ASSERT_TRUE(same_bits(y[i], round_bf16(expected[i]) + 0.0f)) << i;
  }
}

TEST(matmul, non_finite_values_come_out) {
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  ThreadPool pool(2);
  test::for_each_simd_target([&](const char* name, bool) {
    SCOPED_TRACE(name);
    for (const int T : {1, 3, 9})
      for (const bool poison_weight : {false, true})
        for (const float poison : {nan, infinity, -infinity}) {
          const int rows = 33, columns = 20;
          Weight w = bf16_weight(rows, columns, 13);
          auto x = inputs(T, columns, 14);
          x[6] = 1.0f;
          const std::uint16_t bits = to_bf16(poison).bits;
          if (poison_weight)
            std::memcpy(w.bytes.data() + (20 * columns + 6) * 2, &bits, 2);
          else
            x[6] = poison;
          std::vector<float> y(static_cast<std::size_t>(T) * rows);
          matmul(PackedLinear::pack(w.view), {.T = T, .x = x.data(), .ldx = columns, .y = y.data(), .ldy = rows}, pool);
          for (int t = 0; t < T; ++t)
            for (int n = 0; n < rows; ++n) {
              const bool hit = poison_weight ? n == 20 : t == 0;
              EXPECT_EQ(std::isfinite(y[static_cast<std::size_t>(t) * rows + n]), !hit) << t << " " << n;
            }
        }
  });
}

TEST(matmul, stacked_weights_equal_separate_ones) {
  ThreadPool pool(2);
  const int columns = 130;
  for (const bool coded : {false, true}) {
    std::vector<Weight> weights;
    std::vector<LinearView> views;
    int total = 0;
    for (const int rows : {5, 33, 1, 16}) {
      weights.push_back(coded ? fp8_weight(rows, columns, 8, 64, rows) : bf16_weight(rows, columns, rows));
      total += rows;
    }
    for (const auto& w : weights) views.push_back(w.view);
    const auto x = inputs(2, columns, 21);
    std::vector<float> stacked(2 * total);
    matmul(PackedLinear::pack_rows(views), {.T = 2, .x = x.data(), .ldx = columns, .y = stacked.data(), .ldy = total}, pool);
    int first = 0;
    for (const auto& view : views) {
      const PackedLinear packed = PackedLinear::pack(view);
      std::vector<float> y(2 * packed.rows());
      matmul(packed, {.T = 2, .x = x.data(), .ldx = columns, .y = y.data(), .ldy = packed.rows()}, pool);
      for (int t = 0; t < 2; ++t)
        for (int n = 0; n < packed.rows(); ++n) ASSERT_TRUE(same_bits(stacked[t * total + first + n], y[t * packed.rows() + n]));
      first += packed.rows();
    }
  }
}

TEST(matmul, jobs_equal_separate_products) {
  const int rows = 70, columns = 96;
  std::vector<PackedLinear> weights;
  for (int i = 0; i < 9; ++i) weights.push_back(PackedLinear::pack(bf16_weight(rows + i, columns, i).view));
  const std::vector<int> counts{1, 0, 7, 2, 120, 0, 3, 6, 1};
  const auto x = inputs(140, columns, 31);
  for (const int threads : {1, 2, 4}) {
    ThreadPool pool(threads);
    std::vector<std::vector<float>> together, alone;
    std::vector<MatmulJob> jobs;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      together.emplace_back(static_cast<std::size_t>(counts[i]) * weights[i].rows());
      alone.push_back(together.back());
    }
    for (std::size_t i = 0; i < weights.size(); ++i)
      jobs.push_back({.w = &weights[i],
                      .T = counts[i],
                      .x = &x[i * columns],
                      .ldx = columns,
                      .y = together[i].data(),
                      .ldy = weights[i].rows(),
                      .round = i % 2 == 0});
    matmul_jobs(jobs, pool);
    for (std::size_t i = 0; i < weights.size(); ++i) {
      matmul(weights[i],
             {.T = counts[i], .x = &x[i * columns], .ldx = columns, .y = alone[i].data(), .ldy = weights[i].rows(), .round = i % 2 == 0},
             pool);
      EXPECT_EQ(together[i], alone[i]) << "job " << i;
    }
  }
}

TEST(matmul, nothing_to_do_is_nothing) {
  ThreadPool pool(2);
  const PackedLinear packed = PackedLinear::pack(bf16_weight(4, 4, 1).view);
  matmul(packed, {.T = 0}, pool);
  matmul_jobs({}, pool);
}

TEST(matmul, reads_weights_at_odd_addresses) {
  Weight w = bf16_weight(19, 37, 40);
  std::vector<std::byte> shifted(w.bytes.size() + 1);
  std::memcpy(shifted.data() + 1, w.bytes.data(), w.bytes.size());
  w.view.weight.data = shifted.data() + 1;
  ThreadPool pool(1);
  check(w, 19, 37, 2, true, pool, true);
}

template <class Change>
std::string load_error(Weight w, const Change& change) {
  change(w);
  try {
    PackedLinear::pack(w.view);
  } catch (const LoadError& error) {
    return error.what();
  }
  return "no error";
}

TEST(matmul, refuses_weights_it_cannot_read) {
  const auto names = [](const std::string& message, const std::string& part) { return message.find(part) != std::string::npos; };
  const auto expect = [&](const std::string& message, std::initializer_list<const char*> parts) {
    for (const char* part : parts) EXPECT_TRUE(names(message, part)) << "'" << part << "' is not in: " << message;
  };
  const Weight plain = bf16_weight(4, 6, 1);
  const Weight coded = fp8_weight(200, 300, 128, 128, 1);
  expect(load_error(plain, [](Weight& w) { w.view.weight.dtype = DType::kI64; }), {"layer.weight", "I64", "BF16"});
  expect(load_error(plain, [](Weight& w) { w.view.weight.shape = {24}; }), {"layer.weight", "2 dimensions"});
  expect(load_error(plain, [](Weight& w) { w.view.weight.shape = {0, 6}; }), {"layer.weight", "dimension 0"});
  expect(load_error(coded, [](Weight& w) { w.view.scale_inv.reset(); }), {"layer.weight", "weight_scale_inv"});
  expect(load_error(coded, [](Weight& w) { w.view.scale_inv->shape = {2, 2}; }), {"layer.weight_scale_inv", "[2, 3]", "128 x 128"});
  expect(load_error(coded, [](Weight& w) { w.view.scale_inv->dtype = DType::kU8; }), {"layer.weight_scale_inv", "U8"});
  expect(load_error(coded, [](Weight& w) { w.view.block_columns = 0; }), {"layer.weight", "128 x 0"});
  expect(load_error(coded,
                    [](Weight& w) {
                      w.bytes[5 * 300 + 77] = std::byte{0xff};
                      w.view.weight.data = w.bytes.data();
                    }),
         {"layer.weight", "[5, 77]", "NaN", "0xff"});
  expect(load_error(coded,
                    [](Weight& w) {
                      w.bytes[199 * 300 + 299] = std::byte{0x7f};
                      w.view.weight.data = w.bytes.data();
                    }),
         {"[199, 299]", "0x7f"});
  const Weight wider = bf16_weight(4, 8, 1), also_coded = fp8_weight(4, 6, 2, 2, 1);
  const std::vector<LinearView> unequal{plain.view, wider.view}, mixed{plain.view, also_coded.view};
  EXPECT_THROW(PackedLinear::pack_rows(unequal), LoadError);
  EXPECT_THROW(PackedLinear::pack_rows(mixed), LoadError);
}

TEST(matmul, memory_is_that_of_the_stored_type) {
  EXPECT_EQ(PackedLinear::pack(bf16_weight(64, 128, 1).view).bytes(), 64u * 128 * 2);
  EXPECT_EQ(PackedLinear::pack(fp8_weight(64, 128, 128, 128, 1).view).bytes(), 64u * 128 + 64 * 4);
}

}  // namespace
}  // namespace tetrad::cpu::matmul_test
