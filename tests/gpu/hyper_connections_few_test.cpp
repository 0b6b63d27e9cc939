// The launches of hyper_connections for few rows give the bits of those for many, for every number of rows they take.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "cuda/kernels/hyper_connections.h"
#include "device_weight.h"

namespace tetrad::cuda {
namespace {

using test::random_bf16;
using test::to_device;
using test::to_host;

constexpr bf16 kSentinel{0x7b7b};
constexpr int kRows = 70;  // of the run to compare with

struct Case {
  int HC, D, LR;
};

// What a sub-block makes of the streams of T rows; with `final` without injection weights.
struct Mixed {
  std::vector<bf16> h, normed, low, inject, x;
};

class FewStreams : public ::testing::TestWithParam<Case> {
 protected:
  FewStreams()
      : s{GetParam().HC, GetParam().D, GetParam().LR, 1e-6f},
        width(s.HC * s.D),
        low_ld((s.LR + s.HC + 7) / 8 * 8),
        down(s.LR + s.HC, width, false, 21, stream),
        final_down(s.LR, width, false, 22, stream),
        up(width, s.LR, false, 23, stream),
        streams(random_bf16(static_cast<std::size_t>(kRows * width), 1)),
        y(random_bf16(static_cast<std::size_t>(kRows * s.D), 2)),
        inject(random_bf16(static_cast<std::size_t>(kRows * s.HC), 3)) {
    for (const bf16 v : random_bf16(static_cast<std::size_t>(width), 5, 0.1f)) scale.push_back(1 + to_float(v));
    device_y = to_device(y, stream), device_inject = to_device(inject, stream), device_scale = to_device(scale, stream);
  }
  // A row more than there are, of sentinels.
  DeviceBuffer<bf16> rows(int T, int row_width) const {
    return to_device(std::vector<bf16>(static_cast<std::size_t>((T + 1) * row_width), kSentinel), stream);
  }
  DeviceBuffer<bf16> streams_of(int T) const {
    std::vector<bf16> some(streams.begin(), streams.begin() + static_cast<std::ptrdiff_t>(T) * width);
    some.resize(static_cast<std::size_t>((T + 1) * width), kSentinel);
    return to_device(some, stream);
  }

  enum class Way { kMany, kFew, kFewSums, kFewest };
  // False in `taken` where the way does not apply.
  Mixed mix(Way way, int T, bool injects, bool final, bool* taken) const {
    auto h = streams_of(T), h_after = rows(T, width), normed = rows(T, width), logits = rows(T, low_ld), low = rows(T, low_ld),
         new_inject = rows(T, s.HC), gate = rows(T, width), x = rows(T, s.D);
    const DeviceLinear& w = final ? final_down.linear : down.linear;
    const bf16* before = injects ? device_inject.data() : nullptr;
    bf16* after = final ? nullptr : new_inject.data();
    *taken = true;
    if (way == Way::kMany) {
      if (injects)
        hc_inject_norm_rows(s, T, before, device_y.data(), h.data(), device_scale.data(), normed.data(), stream);
      else
        norm_rows({.T = T,
                   .groups = s.HC,
                   .D = s.D,
                   .eps = s.eps,
                   .x = h.data(),
                   .ldx = width,
                   .scale = device_scale.data(),
                   .shared_scale = false,
                   .out = normed.data(),
                   .ldo = width},
                  stream);
      linear(w, {.T = T, .x = normed.data(), .ldx = width, .y = logits.data(), .ldy = low_ld}, stream);
      hc_activate(s, T, logits.data(), low_ld, low.data(), low_ld, after, stream);
      linear(up.linear, {.T = T, .x = low.data(), .ldx = low_ld, .y = gate.data(), .ldy = width}, stream);
      hc_mean(s, T, gate.data(), normed.data(), x.data(), stream);
      return {to_host(h, stream), to_host(normed, stream), to_host(low, stream), to_host(new_inject, stream), to_host(x, stream)};
    }
    if (way == Way::kFewest) {
      const HcInjection a{before, device_y.data(), h.data(), device_scale.data(), h_after.data(), normed.data()};
      *taken = hc_inject_down(s, w, T, a, low.data(), low_ld, after, stream);
    } else {
      hc_inject_norm(s, T, before, device_y.data(), h.data(), device_scale.data(), normed.data(), stream);
      if (way == Way::kFew) {
        *taken = hc_down(s, w, T, normed.data(), low.data(), low_ld, after, stream);
      } else {
        const int segments = linear_segments(w), ld = w.row_fragments() * kFragmentRows;
        auto sums = to_device(std::vector<float>(static_cast<std::size_t>(segments * T * ld)), stream);
        linear_sums(w, {.T = T, .x = normed.data(), .ldx = width}, sums.data(), stream);
        hc_activate_sums(s, T, sums.data(), segments, ld, low.data(), low_ld, after, stream);
      }
    }
    if (!*taken) return {};
    hc_up_mean(s, up.linear, T, low.data(), low_ld, normed.data(), x.data(), stream);
    return {to_host(way == Way::kFewest ? h_after : h, stream), to_host(normed, stream), to_host(low, stream), to_host(new_inject, stream),
            to_host(x, stream)};
  }

  // Columns [0, columns) of T rows, and the sentinels of the row after them.
  void expect_rows(const std::vector<bf16>& got, const std::vector<bf16>& many, int T, int ld, int columns, const std::string& what) const {
    for (int t = 0; t < T; ++t)
      ASSERT_TRUE(std::equal(got.begin() + static_cast<std::ptrdiff_t>(t) * ld, got.begin() + static_cast<std::ptrdiff_t>(t) * ld + columns,
                             many.begin() + static_cast<std::ptrdiff_t>(t) * ld))
          << what << ", row " << t;
    for (int i = 0; i < ld; ++i) ASSERT_EQ(got[static_cast<std::size_t>(T * ld + i)], kSentinel) << what << ", past the last row";
  }
  void expect_same(Way way, const char* name, int T, bool injects, bool final, const Mixed& many, int* taken_rows) const {
    bool taken = false;
    const Mixed got = mix(way, T, injects, final, &taken);
    if (!taken) return;
    *taken_rows = T;
    const std::string what = fmt::format("{} of {} rows{}{}", name, T, injects ? "" : ", norm only", final ? ", final" : "");
    expect_rows(got.h, many.h, T, width, width, what + ": h");
    expect_rows(got.normed, many.normed, T, width, width, what + ": normed");
    expect_rows(got.low, many.low, T, low_ld, s.LR, what + ": low");
    expect_rows(got.x, many.x, T, s.D, s.D, what + ": x");
    if (!final) expect_rows(got.inject, many.inject, T, s.HC, s.HC, what + ": inject");
  }

  Stream stream;
  HcShape s;
  int width, low_ld;
  test::Weight down, final_down, up;
  std::vector<bf16> streams, y, inject;
  std::vector<float> scale;
  DeviceBuffer<bf16> device_y, device_inject;
  DeviceBuffer<float> device_scale;
};

TEST_P(FewStreams, give_the_bits_of_many) {
  const int most = hc_few_rows(s, stream);
  for (const bool final : {false, true}) {
    bool taken = false;
    const Mixed many = mix(Way::kMany, kRows, true, final, &taken);
    int down_rows = 0, sums_rows = 0, fewest_rows = 0;
    for (int T = 1; T <= most; ++T) {
      expect_same(Way::kFew, "hc_down", T, true, final, many, &down_rows);
      if (T <= kFewLinearRows) expect_same(Way::kFewSums, "linear_sums", T, true, final, many, &sums_rows);
      expect_same(Way::kFewest, "hc_inject_down", T, true, final, many, &fewest_rows);
      if (HasFatalFailure()) return;
    }
    std::printf("hc_down up to %d rows, linear_sums up to %d, hc_inject_down up to %d\n", down_rows, sums_rows, fewest_rows);
    EXPECT_EQ(sums_rows, kFewLinearRows);
    if (stream.hopper() && most == kHcFewRows) {
      EXPECT_EQ(down_rows, kHcFewRows) << "the forward relies on it";
    }
    if (stream.hopper() && s.HC == 4 && s.D % 320 == 0 && s.D <= 2560) {
      EXPECT_GE(fewest_rows, 1) << "made for this shape";
    }
  }
}

TEST_P(FewStreams, give_the_bits_of_many_without_an_injection) {
  bool taken = false;
  const Mixed many = mix(Way::kMany, kRows, false, false, &taken);
  for (const int T : {1, 2, 4, 7, 16}) {
    int rows_taken = 0;
    expect_same(Way::kFew, "hc_down", T, false, false, many, &rows_taken);
    expect_same(Way::kFewSums, "linear_sums", T, false, false, many, &rows_taken);
    bool fewest = false;
    const Mixed got = mix(Way::kFewest, T, false, false, &fewest);
    if (fewest) expect_rows(got.x, many.x, T, s.D, s.D, "hc_inject_down, norm only: x");
  }
}

INSTANTIATE_TEST_SUITE_P(shapes, FewStreams,
                         ::testing::Values(Case{4, 2560, 320}, Case{4, 320, 24}, Case{4, 960, 40}, Case{4, 64, 16}, Case{3, 48, 12},
                                           Case{2, 4112, 48}, Case{5, 272, 33}, Case{1, 16, 5}),
                         [](const auto& p) { return fmt::format("{}_by_{}_low_{}", p.param.HC, p.param.D, p.param.LR); });

}  // namespace
}  // namespace tetrad::cuda
