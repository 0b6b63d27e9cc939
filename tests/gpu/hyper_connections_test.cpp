// hyper_connections against host loops over ragged widths; one pass gives the bits of two.
#include "cuda/kernels/hyper_connections.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "device_arrays.h"

namespace tetrad::cuda {
namespace {

using test::random_bf16;
using test::to_device;
using test::to_host;

struct Case {
  int T, HC, D;
};

class HyperConnections : public ::testing::TestWithParam<Case> {
 protected:
  HyperConnections() : width(static_cast<std::size_t>(GetParam().HC) * GetParam().D) {
    const auto [T, HC, D] = GetParam();
    s = {HC, D, 7, 1e-6f};
    streams = random_bf16(T * width, 1), y = random_bf16(static_cast<std::size_t>(T) * D, 2),
    inject = random_bf16(static_cast<std::size_t>(T) * HC, 3);
    gate = random_bf16(T * width, 4, 3.0f);
    for (const bf16 v : random_bf16(width, 5, 0.1f)) scale.push_back(1 + to_float(v));
  }
  std::vector<bf16> injected() const {
    std::vector<bf16> h = streams;
    for (std::size_t i = 0; i < h.size(); ++i) {
      const std::size_t t = i / width, stream_of = i % width / s.D, d = i % s.D;
      const float product = round_bf16(to_float(inject[t * s.HC + stream_of]) * to_float(y[t * s.D + d]));
      h[i] = to_bf16(to_float(h[i]) + product);
    }
    return h;
  }

  Stream stream;
  std::size_t width;
  HcShape s{};
  std::vector<bf16> streams, y, inject, gate;
  std::vector<float> scale;
};

TEST_P(HyperConnections, inject_equals_a_host_loop) {
  auto h = to_device(streams, stream);
  const auto device_inject = to_device(inject, stream), device_y = to_device(y, stream);
  hc_inject(s, GetParam().T, device_inject.data(), device_y.data(), h.data(), stream);
  EXPECT_EQ(to_host(h, stream), injected());
}

TEST_P(HyperConnections, norm_equals_a_host_loop_and_one_pass_gives_the_bits_of_two) {
  const int T = GetParam().T, ld = static_cast<int>(width);
  const auto device_inject = to_device(inject, stream), device_y = to_device(y, stream);
  const auto device_scale = to_device(scale, stream);
  auto h = to_device(injected(), stream), normed = to_device(std::vector<bf16>(T * width), stream);
  const auto norm = [&](bool shared, bf16* out) {
    norm_rows({.T = T,
               .groups = s.HC,
               .D = s.D,
               .eps = s.eps,
               .x = h.data(),
               .ldx = ld,
               .scale = device_scale.data(),
               .shared_scale = shared,
               .out = out,
               .ldo = ld},
              stream);
  };
  norm(false, normed.data());
  const auto two = to_host(normed, stream), host = injected();
  for (std::size_t first = 0; first < host.size(); first += s.D) {
    double squares = 0;
    for (int d = 0; d < s.D; ++d) squares += std::pow(to_float(host[first + d]), 2);
    const double inverse = 1 / std::sqrt(squares / s.D + s.eps);
    for (int d = 0; d < s.D; ++d) {
      const double expected = to_float(host[first + d]) * inverse * scale[first % width + d];
      ASSERT_NEAR(to_float(two[first + d]), expected, 0x1p-8 * std::fabs(expected)) << first << " " << d;
    }
  }

  auto once = to_device(streams, stream);
  auto out = to_device(std::vector<bf16>(T * width), stream);
  hc_inject_norm_rows(s, T, device_inject.data(), device_y.data(), once.data(), device_scale.data(), out.data(), stream);
  EXPECT_EQ(to_host(once, stream), host);
  EXPECT_EQ(to_host(out, stream), two);
  once = to_device(streams, stream);
  hc_inject_norm(s, T, device_inject.data(), device_y.data(), once.data(), device_scale.data(), out.data(), stream);
  EXPECT_EQ(to_host(once, stream), host);
  EXPECT_EQ(to_host(out, stream), two);
  // In place, with one scale for every part: the first part meets the same numbers.
  norm(true, h.data());
  const auto in_place = to_host(h, stream);
  EXPECT_TRUE(std::equal(in_place.begin(), in_place.begin() + s.D, two.begin()));
}

TEST_P(HyperConnections, mean_equals_a_host_loop) {
  const int T = GetParam().T;
  const auto device_gate = to_device(gate, stream), normed = to_device(streams, stream);
  auto x = to_device(std::vector<bf16>(static_cast<std::size_t>(T) * s.D), stream);
  hc_mean(s, T, device_gate.data(), normed.data(), x.data(), stream);
  const auto got = to_host(x, stream);
  for (int t = 0; t < T; ++t)
    for (int d = 0; d < s.D; ++d) {
      double sum = 0, magnitude = 0;
      for (int h = 0; h < s.HC; ++h) {
        const std::size_t place = t * width + static_cast<std::size_t>(h) * s.D + d;
        const double g = round_bf16(static_cast<float>(1 / (1 + std::exp(-static_cast<double>(to_float(gate[place]))))));
        const double product = round_bf16(static_cast<float>(g * to_float(streams[place])));
        sum += product, magnitude += std::fabs(product);
      }
      // A gate or a product may round to the other side: two units of bf16.
      ASSERT_NEAR(to_float(got[static_cast<std::size_t>(t) * s.D + d]), sum / s.HC,
                  0x1p-8 * std::fabs(sum / s.HC) + 0x1p-6 * magnitude / s.HC);
    }
}

// Every bf16 as a gate: pieces of eight take another way to the sigmoid than single elements do.
TEST(hyper_connections, mean_has_the_same_bits_in_pieces_and_by_element) {
  Stream stream;
  constexpr int kAll = 1 << 16;
  std::vector<bf16> every(kAll);
  for (int i = 0; i < kAll; ++i) every[i] = bf16{static_cast<std::uint16_t>(i)};
  const auto gate = to_device(every, stream), ones = to_device(std::vector<bf16>(kAll, to_bf16(1.0f)), stream);
  const auto mean = [&](int D) {
    auto x = to_device(std::vector<bf16>(kAll), stream);
    hc_mean({1, D, 1, 0.0f}, 1, gate.data(), ones.data(), x.data(), stream);
    auto values = to_host(x, stream);
    values.resize(kAll - 1);
    return values;
  };
  EXPECT_EQ(mean(kAll), mean(kAll - 1));
}

INSTANTIATE_TEST_SUITE_P(shapes, HyperConnections,
                         ::testing::Values(Case{1, 4, 16}, Case{3, 3, 30}, Case{20, 4, 2560}, Case{5, 2, 4100}, Case{17, 5, 264},
                                           Case{2, 2, 4112}),
                         [](const auto& test) {
                           return std::to_string(test.param.T) + "_rows_of_" + std::to_string(test.param.HC) + "_by_" +
                                  std::to_string(test.param.D);
                         });

}  // namespace
}  // namespace tetrad::cuda
