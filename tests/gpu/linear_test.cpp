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
  int scale_rows = 1;
};

class Linear : public ::testing::TestWithParam<Case> {};

// Rows of y that start at multiples of 16 bytes leave in whole pieces, others by element.
TEST_P(Linear, equals_a_double_sum_and_writes_nothing_else) {
  const auto [N, K, T, fp8, scale_rows] = GetParam();
  Stream stream;
  const Weight w(N, K, fp8, 7, stream, 128, scale_rows);
  const int ldx = (K + 7) / 8 * 8 + 8;
  const auto x = random_bf16(static_cast<std::size_t>(T) * ldx, 3);
  const auto device_x = to_device(x, stream);
  std::vector<bf16> first;
  for (const int ldy : {N + 5, (N + 7) / 8 * 8 + 8}) {
    auto y = to_device(std::vector<bf16>(static_cast<std::size_t>(T + 1) * ldy, kSentinel), stream);
    linear(w.linear, {.T = T, .x = device_x.data(), .ldx = ldx, .y = y.data(), .ldy = ldy}, stream);
    const auto got = to_host(y, stream);
    for (int t = 0; t <= T; ++t)
      for (int n = t < T ? N : 0; n < ldy; ++n)
        ASSERT_EQ(got[static_cast<std::size_t>(t) * ldy + n], kSentinel)
            << "beside y at t " << t << " n " << n << ", rows " << ldy << " apart";
    if (!first.empty()) {
      for (int t = 0; t < T; ++t)
        ASSERT_TRUE(std::equal(first.begin() + static_cast<std::ptrdiff_t>(t) * (N + 5),
                               first.begin() + static_cast<std::ptrdiff_t>(t) * (N + 5) + N,
                               got.begin() + static_cast<std::ptrdiff_t>(t) * ldy))
            << "row " << t << " differs where rows are " << ldy << " apart";
      continue;
    }
    first = got;
    ASSERT_LE(test::linear_distance(
                  w, T, [&](int t) { return x.data() + static_cast<std::ptrdiff_t>(t) * ldx; }, got, ldy),
              1.0)
        << "of what rounding allows";
  }
}

TEST_P(Linear, a_row_has_the_same_bits_alone_and_among_others) {
  const auto [N, K, T, fp8, scale_rows] = GetParam();
  Stream stream;
  const Weight w(N, K, fp8, 11, stream, 128, scale_rows);
  const int ldx = (K + 7) / 8 * 8, rows = std::max(T, 200);
  const auto x = to_device(random_bf16(static_cast<std::size_t>(rows) * ldx, 5), stream);
  const auto run = [&](int first, int count) {
    DeviceBuffer<bf16> y(static_cast<std::size_t>(count) * N, "y");
    linear(w.linear, {.T = count, .x = x.data() + static_cast<std::size_t>(first) * ldx, .ldx = ldx, .y = y.data(), .ldy = N}, stream);
    return to_host(y, stream);
  };
  const auto all = run(0, rows);
  for (const int count : {1, 3, 8, 9, 16, 17, 32, 33, 130})
    for (const int first : {0, 5, 61}) {
      const auto some = run(first, count);
      ASSERT_TRUE(std::equal(some.begin(), some.end(), all.begin() + static_cast<std::ptrdiff_t>(first) * N)) << count << " from " << first;
    }
}

INSTANTIATE_TEST_SUITE_P(
    shapes, Linear,
    ::testing::Values(Case{16, 32, 1, false}, Case{1, 1, 1, false}, Case{5, 7, 3, false}, Case{324, 1024, 9, false},
                      Case{100, 330, 16, false}, Case{257, 72, 40, false}, Case{130, 640, 129, false}, Case{48, 10400, 2, false},
                      Case{16, 128, 1, true}, Case{37, 200, 5, true}, Case{256, 2560, 12, true}, Case{128, 256, 140, true},
                      Case{300, 1920, 400, true}, Case{300, 2048, 400, false}, Case{130, 129, 20, true},
                      // Tiles of 128 by 128 on tensor cores: rows just past a tile, outputs past one, K past a stage.
                      Case{130, 1000, 129, false}, Case{257, 712, 131, false}, Case{129, 649, 256, false}, Case{384, 970, 257, false},
                      Case{40, 320, 400, false}, Case{200, 1100, 300, true}, Case{384, 896, 129, true, 16}, Case{130, 1000, 255, true, 16},
                      // So wide that 17 rows take them, too, and that tiles of many rows are one wave.
                      Case{12808, 300, 17, false}, Case{12808, 300, 190, false},
                      // More tiles than multiprocessors, whole segments, and a rest.
                      Case{6500, 640, 400, false}, Case{6500, 704, 400, false}, Case{6500, 512, 400, true, 16},
                      // More strips of 16 outputs than multiprocessors, or than clusters of them; a last segment that is short.
                      Case{4300, 2560, 30, false}, Case{2200, 2496, 7, false}, Case{1100, 6144, 31, false}, Case{600, 2624, 12, false},
                      Case{48, 6144, 9, false}),
    [](const auto& test) {
      return std::to_string(test.param.N) + "_by_" + std::to_string(test.param.K) + "_rows_" + std::to_string(test.param.T) +
             (test.param.fp8 ? "_fp8" : "_bf16") + (test.param.scale_rows > 1 ? "_shared_scales" : "");
    });

// Groups: every row must meet its own expert's weights, whatever the sizes of the groups.
class GroupedLinear : public ::testing::TestWithParam<std::vector<int>> {};

TEST_P(GroupedLinear, equals_one_product_per_group) {
  const std::vector<int>& sizes = GetParam();
  const int E = static_cast<int>(sizes.size()), num_x_rows = 23;
  struct Shape {
    int N, K;
    bool fp8;
    int scale_rows;
  };
  for (const auto& [N, K, fp8, scale_rows] :
       {Shape{40, 256, false, 1}, Shape{40, 256, true, 1}, Shape{136, 704, false, 1}, Shape{136, 704, true, 1}, Shape{144, 1000, true, 16},
        Shape{150, 2560, false, 1}, Shape{150, 2560, true, 16}}) {
    Stream stream;
    const test::Experts experts(E, N, K, fp8, 100, stream, 128, scale_rows);
    std::vector<int> first{0}, active, token;
    std::vector<int2> tiles;
    for (int e = 0; e < E; ++e) {
      if (sizes[e] > 0) active.push_back(e);
      for (int row = 0; row < sizes[e]; row += kGroupTileRows) tiles.push_back({e, first.back() + row});
      first.push_back(first.back() + sizes[e]);
    }
    const int rows = first.back(), ldy = N + 3;
    for (int i = 0; i < rows; ++i) token.push_back(i * 7 % num_x_rows);
    const auto device_x = to_device(random_bf16(static_cast<std::size_t>(num_x_rows) * K, 9), stream);
    const auto device_first = to_device(first, stream), device_active = to_device(active, stream), device_token = to_device(token, stream);
    const auto counts = to_device(std::vector<int>{static_cast<int>(active.size()), static_cast<int>(tiles.size())}, stream);
    const auto device_tiles = to_device(tiles, stream);
    const LinearGroups groups{.num_groups = E,
                              .num_active_bound = E,
                              .num_tiles_bound = static_cast<int>(tiles.size()) + 3,
                              .first = device_first.data(),
                              .active = device_active.data(),
                              .num_active = counts.data(),
                              .tiles = device_tiles.data(),
                              .num_tiles = counts.data() + 1,
                              .data_stride = experts.stride,
                              .scale_stride = experts.scale_stride,
                              .x_rows = device_token.data(),
                              .num_x_rows = num_x_rows};
    auto y = to_device(std::vector<bf16>(static_cast<std::size_t>(rows + 1) * ldy, kSentinel), stream);
    linear(experts.linear, {.T = rows, .x = device_x.data(), .ldx = K, .y = y.data(), .ldy = ldy, .groups = &groups}, stream);
    const auto got = to_host(y, stream);
    for (int i = 0; i <= rows; ++i)
      for (int n = i < rows ? N : 0; n < ldy; ++n)
        ASSERT_EQ(got[static_cast<std::size_t>(i) * ldy + n], kSentinel) << "beside y at row " << i << " column " << n;
    // A row of x has one product with each expert.
    for (int e = 0; e < E; ++e) {
      if (sizes[e] == 0) continue;
      DeviceBuffer<bf16> alone(static_cast<std::size_t>(num_x_rows) * N, "every row");
      for (int row = 0; row < num_x_rows; ++row)
        linear(experts.each[e].linear,
               {.T = 1, .x = device_x.data() + static_cast<std::ptrdiff_t>(row) * K, .ldx = K, .y = alone.data() + row * N, .ldy = N},
               stream);
      const auto one = to_host(alone, stream);
      for (int i = first[e]; i < first[e + 1]; ++i)
        ASSERT_TRUE(
            std::equal(one.begin() + token[i] * N, one.begin() + (token[i] + 1) * N, got.begin() + static_cast<std::ptrdiff_t>(i) * ldy))
            << "expert " << e << " row " << i << ", N " << N << " K " << K << (fp8 ? " FP8" : "");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(sizes, GroupedLinear,
                         ::testing::Values(std::vector<int>{1}, std::vector<int>{0, 3, 0, 1}, std::vector<int>{9, 0, 17, 2},
                                           std::vector<int>{0, 140, 1, 40}, std::vector<int>{129, 128},
                                           std::vector<int>{200, 1, 64, 65, 96, 97, 0, 150}, std::vector<int>{193, 2, 31, 63, 95, 128},
                                           std::vector<int>{170, 16, 145, 192, 176, 385}));

}  // namespace
}  // namespace tetrad::cuda
