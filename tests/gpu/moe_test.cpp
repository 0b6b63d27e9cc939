// moe against host loops: routing with ties, grouping, combination; the kernels for few rows give the bits of those for many, for every
// number of rows they take; a row that is not finite fails alone.
#include "cuda/kernels/moe.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "device_weight.h"

namespace tetrad::cuda {
namespace {

using test::random_bf16;
using test::to_device;
using test::to_host;

constexpr bf16 kSentinel{0x7b7b};
constexpr int kUntouched = -77;
constexpr int padded(int width) { return (width + 7) / 8 * 8; }

// --- Routing ---

struct RouteCase {
  int E, EK;
  bool renormalise;
};
class Route : public ::testing::TestWithParam<RouteCase> {};

// Steps of 1/16: many ties, and logits that differ have probabilities that differ.
std::vector<bf16> logits_with_ties(int T, int ld, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<bf16> logits(static_cast<std::size_t>(T * ld));
  for (bf16& x : logits) x = to_bf16(static_cast<float>(static_cast<int>(random() % 97) - 48) / 16.0f);
  return logits;
}

struct Routed {
  std::vector<int> ids, faults;
  std::vector<float> weights;
};
Routed route(const MoeShape& s, const std::vector<bf16>& in, int T, int layer, std::vector<int> faults) {
  const Stream stream;
  auto ids = to_device(std::vector<int>(static_cast<std::size_t>((T + 1) * s.EK), kUntouched), stream);
  auto weights = to_device(std::vector<float>(static_cast<std::size_t>((T + 1) * s.EK), kUntouched), stream);
  auto device_faults = to_device(faults, stream);
  const auto device_in = to_device(in, stream);
  moe_route(s, device_in.data(), T, layer, ids.data(), weights.data(), device_faults.data(), stream);
  return {to_host(ids, stream), to_host(device_faults, stream), to_host(weights, stream)};
}

TEST_P(Route, equals_a_host_loop_with_ties) {
  const auto [E, EK, renormalise] = GetParam();
  const int T = 70, ld = padded(E) + 8;
  const MoeShape s{.E = E, .EK = EK, .F = 0, .FS = 0, .in_ld = ld, .renormalise = renormalise};
  const auto in = logits_with_ties(T, ld, 3);
  const Routed got = route(s, in, T, 5, std::vector<int>(T, 0));
  for (int t = 0; t < T; ++t) {
    const bf16* logits = in.data() + t * ld;
    std::vector<int> order(E);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return to_float(logits[a]) > to_float(logits[b]); });
    double sum = 0, chosen = 0;
    const double best = to_float(logits[order[0]]);
    for (int e = 0; e < E; ++e) sum += std::exp(to_float(logits[e]) - best);
    for (int k = 0; k < EK; ++k) chosen += std::exp(to_float(logits[order[k]]) - best) / sum;
    for (int k = 0; k < EK; ++k) {
      ASSERT_EQ(got.ids[t * EK + k], order[k]) << "row " << t << " pick " << k;
      const double p = std::exp(to_float(logits[order[k]]) - best) / sum, expected = renormalise ? p / chosen : p;
      ASSERT_NEAR(got.weights[t * EK + k], expected, expected * 0x1.01p-8) << "row " << t << " pick " << k;
      ASSERT_EQ(got.weights[t * EK + k], round_bf16(got.weights[t * EK + k])) << "weights are rounded";
    }
    ASSERT_EQ(got.faults[t], 0) << t;
  }
  for (int k = 0; k < EK; ++k) ASSERT_EQ(got.ids[T * EK + k], kUntouched);
}

TEST_P(Route, a_row_that_is_not_finite_fails_alone) {
  const auto [E, EK, renormalise] = GetParam();
  const int T = 9, ld = padded(E), layer = 5, fault = layer << 2 | static_cast<int>(FaultKind::kRouterLogits);
  const MoeShape s{.E = E, .EK = EK, .F = 0, .FS = 0, .in_ld = ld, .renormalise = renormalise};
  auto in = logits_with_ties(T, ld, 4);
  const Routed clean = route(s, in, T, layer, std::vector<int>(T, 0));
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  in[1 * ld + E - 1] = to_bf16(std::numeric_limits<float>::quiet_NaN());
  in[3 * ld] = to_bf16(kInfinity);
  in[6 * ld + E / 2] = to_bf16(-kInfinity);
  in[7 * ld + 1] = to_bf16(std::numeric_limits<float>::quiet_NaN());
  std::vector<int> faults(T, 0);
  faults[7] = 123;  // of an earlier layer
  const Routed got = route(s, in, T, layer, faults);
  for (int t = 0; t < T; ++t) {
    const bool bad = t == 1 || t == 3 || t == 6 || t == 7;
    EXPECT_EQ(got.faults[t], t == 7 ? 123 : bad ? fault : 0) << "row " << t;
    for (int k = 0; k < EK; ++k) {
      EXPECT_EQ(got.ids[t * EK + k], bad ? k : clean.ids[t * EK + k]) << "row " << t << " pick " << k;
      if (bad)
        EXPECT_TRUE(std::isnan(got.weights[t * EK + k])) << "row " << t << " pick " << k;
      else
        EXPECT_EQ(got.weights[t * EK + k], clean.weights[t * EK + k]) << "row " << t << " pick " << k;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(experts, Route,
                         ::testing::Values(RouteCase{8, 2, true}, RouteCase{8, 8, false}, RouteCase{512, 10, true},
                                           RouteCase{512, 10, false}, RouteCase{600, 10, true}, RouteCase{31, 5, true}),
                         [](const auto& p) {
                           return fmt::format("{}_of_{}{}", p.param.EK, p.param.E, p.param.renormalise ? "" : "_plain");
                         });

// --- Grouping ---

// Room for the groups of T rows, with sentinels.
struct Grouping {
  Grouping(int T, int E, int EK, const Stream& stream) {
    const auto room = [&](int count) { return to_device(std::vector<int>(static_cast<std::size_t>(count), kUntouched), stream); };
    first = room(E + 1), place = room(T * EK), token = room(T * EK), active = room(E), counts = room(2);
    tiles = to_device(std::vector<int2>(static_cast<std::size_t>(T * EK / kGroupTileRows + 1 + E), int2{kUntouched, 0}), stream);
    records = to_device(std::vector<int4>(static_cast<std::size_t>(E), int4{kUntouched, 0, 0, 0}), stream);
    view = {first.data(), place.data(), token.data(), active.data(), counts.data(), tiles.data(), counts.data() + 1, records.data()};
  }
  LinearGroups groups(const test::Experts& experts, int T, int pairs) const {
    const int E = static_cast<int>(experts.each.size());
    return {.num_groups = E,
            .num_active_bound = std::min(E, pairs),
            .num_tiles_bound = pairs / kGroupTileRows + std::min(E, pairs),
            .first = view.first,
            .active = view.active,
            .num_active = view.num_active,
            .tiles = view.tiles,
            .num_tiles = view.num_tiles,
            .data_stride = experts.stride,
            .scale_stride = experts.scale_stride,
            .x_rows = view.token,
            .num_x_rows = T};
  }
  DeviceBuffer<int> first, place, token, active, counts;
  DeviceBuffer<int2> tiles;
  DeviceBuffer<int4> records;
  MoeGrouping view;
};

TEST(moe, grouping_puts_every_pair_into_its_experts_rows) {
  const Stream stream;
  for (const auto& [T, E, EK] : std::vector<std::array<int, 3>>{{1, 8, 2}, {37, 8, 3}, {300, 512, 10}, {40, 1200, 4}, {500, 2, 2}}) {
    std::mt19937 random(static_cast<unsigned>(T + E));
    std::vector<int> ids(static_cast<std::size_t>(T * EK));
    for (int& id : ids) id = static_cast<int>(random() % static_cast<unsigned>(E)) / 2 * 2;  // every other expert stays without rows
    const auto device_ids = to_device(ids, stream);
    const Grouping g(T, E, EK, stream);
    moe_group(device_ids.data(), T, E, EK, g.view, stream);
    const auto first = to_host(g.first, stream), place = to_host(g.place, stream), token = to_host(g.token, stream),
               active = to_host(g.active, stream), counts = to_host(g.counts, stream);
    const auto tiles = to_host(g.tiles, stream);
    const auto records = to_host(g.records, stream);
    std::vector<int> size(E, 0), seen(ids.size(), 0);
    for (const int id : ids) ++size[id];
    int begin = 0, num_active = 0, num_tiles = 0;
    for (int e = 0; e < E; ++e) {
      ASSERT_EQ(first[e], begin) << "expert " << e << " of " << E;
      if (size[e] > 0) {
        ASSERT_EQ(active[num_active], e);
        const int4 r = records[num_active];
        ASSERT_TRUE(r.x == e && r.y == begin && r.z == begin + size[e]) << "record of expert " << e;
        ++num_active;
      }
      for (int row = 0; row < size[e]; row += kGroupTileRows, ++num_tiles)
        ASSERT_TRUE(tiles[num_tiles].x == e && tiles[num_tiles].y == begin + row) << "tile " << num_tiles;
      begin += size[e];
    }
    ASSERT_EQ(first[E], T * EK);
    ASSERT_EQ(counts[0], num_active);
    ASSERT_EQ(counts[1], num_tiles);
    for (std::size_t i = num_active; i < active.size(); ++i) ASSERT_EQ(active[i], kUntouched);
    for (std::size_t i = num_tiles; i < tiles.size(); ++i) ASSERT_EQ(tiles[i].x, kUntouched);
    for (int i = 0; i < T * EK; ++i) {
      ASSERT_GE(place[i], first[ids[i]]) << "pair " << i;
      ASSERT_LT(place[i], first[ids[i] + 1]) << "pair " << i;
      ASSERT_EQ(token[place[i]], i / EK) << "pair " << i;
      ASSERT_EQ(seen[place[i]]++, 0) << "two pairs at " << place[i];
    }
  }
}

// --- Activation and combination ---

// Every bf16 as a gate: pieces of eight take another way to the silu than single elements do.
TEST(moe, activation_has_the_same_bits_in_pieces_and_by_element) {
  const Stream stream;
  constexpr int kAll = 1 << 16;
  const auto activate = [&](int F) {
    std::vector<bf16> hidden(static_cast<std::size_t>(2 * F), to_bf16(1.5f));
    for (int i = 0; i < F; ++i) hidden[i] = bf16{static_cast<std::uint16_t>(i)};
    const auto device_hidden = to_device(hidden, stream);
    auto act = to_device(std::vector<bf16>(kAll), stream);
    moe_activate(1, F, device_hidden.data(), 2 * F, act.data(), F, stream);
    auto values = to_host(act, stream);
    values.resize(kAll - 1);
    return values;
  };
  const auto pieces = activate(kAll), elements = activate(kAll - 1);
  EXPECT_EQ(pieces, elements);
  for (int i = 0; i < kAll - 1; ++i) {
    const float gate = to_float(bf16{static_cast<std::uint16_t>(i)});
    if (!std::isfinite(gate) || std::fabs(gate) > 80) continue;
    const double silu = round_bf16(static_cast<float>(gate / (1 + std::exp(-static_cast<double>(gate)))));
    ASSERT_NEAR(to_float(elements[i]), silu * 1.5, std::fabs(silu) * 0x1p-6 + 1e-38) << "gate " << gate;
  }
}

TEST(moe, combination_equals_a_host_loop_and_one_pass_gives_the_bits_of_two) {
  const Stream stream;
  for (const auto& [T, EK, D] : std::vector<std::array<int, 3>>{{1, 10, 64}, {17, 3, 72}, {33, 10, 2560}, {3, 1, 8}}) {
    const int ld = 40;
    std::vector<int> place(static_cast<std::size_t>(T * EK));
    std::iota(place.begin(), place.end(), 0);
    std::shuffle(place.begin(), place.end(), std::mt19937(7));
    std::vector<float> weights;
    for (const bf16 w : random_bf16(place.size(), 1)) weights.push_back(to_float(w));
    const auto experts = random_bf16(place.size() * D, 2), shared = random_bf16(static_cast<std::size_t>(T * D), 3),
               gate = random_bf16(static_cast<std::size_t>(T * ld), 4, 2.0f);
    const auto device_place = to_device(place, stream);
    const auto device_weights = to_device(weights, stream);
    const auto device_experts = to_device(experts, stream), device_shared = to_device(shared, stream),
               device_gate = to_device(gate, stream);
    const auto room = [&] { return to_device(std::vector<bf16>(static_cast<std::size_t>((T + 1) * D), kSentinel), stream); };
    auto routed = room(), y = room(), once = room();
    moe_combine(T, EK, D, device_weights.data(), device_place.data(), device_experts.data(), routed.data(), stream);
    moe_add_shared(T, D, routed.data(), device_shared.data(), device_gate.data(), ld, y.data(), stream);
    moe_finish(T, EK, D, device_weights.data(), device_place.data(), device_experts.data(), device_shared.data(), device_gate.data(), ld,
               once.data(), stream);
    const auto got_routed = to_host(routed, stream), got = to_host(y, stream);
    EXPECT_EQ(got, to_host(once, stream));
    for (int i = 0; i < T * D; ++i) {
      const int t = i / D, d = i % D;
      float sum = 0.0f;
      for (int k = 0; k < EK; ++k) sum += round_bf16(weights[t * EK + k] * to_float(experts[place[t * EK + k] * D + d]));
      ASSERT_EQ(got_routed[i], to_bf16(sum)) << "row " << t << " column " << d;
      const double share = round_bf16(static_cast<float>(1 / (1 + std::exp(-static_cast<double>(to_float(gate[t * ld]))))));
      const double other = share * to_float(shared[i]), expected = to_float(got_routed[i]) + other;
      ASSERT_NEAR(to_float(got[i]), expected, std::fabs(expected) * 0x1p-8 + std::fabs(other) * 0x1p-6) << "row " << t << " column " << d;
    }
    for (int d = 0; d < D; ++d) ASSERT_TRUE(got[T * D + d] == kSentinel && got_routed[T * D + d] == kSentinel);
  }
}

// --- The whole layer: few rows and many ---

struct LayerCase {
  const char* name;
  int E, EK, D, F, FS;
  bool fp8;
  int block_columns, scale_rows;
};
class MoeLayer : public ::testing::TestWithParam<LayerCase> {};

struct Layer {
  explicit Layer(const LayerCase& c)
      : gate_up(c.E, 2 * c.F, c.D, c.fp8, 100, stream, c.block_columns, c.scale_rows),
        down(c.E, c.D, c.F, c.fp8, 900, stream, c.block_columns, c.scale_rows),
        shared_down(c.D, c.FS, false, 7, stream) {
    s = {.E = c.E, .EK = c.EK, .F = c.F, .FS = c.FS, .in_ld = padded(c.E + 2 * c.FS + 1), .renormalise = true};
    D = c.D;
  }

  struct Result {
    std::vector<bf16> y;
    std::vector<float> weights;
    std::vector<int> faults;
  };
  // Rows [0, T) of `in` and x by one of the two ways.
  Result run(bool few, int T, const std::vector<bf16>& in, const std::vector<bf16>& x) {
    const int pairs = T * s.EK, act_ld = padded(s.F), hidden_ld = padded(2 * s.F), shared_ld = padded(s.FS);
    const auto rows = [&](int count, int width) {
      return to_device(std::vector<bf16>(static_cast<std::size_t>(count * width), kSentinel), stream);
    };
    auto act = rows(pairs, act_ld), hidden = rows(pairs, hidden_ld), out = rows(pairs, D), shared_act = rows(T, shared_ld),
         shared_out = rows(T, D), y = rows(T + 1, D);
    const auto device_in = to_device(in, stream), device_x = to_device(x, stream);
    auto weights = to_device(std::vector<float>(static_cast<std::size_t>(pairs), kUntouched), stream);
    auto ids = to_device(std::vector<int>(static_cast<std::size_t>(pairs), kUntouched), stream),
         faults = to_device(std::vector<int>(static_cast<std::size_t>(T), 0), stream);
    const Grouping g(T, s.E, s.EK, stream);
    const LinearGroups up = g.groups(gate_up, T, pairs);
    LinearGroups back = g.groups(down, T, pairs);
    back.x_rows = nullptr;
    const bf16* shared_gate = device_in.data() + s.E + 2 * s.FS;
    const LinearArgs from_act{.T = pairs, .x = act.data(), .ldx = act_ld, .y = out.data(), .ldy = D, .groups = &back};
    const LinearArgs from_shared{.T = T, .x = shared_act.data(), .ldx = shared_ld, .y = shared_out.data(), .ldy = D};
    if (few) {
      moe_route_few(s, device_in.data(), T, 3, weights.data(), shared_act.data(), shared_ld, g.view, faults.data(), stream);
      moe_gate_up_few(gate_up.linear, {.T = pairs, .x = device_x.data(), .ldx = D, .y = act.data(), .ldy = act_ld, .groups = &up}, g.view,
                      act_ld, stream);
      moe_down_few(s, down.linear, from_act, shared_down.linear, from_shared, g.view, weights.data(), shared_gate, y.data(), stream);
    } else {
      moe_route(s, device_in.data(), T, 3, ids.data(), weights.data(), faults.data(), stream);
      moe_group(ids.data(), T, s.E, s.EK, g.view, stream);
      linear(gate_up.linear, {.T = pairs, .x = device_x.data(), .ldx = D, .y = hidden.data(), .ldy = hidden_ld, .groups = &up}, stream);
      moe_activate(pairs, s.F, hidden.data(), hidden_ld, act.data(), act_ld, stream);
      linear(down.linear, from_act, stream);
      moe_activate(T, s.FS, device_in.data() + s.E, s.in_ld, shared_act.data(), shared_ld, stream);
      linear(shared_down.linear, from_shared, stream);
      moe_finish(T, s.EK, D, weights.data(), g.view.place, out.data(), shared_out.data(), shared_gate, s.in_ld, y.data(), stream);
    }
    return {to_host(y, stream), to_host(weights, stream), to_host(faults, stream)};
  }

  Stream stream;
  test::Experts gate_up, down;
  test::Weight shared_down;
  MoeShape s{};
  int D = 0;
};

TEST_P(MoeLayer, few_rows_give_the_bits_of_many) {
  Layer layer(GetParam());
  ASSERT_TRUE(moe_few_applies(layer.s, layer.gate_up.linear, layer.shared_down.linear, kMoeFewRows));
  const auto in = random_bf16(static_cast<std::size_t>(100 * layer.s.in_ld), 11),
             x = random_bf16(static_cast<std::size_t>(100 * layer.D), 12);
  const auto many = layer.run(false, 100, in, x);
  for (int d = 0; d < layer.D; ++d) ASSERT_EQ(many.y[100 * layer.D + d], kSentinel);
  for (int T = 1; T <= kMoeFewRows; ++T) {
    const auto few = layer.run(true, T, in, x);
    ASSERT_TRUE(std::equal(few.y.begin(), few.y.end() - layer.D, many.y.begin())) << T << " rows";
    ASSERT_TRUE(std::equal(few.weights.begin(), few.weights.end(), many.weights.begin())) << "weights of " << T << " rows";
    for (int d = 0; d < layer.D; ++d) ASSERT_EQ(few.y[T * layer.D + d], kSentinel) << "past " << T << " rows";
    for (const int fault : few.faults) ASSERT_EQ(fault, 0);
  }
}

TEST_P(MoeLayer, a_row_that_is_not_finite_leaves_its_neighbours_alone) {
  Layer layer(GetParam());
  constexpr int kBad = 3;
  auto in = random_bf16(static_cast<std::size_t>(70 * layer.s.in_ld), 13);
  const auto x = random_bf16(static_cast<std::size_t>(70 * layer.D), 14);
  const auto clean = layer.run(false, 70, in, x);
  in[kBad * layer.s.in_ld + 2] = to_bf16(std::numeric_limits<float>::quiet_NaN());
  for (const auto& [few, T] : std::vector<std::pair<bool, int>>{{true, 5}, {true, 64}, {false, 5}, {false, 70}}) {
    const auto got = layer.run(few, T, in, x);
    for (int t = 0; t < T; ++t) {
      EXPECT_EQ(got.faults[t] != 0, t == kBad) << "row " << t << " of " << T;
      const auto* row = got.y.data() + t * layer.D;
      if (t == kBad)
        EXPECT_TRUE(std::all_of(row, row + layer.D, [](bf16 v) { return std::isnan(to_float(v)); })) << "of " << T;
      else
        EXPECT_TRUE(std::equal(row, row + layer.D, clean.y.data() + t * layer.D)) << "row " << t << " of " << T << (few ? ", few" : "");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(layers, MoeLayer,
                         ::testing::Values(LayerCase{"bf16", 8, 2, 64, 32, 48, false, 0, 1},
                                           LayerCase{"fp8_published_widths", 6, 3, 512, 640, 640, true, 128, 16},
                                           LayerCase{"bf16_odd_sizes", 24, 5, 72, 16, 20, false, 0, 1},
                                           LayerCase{"bf16_many_segments", 12, 10, 1000, 368, 330, false, 0, 1},
                                           LayerCase{"fp8", 8, 2, 256, 128, 64, true, 128, 16},
                                           LayerCase{"fp8_ragged_blocks", 10, 4, 712, 144, 96, true, 128, 1},
                                           LayerCase{"fp8_blocks_of_32", 6, 2, 48, 48, 32, true, 32, 1}),
                         [](const auto& p) { return p.param.name; });

}  // namespace
}  // namespace tetrad::cuda
