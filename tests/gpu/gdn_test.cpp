// gdn against host loops in double; any split of a prompt, either set of kernels and any neighbours give the same bits; saves hold what the
// slot held after that row; nothing else of the slots is written.
#include "cuda/kernels/gdn.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <string>

#include "device_arrays.h"

namespace tetrad::cuda {
namespace {

using test::to_device;
using test::to_host;

struct Case {
  int HK, HV, K, V, W;
  bool sigmoid_gate;
};

constexpr int kSlots = 7;

struct Piece {  // rows [begin, end) of a sequence, whose state is in slot number `sequence`
  int sequence, begin, end;
};

class Rig {
 public:
  Rig(const Case& c, const std::vector<int>& lengths) : lengths_(lengths) {
    shape = {.HK = c.HK,
             .HV = c.HV,
             .K = c.K,
             .V = c.V,
             .W = c.W,
             .conv = 2 * c.HK * c.K + c.HV * c.V,
             .z = 0,
             .b = 0,
             .a = 0,
             .row = 0,
             .sigmoid_gate = c.sigmoid_gate,
             .eps = 1e-6f,
             .conv_offset = 64,
             .state_offset = 0};
    shape.z = shape.conv, shape.b = shape.z + c.HV * c.V, shape.a = shape.b + c.HV, shape.row = (shape.a + c.HV + 7) / 8 * 8;
    const std::size_t window = static_cast<std::size_t>(c.W - 1) * shape.conv * sizeof(bf16);
    shape.state_offset = (shape.conv_offset + window + 63) / 64 * 64 + 64;
    slot_bytes = (shape.state_offset + state_count() * sizeof(float) + 63) / 64 * 64 + 64;
    std::mt19937 random(11);
    std::normal_distribution<float> normal;
    const auto values = [&](int count, float scale, float shift) {
      std::vector<float> x(static_cast<std::size_t>(count));
      for (float& v : x) v = shift + scale * normal(random);
      return x;
    };
    conv = values(c.W * shape.conv, 0.5f, 0.0f);
    neg_exp_a = values(c.HV, 0.1f, -0.5f);
    dt_bias = values(c.HV, 1.0f, -1.0f);
    norm = values(c.V, 0.1f, 1.0f);
    device_conv = to_device(conv, stream), device_a = to_device(neg_exp_a, stream), device_dt = to_device(dt_bias, stream);
    device_norm = to_device(norm, stream);
    for (const int length : lengths)
      projected.push_back(test::random_bf16(static_cast<std::size_t>(length) * shape.row, static_cast<unsigned>(projected.size()) + 1));
    // Slots: an old window, a small S, and what lies beside them.
    initial.resize(kSlots * slot_bytes, std::byte{0x5a});
    for (int slot = 0; slot < kSlots; ++slot) {
      std::byte* memory = initial.data() + static_cast<std::size_t>(slot) * slot_bytes;
      const auto old = test::random_bf16(static_cast<std::size_t>(c.W - 1) * shape.conv, 90 + static_cast<unsigned>(slot));
      std::memcpy(memory + shape.conv_offset, old.data(), window);
      const auto S = values(static_cast<int>(state_count()), 0.3f, 0.0f);
      std::memcpy(memory + shape.state_offset, S.data(), S.size() * sizeof(float));
    }
    reset();
  }

  void reset() { slots = to_device(initial, stream); }
  std::size_t state_count() const { return static_cast<std::size_t>(shape.HV) * shape.K * shape.V; }
  std::vector<std::byte> slot(int index) const {
    const auto all = to_host(slots, stream);
    return {all.begin() + static_cast<std::ptrdiff_t>(index * slot_bytes),
            all.begin() + static_cast<std::ptrdiff_t>((index + 1) * slot_bytes)};
  }

  struct Result {
    std::vector<bf16> conv, core, y;
  };
  // One step. saves: packed row -> slot.
  Result run(const std::vector<Piece>& pieces, bool as_step = false, const std::map<int, int>& saves = {}) {
    std::vector<int> first{0}, slot, sequence;
    std::vector<bf16> rows;
    for (std::size_t b = 0; b < pieces.size(); ++b) {
      const Piece& p = pieces[b];
      const auto& from = projected[static_cast<std::size_t>(p.sequence)];
      rows.insert(rows.end(), from.begin() + static_cast<std::ptrdiff_t>(p.begin) * shape.row,
                  from.begin() + static_cast<std::ptrdiff_t>(p.end) * shape.row);
      for (int i = p.begin; i < p.end; ++i) sequence.push_back(static_cast<int>(b));
      first.push_back(first.back() + p.end - p.begin);
      slot.push_back(p.sequence);
    }
    const int T = first.back();
    std::vector<int> save(static_cast<std::size_t>(T), -1);
    for (const auto& [row, to] : saves) save[static_cast<std::size_t>(row)] = to;
    const auto device_first = to_device(first, stream), device_slot = to_device(slot, stream),
               device_sequence = to_device(sequence, stream), device_save = to_device(save, stream);
    const auto device_rows = to_device(rows, stream);
    StepRows r;
    r.T = T, r.B = static_cast<int>(pieces.size());
    r.sequence = device_sequence.data(), r.first_row = device_first.data(), r.slot = device_slot.data(), r.save_slot = device_save.data();
    r.slots = slots.data(), r.slot_bytes = slot_bytes, r.num_slots = kSlots;
    const auto wide = static_cast<std::size_t>(T);
    DeviceBuffer<bf16> conv_out(wide * shape.conv, "conv"), core(wide * shape.HV * shape.V, "core");
    DeviceBuffer<float> decay(wide * shape.HV, "decay"), beta(wide * shape.HV, "beta"), scales(wide * 2 * shape.HK, "scales");
    DeviceBuffer<unsigned> arrivals(pieces.size() * static_cast<std::size_t>(shape.HK), "arrivals");
    const GdnBuffers buffers{device_rows.data(), conv_out.data(), decay.data(), beta.data(), scales.data(), core.data(), arrivals.data()};
    const GdnWeightsView weights{device_conv.data(), device_a.data(), device_dt.data(), device_norm.data()};
    Result result;
    if (as_step) {
      gdn_step(shape, weights, buffers, r, stream);
      for (const unsigned count : to_host(arrivals, stream)) EXPECT_EQ(count, 0u);
    } else {
      gdn_conv(shape, weights, buffers, r, stream);
      gdn_move_window(shape, buffers, r, stream);
      gdn_gates(shape, weights, buffers, T, stream);
      gdn_recurrence(shape, buffers, r, stream);
      result.conv = to_host(conv_out, stream);
      result.core = to_host(core, stream);
      gdn_gated_norm(shape, weights, buffers, T, stream);
    }
    result.y = to_host(core, stream);
    return result;
  }
  // Row by row or in other pieces, one sequence.
  std::vector<bf16> run_in_pieces(int sequence, int piece, bool as_step) {
    std::vector<bf16> y;
    for (int begin = 0; begin < lengths_[static_cast<std::size_t>(sequence)]; begin += piece) {
      const auto some = run({{sequence, begin, std::min(begin + piece, lengths_[static_cast<std::size_t>(sequence)])}}, as_step).y;
      y.insert(y.end(), some.begin(), some.end());
    }
    return y;
  }
  bool steps() const {
    StepRows r;
    r.T = r.B = 1;
    return takes_gdn_step(shape, r);
  }

  Stream stream;
  GdnShape shape{};
  std::size_t slot_bytes = 0;
  std::vector<float> conv, neg_exp_a, dt_bias, norm;
  std::vector<std::vector<bf16>> projected;
  std::vector<std::byte> initial;

 private:
  std::vector<int> lengths_;
  DeviceBuffer<float> device_conv, device_a, device_dt, device_norm;
  DeviceBuffer<std::byte> slots;
};

double silu(double x) { return x / (1 + std::exp(-x)); }
double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double rounded(double x) { return round_bf16(static_cast<float>(x)); }

// Rows of one sequence from its slot, in double but for the rounding points; each stage starts from what the device made of the one before.
struct Reference {
  const Rig& rig;
  int sequence;
  std::vector<double> S;

  Reference(const Rig& r, int which) : rig(r), sequence(which) {
    std::vector<float> start(rig.state_count());
    std::memcpy(start.data(), rig.initial.data() + static_cast<std::size_t>(which) * rig.slot_bytes + rig.shape.state_offset,
                start.size() * sizeof(float));
    S.assign(start.begin(), start.end());
  }
  double projected(int t, int ch) const {
    const GdnShape& s = rig.shape;
    if (t >= 0) return to_float(rig.projected[static_cast<std::size_t>(sequence)][static_cast<std::size_t>(t) * s.row + ch]);
    bf16 old;
    std::memcpy(&old,
                rig.initial.data() + static_cast<std::size_t>(sequence) * rig.slot_bytes + s.conv_offset +
                    (static_cast<std::size_t>(t + s.W - 1) * s.conv + ch) * sizeof(bf16),
                sizeof(old));
    return to_float(old);
  }
  double convolved(int t, int ch) const {
    const GdnShape& s = rig.shape;
    double sum = 0;
    for (int j = 0; j < s.W; ++j)
      sum += static_cast<double>(rig.conv[static_cast<std::size_t>(j) * s.conv + ch]) * projected(t - s.W + 1 + j, ch);
    return rounded(silu(rounded(sum)));
  }
  // core of row t from its row of the convolution
  std::vector<double> core(int t, const bf16* conv) {
    const GdnShape& s = rig.shape;
    std::vector<double> o(static_cast<std::size_t>(s.HV) * s.V);
    for (int hv = 0; hv < s.HV; ++hv) {
      const int hk = hv / (s.HV / s.HK);
      std::vector<double> q(static_cast<std::size_t>(s.K)), k(q);
      double q_squares = 1e-6, k_squares = 1e-6;
      for (int i = 0; i < s.K; ++i) {
        q[i] = to_float(conv[hk * s.K + i]), k[i] = to_float(conv[(s.HK + hk) * s.K + i]);
        q_squares += q[i] * q[i], k_squares += k[i] * k[i];
      }
      const double beta = rounded(sigmoid(projected(t, s.b + hv))), x = projected(t, s.a + hv) + rig.dt_bias[hv];
      const double decay = std::exp(static_cast<double>(rig.neg_exp_a[hv]) * std::log1p(std::exp(x)));
      double* head = S.data() + static_cast<std::size_t>(hv) * s.K * s.V;
      for (int c = 0; c < s.V; ++c) {
        double r = 0, sum = 0;
        for (int i = 0; i < s.K; ++i) r += k[i] / std::sqrt(k_squares) * head[static_cast<std::size_t>(i) * s.V + c];
        const double u = beta * (to_float(conv[2 * s.HK * s.K + hv * s.V + c]) - decay * r);
        for (int i = 0; i < s.K; ++i) {
          double& cell = head[static_cast<std::size_t>(i) * s.V + c];
          cell = decay * cell + k[i] / std::sqrt(k_squares) * u;
          sum += q[i] / std::sqrt(q_squares * s.K) * cell;
        }
        o[static_cast<std::size_t>(hv) * s.V + c] = sum;
      }
    }
    return o;
  }
  double gated(int t, int hv, int c, const bf16* core_row) const {
    const GdnShape& s = rig.shape;
    double squares = 0;
    for (int i = 0; i < s.V; ++i) squares += std::pow(to_float(core_row[hv * s.V + i]), 2);
    const double inverse = 1 / std::sqrt(squares / s.V + s.eps), z = projected(t, s.z + hv * s.V + c);
    const double normed = rounded(rig.norm[c] * rounded(to_float(core_row[hv * s.V + c]) * inverse));
    return rounded(normed * (s.sigmoid_gate ? sigmoid(z) : silu(z)));
  }
};

class Gdn : public ::testing::TestWithParam<Case> {};

TEST_P(Gdn, equals_host_loops) {
  for (const int T : {1, 2, 63, 64, 65, 130}) {
    const std::vector<int> lengths{T, 3, 17};
    Rig rig(GetParam(), lengths);
    const GdnShape& s = rig.shape;
    const auto got = rig.run({{0, 0, T}, {1, 0, 3}, {2, 0, 17}});
    int row = 0;
    for (int b = 0; b < 3; ++b) {
      Reference reference(rig, b);
      double worst_core = 0;
      for (int t = 0; t < lengths[static_cast<std::size_t>(b)]; ++t, ++row) {
        const bf16* conv = got.conv.data() + static_cast<std::size_t>(row) * s.conv;
        const std::size_t first = static_cast<std::size_t>(row) * s.HV * s.V;
        // A rounding may fall to the other side: one unit of bf16 for each of those on the way.
        for (int ch = 0; ch < s.conv; ++ch) {
          const double expected = reference.convolved(t, ch);
          ASSERT_NEAR(to_float(conv[ch]), expected, 0x1p-6 * std::fabs(expected) + 1e-6) << "conv, row " << t << " channel " << ch;
        }
        const auto core = reference.core(t, conv);
        for (std::size_t i = 0; i < core.size(); ++i) {
          const double difference = std::fabs(to_float(got.core[first + i]) - core[i]);
          worst_core = std::max(worst_core, difference - 0x1p-9 * std::fabs(core[i]));
          ASSERT_LE(difference, 0x1p-8 * std::fabs(core[i]) + 1e-6) << "core, row " << t << " of " << T << " element " << i;
        }
        for (int i = 0; i < s.HV * s.V; ++i) {
          const double expected = reference.gated(t, i / s.V, i % s.V, got.core.data() + first);
          ASSERT_NEAR(to_float(got.y[first + i]), expected, 0x1p-6 * std::fabs(expected) + 1e-6) << "y, row " << t << " element " << i;
        }
      }
      std::vector<float> S(rig.state_count());
      std::memcpy(S.data(), rig.slot(b).data() + s.state_offset, S.size() * sizeof(float));
      for (std::size_t i = 0; i < S.size(); ++i) ASSERT_NEAR(S[i], reference.S[i], 1e-5) << "S " << i << " after " << T;
      if (T == 130 && b == 0) std::printf("core is off by at most a rounding and %.2g\n", worst_core);
    }
  }
}

TEST_P(Gdn, a_split_and_the_kernels_of_few_rows_give_the_same_bits) {
  const int T = 53;
  Rig rig(GetParam(), {T, 9, 30});
  const auto alone = rig.run({{0, 0, T}}).y;
  const auto state = rig.slot(0);
  for (const bool as_step : {false, true})
    for (const int piece : {1, 2, 4, 7, 16, 17, 50}) {
      if (as_step && (!rig.steps() || piece > kGdnStepRows)) continue;
      rig.reset();
      EXPECT_EQ(rig.run_in_pieces(0, piece, as_step), alone) << "pieces of " << piece << (as_step ? ", as steps" : "");
      EXPECT_EQ(rig.slot(0), state) << "pieces of " << piece << (as_step ? ", as steps" : "");
    }
  rig.reset();
  const auto among = rig.run({{2, 0, 30}, {0, 0, T}, {1, 0, 9}}).y;
  EXPECT_TRUE(std::equal(alone.begin(), alone.end(), among.begin() + static_cast<std::ptrdiff_t>(30) * rig.shape.HV * rig.shape.V));
  EXPECT_EQ(rig.slot(0), state);
}

TEST_P(Gdn, a_step_of_many_sequences_gives_the_bits_of_one) {
  Rig rig(GetParam(), {4, 1, 3, 2, 2});
  if (!rig.steps()) GTEST_SKIP() << "gdn_step does not take this shape";
  std::vector<std::vector<bf16>> alone;
  std::vector<std::vector<std::byte>> states;
  const std::vector<Piece> pieces{{4, 0, 2}, {0, 0, 4}, {1, 0, 1}, {3, 0, 2}, {2, 0, 3}};
  for (const Piece& p : pieces) {
    alone.push_back(rig.run({p}).y);
    states.push_back(rig.slot(p.sequence));
  }
  rig.reset();
  const auto y = rig.run(pieces, true).y;
  auto at = y.begin();
  for (std::size_t b = 0; b < pieces.size(); ++b) {
    EXPECT_TRUE(std::equal(alone[b].begin(), alone[b].end(), at)) << b;
    at += static_cast<std::ptrdiff_t>(alone[b].size());
    EXPECT_EQ(rig.slot(pieces[b].sequence), states[b]) << b;
  }
}

TEST_P(Gdn, saves_hold_the_state_after_their_row_and_other_slots_are_left_alone) {
  for (const bool as_step : {false, true}) {
    const int T = as_step ? 4 : 40, other = as_step ? 3 : 5;
    Rig rig(GetParam(), {T, other});
    if (as_step && !rig.steps()) continue;
    const std::map<int, int> saves{{0, 3}, {T - 2, 5}, {T - 1, 2}, {T + 1, 6}};
    std::map<int, std::vector<std::byte>> expected;
    for (const auto& [row, to] : saves) {
      rig.reset();
      if (row < T)
        rig.run({{0, 0, row + 1}});
      else
        rig.run({{1, 0, row - T + 1}});
      expected[to] = rig.slot(row < T ? 0 : 1);
    }
    rig.reset();
    const auto plain = rig.run({{0, 0, T}, {1, 0, other}}).y;
    expected[0] = rig.slot(0), expected[1] = rig.slot(1);
    rig.reset();
    EXPECT_EQ(rig.run({{0, 0, T}, {1, 0, other}}, as_step, saves).y, plain);
    for (const auto& [to, bytes] : expected) EXPECT_EQ(rig.slot(to), bytes) << "slot " << to << (as_step ? ", as a step" : "");
    const std::vector<std::byte> untouched(rig.initial.begin() + static_cast<std::ptrdiff_t>(4 * rig.slot_bytes),
                                           rig.initial.begin() + static_cast<std::ptrdiff_t>(5 * rig.slot_bytes));
    EXPECT_EQ(rig.slot(4), untouched);
  }
}

// Every bf16 through the convolution: pieces of eight take another way to the silu than single channels do.
TEST(gdn, convolution_has_the_same_bits_in_pieces_and_by_channel) {
  Stream stream;
  constexpr int kAll = 1 << 16;
  std::vector<bf16> every(kAll);
  for (int i = 0; i < kAll; ++i) every[i] = bf16{static_cast<std::uint16_t>(i)};
  const auto projected = to_device(every, stream);
  const DeviceBuffer<std::byte> window(3 * kAll * sizeof(bf16), "window");
  const auto zero = to_device(std::vector<int>{0, 1}, stream);
  const auto convolve = [&](int channels) {
    std::vector<float> taps(4 * static_cast<std::size_t>(channels), 0.0f);
    std::fill(taps.end() - channels, taps.end(), 1.0f);
    const auto weights = to_device(taps, stream);
    auto out = to_device(std::vector<bf16>(kAll), stream);
    StepRows r;
    r.T = r.B = r.num_slots = 1, r.slot_bytes = window.bytes(), r.slots = const_cast<std::byte*>(window.data());
    r.sequence = zero.data(), r.first_row = zero.data(), r.slot = zero.data();
    GdnShape s{};
    s.W = 4, s.conv = channels, s.row = kAll;
    GdnBuffers b{};
    b.projected = projected.data(), b.conv = out.data();
    gdn_conv(s, {.conv = weights.data(), .neg_exp_a = nullptr, .dt_bias = nullptr, .norm = nullptr}, b, r, stream);
    auto values = to_host(out, stream);
    values.resize(kAll - 1);
    return values;
  };
  EXPECT_EQ(convolve(kAll), convolve(kAll - 1));
}

INSTANTIATE_TEST_SUITE_P(shapes, Gdn,
                         ::testing::Values(Case{2, 6, 128, 128, 4, false}, Case{1, 2, 32, 48, 4, true}, Case{2, 2, 200, 48, 4, false},
                                           Case{1, 3, 128, 48, 3, false}, Case{1, 3, 7, 10, 4, true}, Case{2, 4, 64, 128, 2, false},
                                           Case{1, 2, 96, 136, 4, false}, Case{2, 2, 16, 12, 1, true}),
                         [](const auto& test) {
                           const Case& c = test.param;
                           return std::to_string(c.HK) + "_of_" + std::to_string(c.HV) + "_heads_" + std::to_string(c.K) + "_by_" +
                                  std::to_string(c.V) + "_window_" + std::to_string(c.W);
                         });

}  // namespace
}  // namespace tetrad::cuda
