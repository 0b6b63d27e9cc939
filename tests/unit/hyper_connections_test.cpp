#include "cpu/hyper_connections.h"

#include <gtest/gtest.h>

#include "support/op_rig.h"

namespace tetrad::cpu::hyper_connections_test {
namespace {

using test::Bounded;
using test::BoundedRow;

struct HcModel {
  HcModel(const Config& c, bool with_inject, unsigned seed) : random(seed) {
    const int width = c.streams_size();
    scale = random.row(width, 1.0);
    down = test::Matrix(c.hc_lowrank, width, random, 1.0 / std::sqrt(width));
    up = test::Matrix(width, c.hc_lowrank, random, 1.0 / std::sqrt(c.hc_lowrank));
    inject = test::Matrix(c.hc_count, width, random, 1.0 / std::sqrt(width));
    test::Matrix stacked = down;
    if (with_inject) {
      stacked.rows += inject.rows;
      stacked.values.insert(stacked.values.end(), inject.values.begin(), inject.values.end());
    }
    packed.norm_scale = scale;
    packed.down_inject = stacked.pack();
    packed.up = up.pack();
    packed.has_inject = with_inject;
  }

  // x [D] and the injection weights [HC] of one token.
  std::pair<BoundedRow, BoundedRow> oracle(const Config& c, std::span<const float> streams) const {
    const Bounded HC(c.hc_count);
    const BoundedRow normed = test::bounded_norm(test::exactly(streams), scale, c.rms_norm_eps, c.hc_count);
    BoundedRow low = down.times(normed);
    for (Bounded& a : low) a = bf(test::bounded_silu(bf(a / HC)));
    BoundedRow gate = up.times(low);
    BoundedRow x;
    for (int d = 0; d < c.hidden_size; ++d) {
      BoundedRow products;
      for (int s = 0; s < c.hc_count; ++s) {
        const auto i = static_cast<std::size_t>(s * c.hidden_size + d);
        products.push_back(bf(bf(test::bounded_sigmoid(gate[i])) * normed[i]));
      }
      x.push_back(bf(test::bounded_sum(products) / HC));
    }
    BoundedRow weights = inject.times(normed);
    for (Bounded& w : weights) w = Bounded(2.0) * bf(test::bounded_sigmoid(bf(w / HC)));
    return {x, weights};
  }

  test::RandomValues random;
  std::vector<float> scale;
  test::Matrix down, up, inject;
  PackedHc packed;
};

TEST(hyper_connections, mix_agrees_with_double) {
  for (const int streams : {2, 3, 4}) {
    for (const bool with_inject : {true, false}) {
      Config c = test::small_config();
      c.hc_count = streams;
      HcModel model(c, with_inject, static_cast<unsigned>(streams));
      test::OpRig rig(c, 16, 3);
      for (const int T : {0, 1, 5, 16}) {
        const std::vector<float> h = model.random.row(T * c.streams_size(), 2.0);
        std::vector<float> x(static_cast<std::size_t>(T * c.hidden_size)), inject(static_cast<std::size_t>(T * streams));
        hc_mix(model.packed, c, T, h.data(), x.data(), with_inject ? inject.data() : nullptr, rig.ws, rig.pool);
        for (int t = 0; t < T; ++t) {
          const auto [expected_x, expected_inject] = model.oracle(
              c, std::span(h).subspan(static_cast<std::size_t>(t * c.streams_size()), static_cast<std::size_t>(c.streams_size())));
          test::expect_within({x.data() + t * c.hidden_size, static_cast<std::size_t>(c.hidden_size)}, expected_x, 0.1, "x");
          if (!with_inject) continue;
          test::expect_within({inject.data() + t * streams, static_cast<std::size_t>(streams)}, expected_inject, 0.1, "inject");
        }
      }
    }
  }
}

TEST(hyper_connections, inject_hand_numbers) {
  Config c = test::small_config();
  c.hidden_size = 3;
  c.hc_count = 2;
  ThreadPool pool(2);
  std::vector<float> h{1, 2, 3, 4, 5, 6};
  const std::vector<float> y{1, -1, 0.5f}, inject{2.0f, 0.25f};
  hc_inject(c, 0, h.data(), inject.data(), y.data(), pool);
  EXPECT_EQ(h, (std::vector<float>{1, 2, 3, 4, 5, 6}));
  hc_inject(c, 1, h.data(), inject.data(), y.data(), pool);
  EXPECT_EQ(h, (std::vector<float>{3, 0, 4, 4.25f, 4.75f, 6.125f}));
}

TEST(hyper_connections, inject_rounds_the_product_and_the_sum) {
  Config c = test::small_config();
  c.hidden_size = 1;
  c.hc_count = 2;
  ThreadPool pool(1);
  // 1.0078125 * 0.99609375 = 1.00387..., which rounds to 1: 256 + 1 is a tie that goes to 256, where 257.00387 would go to 258.
  std::vector<float> h{0.0f, 256.0f};
  const std::vector<float> y{1.0078125f}, inject{0.99609375f, 0.99609375f};
  hc_inject(c, 1, h.data(), inject.data(), y.data(), pool);
  EXPECT_EQ(h[0], 1.0f);
  EXPECT_EQ(h[1], 256.0f);
}

TEST(hyper_connections, rows_do_not_meet) {
  const Config c = test::small_config();
  HcModel model(c, true, 9);
  test::OpRig rig(c, 4, 2);
  std::vector<float> h = model.random.row(3 * c.streams_size(), 1.0);
  std::vector<float> clean(static_cast<std::size_t>(3 * c.hidden_size)), poisoned(clean.size()), inject(12);
  hc_mix(model.packed, c, 3, h.data(), clean.data(), inject.data(), rig.ws, rig.pool);
  h[static_cast<std::size_t>(c.streams_size())] = std::nanf("");  // first element of row 1
  hc_mix(model.packed, c, 3, h.data(), poisoned.data(), inject.data(), rig.ws, rig.pool);
  for (int i = 0; i < 3 * c.hidden_size; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const bool own = i / c.hidden_size == 1;
    EXPECT_TRUE(own ? std::isnan(poisoned[at]) : poisoned[at] == clean[at]) << i;
  }
}

}  // namespace
}  // namespace tetrad::cpu::hyper_connections_test
