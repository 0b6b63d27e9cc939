// linear against a double sum, over ragged shapes; the two kernels give the same bits; nothing is written beside y.
#include "cuda/kernels/linear.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "device_weight.h"

namespace tetrad::cuda {
namespace {

using test::random_bf16;
using test::to_device;
using test::to_host;
using test::Weight;

constexpr bf16 kSentinel{0x7b7b};

struct Case {
  int N, K, T;
  bool fp8;
};

class Linear : public ::testing::TestWithParam<Case> {};

TEST_P(Linear, equals_a_double_sum_and_writes_nothing_else) {
  const auto [N, K, T, fp8] = GetParam();
  Stream stream;
  const Weight w(N, K, fp8, 7, stream);
  const int ldx = (K + 7) / 8 * 8 + 8, ldy = N + 5;
  const auto x = random_bf16(static_cast<std::size_t>(T) * ldx, 3);
  const auto device_x = to_device(x, stream);
  auto y = to_device(std::vector<bf16>(static_cast<std::size_t>(T + 1) * ldy, kSentinel), stream);
  linear(w.linear, {.T = T, .x = device_x.data(), .ldx = ldx, .y = y.data(), .ldy = ldy}, stream);
  const auto got = to_host(y, stream);
  for (int t = 0; t < T; ++t) {
    for (int n = 0; n < N; ++n) {
      double sum = 0, magnitude = 0;
      for (int k = 0; k < K; ++k) {
        const double product = to_float(x[static_cast<std::size_t>(t) * ldx + k]) * w.at(n, k);
        sum += product, magnitude += std::fabs(product);
      }
      // Half a unit of bf16 for the rounding, and float32 sums: K terms, each addition off by at most 2^-23 of the magnitude.
      const double allowed = std::fabs(sum) * 0x1p-8 + magnitude * K * 0x1p-24;
      ASSERT_NEAR(to_float(got[static_cast<std::size_t>(t) * ldy + n]), sum, allowed) << "t " << t << " n " << n;
    }
    for (int n = N; n < ldy; ++n) ASSERT_EQ(got[static_cast<std::size_t>(t) * ldy + n], kSentinel) << "t " << t << " n " << n;
  }
  for (int n = 0; n < ldy; ++n) ASSERT_EQ(got[static_cast<std::size_t>(T) * ldy + n], kSentinel);
}

TEST_P(Linear, a_row_has_the_same_bits_alone_and_among_others) {
  const auto [N, K, T, fp8] = GetParam();
  Stream stream;
  const Weight w(N, K, fp8, 11, stream);
  const int ldx = (K + 7) / 8 * 8, rows = std::max(T, 200);
  const auto x = to_device(random_bf16(static_cast<std::size_t>(rows) * ldx, 5), stream);
  const auto run = [&](int first, int count) {
    DeviceBuffer<bf16> y(static_cast<std::size_t>(count) * N, "y");
    linear(w.linear, {.T = count, .x = x.data() + static_cast<std::size_t>(first) * ldx, .ldx = ldx, .y = y.data(), .ldy = N}, stream);
    return to_host(y, stream);
  };
  const auto all = run(0, rows);
  for (const int count : {1, 3, 8, 9, 16, 17, 130})
    for (const int first : {0, 5, 61}) {
      const auto some = run(first, count);
      ASSERT_TRUE(std::equal(some.begin(), some.end(), all.begin() + static_cast<std::ptrdiff_t>(first) * N)) << count << " from " << first;
    }
}

INSTANTIATE_TEST_SUITE_P(shapes, Linear,
                         ::testing::Values(Case{16, 32, 1, false}, Case{1, 1, 1, false}, Case{5, 7, 3, false}, Case{324, 1024, 9, false},
                                           Case{100, 330, 16, false}, Case{257, 72, 40, false}, Case{130, 640, 129, false},
                                           Case{48, 10400, 2, false}, Case{16, 128, 1, true}, Case{37, 200, 5, true},
                                           Case{256, 2560, 12, true}, Case{128, 256, 140, true}, Case{300, 1920, 400, true},
                                           Case{300, 2048, 400, false}, Case{130, 129, 20, true}),
                         [](const auto& test) {
                           return std::to_string(test.param.N) + "_by_" + std::to_string(test.param.K) + "_rows_" +
                                  std::to_string(test.param.T) + (test.param.fp8 ? "_fp8" : "_bf16");
                         });

// Groups: every row must meet its own expert's weights, whatever the sizes of the groups.
class GroupedLinear : public ::testing::TestWithParam<std::vector<int>> {};

TEST_P(GroupedLinear, equals_one_product_per_group) {
  const std::vector<int>& sizes = GetParam();
  const int E = static_cast<int>(sizes.size()), N = 40, num_x_rows = 23;
  for (const int K : {256, 704})
    for (const bool fp8 : {false, true}) {
      Stream stream;
      std::vector<Weight> experts;
      for (int e = 0; e < E; ++e) experts.emplace_back(N, K, fp8, 100 + e, stream);
      const std::size_t stride = experts[0].linear.data_bytes(), scale_stride = experts[0].scales.size();
      DeviceBuffer<std::byte> data(stride * E, "experts");
      DeviceBuffer<float> scales(std::max<std::size_t>(scale_stride * E, 1), "scales");
      std::vector<int> first{0}, active, token;
      std::vector<int2> tiles;
      for (int e = 0; e < E; ++e) {
        stream.copy(data.data() + e * stride, experts[e].data.data(), stride);
        stream.copy(scales.data() + e * scale_stride, experts[e].device_scales.data(), scale_stride * sizeof(float));
        if (sizes[e] > 0) active.push_back(e);
        for (int row = 0; row < sizes[e]; row += kGroupTileRows) tiles.push_back({e, first.back() + row});
        first.push_back(first.back() + sizes[e]);
      }
      const int rows = first.back();
      for (int i = 0; i < rows; ++i) token.push_back(i * 7 % num_x_rows);
      const auto x = random_bf16(static_cast<std::size_t>(num_x_rows) * K, 9);
      const auto device_x = to_device(x, stream);
      const auto device_first = to_device(first, stream), device_active = to_device(active, stream),
                 device_token = to_device(token, stream);
      const auto counts = to_device(std::vector<int>{static_cast<int>(active.size()), static_cast<int>(tiles.size())}, stream);
      const auto device_tiles = to_device(tiles, stream);
      DeviceLinear w = experts[0].linear;
      w.data = data.data(), w.scales = scales.data();
      const LinearGroups groups{.num_groups = E,
                                .num_active_bound = E,
                                .num_tiles_bound = static_cast<int>(tiles.size()) + 3,
                                .first = device_first.data(),
                                .active = device_active.data(),
                                .num_active = counts.data(),
                                .tiles = device_tiles.data(),
                                .num_tiles = counts.data() + 1,
                                .data_stride = stride,
                                .scale_stride = scale_stride,
                                .x_rows = device_token.data(),
                                .num_x_rows = num_x_rows};
      DeviceBuffer<bf16> y(static_cast<std::size_t>(rows) * N, "y"), alone(N, "one row");
      linear(w, {.T = rows, .x = device_x.data(), .ldx = K, .y = y.data(), .ldy = N, .groups = &groups}, stream);
      const auto got = to_host(y, stream);
      for (int e = 0; e < E; ++e)
        for (int i = first[e]; i < first[e + 1]; ++i) {
          linear(experts[e].linear,
                 {.T = 1, .x = device_x.data() + static_cast<std::size_t>(token[i]) * K, .ldx = K, .y = alone.data(), .ldy = N}, stream);
          const auto one = to_host(alone, stream);
          ASSERT_TRUE(std::equal(one.begin(), one.end(), got.begin() + static_cast<std::ptrdiff_t>(i) * N))
              << "expert " << e << " row " << i;
        }
    }
}

INSTANTIATE_TEST_SUITE_P(sizes, GroupedLinear,
                         ::testing::Values(std::vector<int>{1}, std::vector<int>{0, 3, 0, 1}, std::vector<int>{9, 0, 17, 2},
                                           std::vector<int>{0, 140, 1, 40}, std::vector<int>{129, 128}));

}  // namespace
}  // namespace tetrad::cuda
