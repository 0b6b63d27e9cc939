#include "cpu/gdn.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "engine/tap_store.h"
#include "support/op_rig.h"

namespace tetrad::cpu::gdn_test {
namespace {

using test::Bounded;
using test::BoundedRow;

struct Shape {
  int HK, HV, K, V, W;
  OutputGate gate = OutputGate::kSigmoid;
};

Config config_of(const Shape& s) {
  Config c = test::small_config();
  c.gdn_key_heads = s.HK;
  c.gdn_value_heads = s.HV;
  c.gdn_key_dim = s.K;
  c.gdn_value_dim = s.V;
  c.gdn_conv_width = s.W;
  c.output_gate = s.gate;
  return c;
}

struct GdnModel {
  GdnModel(const Config& config, unsigned seed)
      : c(config),
        random(seed),
        in(c.gdn_conv_dim() + c.gdn_value_size() + 2 * c.gdn_value_heads, c.hidden_size, random, 1 / std::sqrt(c.hidden_size)),
        out(c.hidden_size, c.gdn_value_size(), random, 1 / std::sqrt(c.gdn_value_size())),
        conv(random.row(c.gdn_conv_width * c.gdn_conv_dim(), 0.5)),
        norm(random.row(c.gdn_value_dim, 1.0)),
        dt_bias(random.row(c.gdn_value_heads, 1.0)) {
    packed.in = in.pack();
    packed.out = out.pack();
    packed.conv = conv;
    packed.norm = norm;
    packed.dt_bias = dt_bias;
    for (int hv = 0; hv < c.gdn_value_heads; ++hv) packed.neg_exp_a.push_back(-std::exp(0.3f * static_cast<float>(hv)));
  }

  Config c;
  test::RandomValues random;
  test::Matrix in, out;
  std::vector<float> conv, norm, dt_bias;
  PackedGdn packed;
};

// The convolution, the gates and the recurrence token by token, from projected rows taken as they are.
class Oracle {
 public:
  explicit Oracle(const GdnModel& model)
      : m_(model), c_(model.c), S_(static_cast<std::size_t>(c_.gdn_value_heads * c_.gdn_key_dim * c_.gdn_value_dim)) {}

  // o of every head [HV*V].
  BoundedRow core(std::span<const float> qkv, std::span<const float> b, std::span<const float> a) {
    projected_.push_back(test::exactly(qkv));
    const BoundedRow conv = convolved();
    BoundedRow out;
    for (int hv = 0; hv < c_.gdn_value_heads; ++hv) {
      const auto head = static_cast<std::size_t>(hv);
      const Bounded u = Bounded(a[head]) + Bounded(m_.dt_bias[head]);
      const Bounded decay = test::bounded_exp(Bounded(m_.packed.neg_exp_a[head]) * test::bounded_softplus(u));
      const BoundedRow o = recurrence(hv, conv, decay, bf(test::bounded_sigmoid(Bounded(b[head]))));
      out.insert(out.end(), o.begin(), o.end());
    }
    return out;
  }

  // Norm and gate of every head, from o as it is.
  BoundedRow gated(std::span<const float> core, std::span<const float> z) const {
    BoundedRow y;
    const auto V = static_cast<std::size_t>(c_.gdn_value_dim);
    for (std::size_t first = 0; first < core.size(); first += V) {
      const BoundedRow o = test::exactly(core.subspan(first, V));
      const Bounded inverse = Bounded(1.0) / test::bounded_sqrt(test::bounded_dot(o, o) / Bounded(c_.gdn_value_dim) +
                                                                Bounded(static_cast<float>(c_.rms_norm_eps)));
      for (std::size_t i = 0; i < V; ++i) {
        const Bounded normed = bf(Bounded(m_.norm[i]) * bf(o[i] * inverse)), logit(z[first + i]);
        y.push_back(bf(normed * (c_.output_gate == OutputGate::kSigmoid ? test::bounded_sigmoid(logit) : test::bounded_silu(logit))));
      }
    }
    return y;
  }

  const BoundedRow& S() const { return S_; }
  const std::vector<BoundedRow>& projected() const { return projected_; }

 private:
  static Bounded at(const BoundedRow& row, int i) { return row[static_cast<std::size_t>(i)]; }

  BoundedRow convolved() const {
    BoundedRow out;
    const int newest = static_cast<int>(projected_.size()) - 1;
    for (int ch = 0; ch < c_.gdn_conv_dim(); ++ch) {
      BoundedRow products;
      for (int j = 0; j < c_.gdn_conv_width; ++j) {
        const int source = newest - (c_.gdn_conv_width - 1) + j;
        if (source >= 0)
          products.push_back(Bounded(m_.conv[static_cast<std::size_t>(j * c_.gdn_conv_dim() + ch)]) *
                             at(projected_[static_cast<std::size_t>(source)], ch));
      }
      out.push_back(bf(test::bounded_silu(bf(test::bounded_sum(products)))));
    }
    return out;
  }

  BoundedRow unit(const BoundedRow& conv, int first, double scale) const {
    const auto x = test::part(conv, first, c_.gdn_key_dim);
    const Bounded inverse = Bounded(1.0) / test::bounded_sqrt(test::bounded_dot(x, x) + Bounded(1e-6f));
    BoundedRow y;
    for (const Bounded& v : x) y.push_back(v * inverse * Bounded(static_cast<float>(scale), scale * test::kFloatHalfStep * 2));
    return y;
  }

  BoundedRow recurrence(int hv, const BoundedRow& conv, Bounded decay, Bounded beta) {
    const int K = c_.gdn_key_dim, V = c_.gdn_value_dim, hk = hv / (c_.gdn_value_heads / c_.gdn_key_heads);
    const BoundedRow q = unit(conv, hk * K, 1 / std::sqrt(K)), k = unit(conv, (c_.gdn_key_heads + hk) * K, 1.0);
    BoundedRow o;
    for (int column = 0; column < V; ++column) {
      const auto s = [&](int i) -> Bounded& { return S_[static_cast<std::size_t>((hv * K + i) * V + column)]; };
      BoundedRow S;
      for (int i = 0; i < K; ++i) S.push_back(s(i) = decay * s(i));
      const Bounded u = beta * (at(conv, (2 * c_.gdn_key_heads) * K + hv * V + column) - test::bounded_dot(k, S));
      for (int i = 0; i < K; ++i) S[static_cast<std::size_t>(i)] = s(i) = s(i) + at(k, i) * u;
      o.push_back(bf(test::bounded_dot(q, S)));
    }
    return o;
  }

  const GdnModel& m_;
  const Config& c_;
  std::vector<BoundedRow> projected_;
  BoundedRow S_;
};

class GdnLayer : public ::testing::TestWithParam<Shape> {};

// Each stage from the stage before it as the layer itself had it, so that a bound stays close. Tokens come in pieces shorter and longer
// than the convolution window.
TEST_P(GdnLayer, agrees_with_double) {
  GdnModel model(config_of(GetParam()), 5);
  const Config& c = model.c;
  test::OpRig rig(c, 16, 3);
  Oracle oracle(model);
  std::vector<float> got_core;  // of all tokens: a single one may be small against its bound
  BoundedRow expected_core;
  int start = 0;
  for (const int T : {1, 2, 5, 1}) {
    const std::vector<float> x = model.random.row(T * c.hidden_size, 1.0);
    std::vector<float> y(x.size());
    TapStore taps;
    rig.step(
        std::vector<int>(static_cast<std::size_t>(T), 0), start, {},
        [&](StepContext& step) { gdn_layer(model.packed, 0, x.data(), y.data(), step); }, &taps);
    for (int t = 0; t < T; ++t) {
      const auto row = [t, T](const std::vector<float>& rows) {
        const std::size_t width = rows.size() / static_cast<std::size_t>(T);
        return std::span(rows).subspan(static_cast<std::size_t>(t) * width, width);
      };
      const auto stage = [&](const char* name) { return row(taps.tensors.at({0, name}).values); };
      std::vector<float> projected;
      for (const char* name : {"gdn.qkv_proj", "gdn.z_proj", "gdn.b_proj", "gdn.a_proj"})
        projected.insert(projected.end(), stage(name).begin(), stage(name).end());
      const std::string which = fmt::format(" of token {}", start + t);
      test::expect_within(projected, model.in.times(test::exactly(row(x))), 0.1, "projections" + which);
      const BoundedRow core = oracle.core(stage("gdn.qkv_proj"), stage("gdn.b_proj"), stage("gdn.a_proj"));
      got_core.insert(got_core.end(), stage("gdn.core").begin(), stage("gdn.core").end());
      expected_core.insert(expected_core.end(), core.begin(), core.end());
      test::expect_within(stage("gdn.normed"), oracle.gated(stage("gdn.core"), stage("gdn.z_proj")), 0.1, "normed" + which);
      test::expect_within(row(y), model.out.times(test::exactly(stage("gdn.normed"))), 0.1, "y" + which);
    }
    start += T;
    const auto* S = rig.state.section<float>(0, StateKind::kGdnState, 0);
    test::expect_within({S, oracle.S().size()}, oracle.S(), 0.5, fmt::format("S after {} tokens", start));
    const auto* window = rig.state.section<bf16>(0, StateKind::kGdnConv, 0);
    const int history = c.gdn_conv_width - 1;
    for (int r = 0; r < history; ++r) {
      const int source = start - history + r;
      std::vector<float> got;
      for (int ch = 0; ch < c.gdn_conv_dim(); ++ch) got.push_back(to_float(window[static_cast<std::ptrdiff_t>(r) * c.gdn_conv_dim() + ch]));
      const BoundedRow expected = source >= 0 ? oracle.projected()[static_cast<std::size_t>(source)] : BoundedRow(got.size());
      test::expect_within(got, test::part(expected, 0, c.gdn_conv_dim()), 0.1, fmt::format("window row {} after {} tokens", r, start));
    }
  }
  test::expect_within(got_core, expected_core, 0.5, "core");
}

TEST_P(GdnLayer, any_split_and_any_thread_count_give_the_same_bits) {
  const Config c = config_of(GetParam());
  GdnModel model(c, 6);
  const int T = 13;
  const std::vector<float> x = model.random.row(T * c.hidden_size, 1.0);
  std::vector<float> expected;
  std::vector<std::byte> state;
  for (const int threads : {1, 2, 3})
    for (const int piece : {13, 1, 2, 3, 5}) {
      test::OpRig rig(c, 16, threads);
      std::vector<float> y(x.size());
      for (int first = 0; first < T; first += piece) {
        const int rows = std::min(piece, T - first);
        const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(first) * c.hidden_size;
        rig.step(std::vector<int>(static_cast<std::size_t>(rows), 0), first, {},
                 [&](StepContext& step) { gdn_layer(model.packed, 0, x.data() + at, y.data() + at, step); });
      }
      const std::vector<std::byte> slot(rig.state.slot(0), rig.state.slot(0) + rig.state.layout().slot_bytes);
      if (expected.empty()) expected = y, state = slot;
      EXPECT_EQ(y, expected) << threads << " threads, pieces of " << piece;
      EXPECT_EQ(slot, state) << threads << " threads, pieces of " << piece;
    }
}

INSTANTIATE_TEST_SUITE_P(shapes, GdnLayer,
                         ::testing::Values(Shape{2, 2, 8, 8, 4}, Shape{1, 3, 6, 10, 4}, Shape{2, 6, 9, 5, 2}, Shape{1, 1, 16, 3, 1},
                                           Shape{1, 2, 5, 40, 3, OutputGate::kSilu}),
                         [](const auto& p) {
                           return fmt::format("{}_of_{}_heads_{}_by_{}_window_{}", p.param.HK, p.param.HV, p.param.K, p.param.V, p.param.W);
                         });

TEST(gdn, no_tokens_change_nothing) {
  const Config c = test::small_config();
  GdnModel model(c, 1);
  test::OpRig rig(c);
  const std::vector<std::byte> before(rig.state.slot(0), rig.state.slot(0) + rig.state.layout().slot_bytes);
  const StepBatch batch{};
  StepContext step{c, batch, rig.state, rig.ws, rig.pool, rig.rope, rig.result};
  gdn_layer(model.packed, 0, nullptr, nullptr, step);
  EXPECT_EQ(before, std::vector<std::byte>(rig.state.slot(0), rig.state.slot(0) + rig.state.layout().slot_bytes));
}

TEST(gdn, strong_decay_forgets_and_weak_decay_keeps) {
  // dt_bias far up: exp(g) underflows to 0 and only the newest token is left in S; far down: exp(g) is 1.
  const Config c = config_of({1, 1, 4, 4, 1});
  for (const float bias : {300.0f, -300.0f}) {
    GdnModel model(c, 2);
    model.packed.dt_bias.assign(1, bias);
    test::OpRig rig(c);
    auto* S = rig.state.section<float>(0, StateKind::kGdnState, 0);
    std::fill_n(S, 16, 8.0f);
    const std::vector<float> x = model.random.row(c.hidden_size, 1.0);
    std::vector<float> y(x.size());
    rig.step({0}, 0, {}, [&](StepContext& step) { gdn_layer(model.packed, 0, x.data(), y.data(), step); });
    // What a token adds has rank one: with nothing kept, rows of S are multiples of each other.
    double minors = 0.0;
    for (int i = 1; i < 4; ++i)
      minors = std::max(minors, std::abs(static_cast<double>(S[0]) * S[i * 4 + 1] - static_cast<double>(S[1]) * S[i * 4]));
    EXPECT_EQ(minors <= 8 * 0x1p-24, bias > 0) << minors;  // two products of numbers below 1, each of a product rounded once
  }
}

}  // namespace
}  // namespace tetrad::cpu::gdn_test
