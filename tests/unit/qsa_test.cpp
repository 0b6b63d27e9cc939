#include "cpu/qsa.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <numeric>

#include "engine/tap_store.h"
#include "support/op_rig.h"

namespace tetrad::cpu::qsa_test {
namespace {

using test::Bounded;
using test::BoundedRow;

struct Shape {
  int HQ, HKV, HI, R, topk;
};

Config config_of(const Shape& s) {
  Config c = test::small_config();
  c.layer_kinds = {LayerKind::kQsa};
  c.num_attention_heads = s.HQ;
  c.num_kv_heads = s.HKV;
  c.head_dim = 10;
  c.index_heads = s.HI;
  c.compress_ratio = s.R;
  c.index_budget = s.R * s.topk;
  c.rope.theta = 100.0;
  return c;
}

struct QsaModel {
  QsaModel(const Config& config, unsigned seed)
      : c(config),
        random(seed),
        in((2 * c.num_attention_heads + 2 * c.num_kv_heads) * c.head_dim + (c.index_heads + 1) * c.index_head_dim, c.hidden_size, random,
           0.2),
        out(c.hidden_size, c.num_attention_heads * c.head_dim, random, 0.2) {
    packed.in = in.pack();
    packed.out = out.pack();
    packed.q_norm_scale = random.row(c.head_dim, 1.0);
    packed.k_norm_scale = random.row(c.head_dim, 1.0);
    packed.index_q_norm_scale = random.row(c.index_head_dim, 1.0);
    packed.index_k_norm_scale = random.row(c.index_head_dim, 1.0);
  }

  Config c;
  test::RandomValues random;
  test::Matrix in, out;
  PackedQsa packed;
};

// Runs a layer over a sequence and holds every stage to the stage before it as the layer itself had it.
class Checker {
 public:
  explicit Checker(const Shape& shape) : model_(config_of(shape), 8), c_(model_.c), rig_(c_, 80, 3) {}

  void run(int T) {
    taps_ = {};
    T_ = T;
    const std::vector<float> x = model_.random.row(T * c_.hidden_size, 1.0);
    std::vector<float> y(x.size());
    const int half = c_.rope.rotary_dim / 2;
    for (int t = 0; t < T; ++t) rig_.rope.angles(start_ + t, rig_.ws.rope_cos.data() + t * half, rig_.ws.rope_sin.data() + t * half);
    rig_.step(
        std::vector<int>(static_cast<std::size_t>(T), 0), start_, {},
        [&](StepContext& step) { qsa_layer(model_.packed, 0, x.data(), y.data(), step); }, &taps_);
    for (int t = 0; t < T; ++t) {
      which_ = fmt::format(" at {}", start_ + t);
      projections(t, row(x, t));
      caches(t);
      scores_and_selection(t);
      attention(t);
      test::expect_within(row(y, t), model_.out.times(test::exactly(stage("qsa.gated", t))), 0.1, "y" + which_);
    }
    start_ += T;
  }

  // The scores of all rows together: relu leaves a single row's near 0 at times.
  void finish() const {
    test::expect_within(scores_, expected_scores_, 0.2, "scores");
    EXPECT_GT(cuts_, 20) << "too few selections that cut";
  }

 private:
  std::span<const float> row(const std::vector<float>& rows, int t) const {
    const std::size_t width = rows.size() / static_cast<std::size_t>(T_);
    return std::span(rows).subspan(static_cast<std::size_t>(t) * width, width);
  }
  std::span<const float> stage(const char* name, int t) const { return row(taps_.tensors.at({0, name}).values, t); }
  static std::span<const float> part(std::span<const float> values, int first, int count) {
    return values.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
  }

  BoundedRow rotated(BoundedRow x, int position) const {
    const auto half = static_cast<std::size_t>(c_.rope.rotary_dim / 2);
    std::vector<float> cos(half), sin(half);
    rig_.rope.angles(position, cos.data(), sin.data());
    const BoundedRow before = x;
    for (std::size_t i = 0; i < half; ++i) {
      x[i] = bf(bf(before[i] * Bounded(cos[i])) - bf(before[i + half] * Bounded(sin[i])));
      x[i + half] = bf(bf(before[i + half] * Bounded(cos[i])) + bf(before[i] * Bounded(sin[i])));
    }
    return x;
  }

  // A cached row as floats.
  std::vector<float> cached(const char* name, int index) {
    const StateSection& s = rig_.state.layout().page_section(name);
    const int per_page = rig_.state.layout().page_tokens / s.tokens_per_row;
    const std::byte* page = rig_.state.page(rig_.pages[static_cast<std::size_t>(index / per_page)]);
    const auto* bits = reinterpret_cast<const bf16*>(page + s.offset + static_cast<std::size_t>(index % per_page) * s.row_bytes);
    std::vector<float> values;
    for (std::size_t i = 0; i < s.row_bytes / sizeof(bf16); ++i) values.push_back(to_float(bits[i]));
    return values;
  }

  void projections(int t, std::span<const float> x) {
    const int DH = c_.head_dim, kv = c_.num_kv_heads * DH, q = 2 * c_.num_attention_heads * DH;
    const BoundedRow all = model_.in.times(test::exactly(x));
    test::expect_within(stage("qsa.q_proj", t), test::part(all, 0, q), 0.1, "q and gate" + which_);
    test::expect_within(stage("qsa.v_proj", t), test::part(all, q + kv, kv), 0.1, "v" + which_);
    test::expect_within(stage("qsa.index_qk", t), test::part(all, q + 2 * kv, (c_.index_heads + 1) * c_.index_head_dim), 0.1,
                        "index" + which_);
    for (int hd = 0; hd < c_.num_attention_heads; ++hd)
      test::expect_within(
          part(stage("qsa.q_normed", t), hd * DH, DH),
          test::bounded_norm(test::exactly(part(stage("qsa.q_proj", t), hd * 2 * DH, DH)), model_.packed.q_norm_scale, 1e-6, 1), 0.1,
          "q normed" + which_);
    for (int h = 0; h < c_.num_kv_heads; ++h)
      test::expect_within(part(stage("qsa.k_normed", t), h * DH, DH),
                          test::bounded_norm(test::part(all, q + h * DH, DH), model_.packed.k_norm_scale, 1e-6, 1), 0.2,
                          "k normed" + which_);
  }

  // K rotated, V as it is, and the key of a block with its last token.
  void caches(int t) {
    const int position = start_ + t, DH = c_.head_dim, DI = c_.index_head_dim;
    const std::vector<float> k = cached("layers.0.k", position);
    for (int h = 0; h < c_.num_kv_heads; ++h)
      test::expect_within(part(k, h * DH, DH), rotated(test::exactly(part(stage("qsa.k_normed", t), h * DH, DH)), position), 0.1,
                          "k" + which_);
    const auto v = stage("qsa.v_proj", t);
    EXPECT_EQ(cached("layers.0.v", position), std::vector<float>(v.begin(), v.end())) << which_;
    const auto raw = part(stage("qsa.index_qk", t), c_.index_heads * DI, DI);
    raw_keys_.emplace_back(raw.begin(), raw.end());
    if ((position + 1) % c_.compress_ratio != 0) return;
    const int first = position + 1 - c_.compress_ratio;
    BoundedRow mean;
    for (std::size_t i = 0; i < static_cast<std::size_t>(DI); ++i) {
      BoundedRow column;
      for (int p = first; p <= position; ++p) column.emplace_back(raw_keys_[static_cast<std::size_t>(p)][i]);
      mean.push_back(bf(test::bounded_sum(column) / Bounded(c_.compress_ratio)));
    }
    const BoundedRow key = rotated(test::bounded_norm(mean, model_.packed.index_k_norm_scale, 1e-6, 1), first);
    test::expect_within(cached("layers.0.block_keys", first / c_.compress_ratio), key, 0.2, "block key" + which_);
  }

  void scores_and_selection(int t) {
    const int position = start_ + t, blocks = (position + 1) / c_.compress_ratio, DI = c_.index_head_dim;
    const TapStore::Selection& selection = taps_.selected.at(0).at(t);
    std::vector<int> order(static_cast<std::size_t>(blocks));
    std::iota(order.begin(), order.end(), 0);
    if (blocks > c_.block_topk()) {
      ++cuts_;
      BoundedRow expected;
      for (int b = 0; b < blocks; ++b) {
        BoundedRow heads;
        for (int j = 0; j < c_.index_heads; ++j) {
          const BoundedRow q = rotated(
              test::bounded_norm(test::exactly(part(stage("qsa.index_qk", t), j * DI, DI)), model_.packed.index_q_norm_scale, 1e-6, 1),
              position);
          Bounded d = test::bounded_dot(q, test::exactly(cached("layers.0.block_keys", b)));
          d.value = std::max(d.value, 0.0);
          heads.push_back(d);
        }
        expected.push_back(test::bounded_sum(heads) / Bounded(std::sqrt(DI), 1e-6));
      }
      scores_.insert(scores_.end(), selection.block_scores.begin(), selection.block_scores.end());
      expected_scores_.insert(expected_scores_.end(), expected.begin(), expected.end());
      std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
        return selection.block_scores[static_cast<std::size_t>(a)] > selection.block_scores[static_cast<std::size_t>(b)];
      });
      order.resize(static_cast<std::size_t>(c_.block_topk()));
      std::sort(order.begin(), order.end());
    }
    std::vector<int> expected;
    for (const int b : order)
      for (int r = 0; r < c_.compress_ratio; ++r) expected.push_back(b * c_.compress_ratio + r);
    for (int p = blocks * c_.compress_ratio; p <= position; ++p) expected.push_back(p);
    EXPECT_EQ(selection.positions, expected) << which_;
  }

  void attention(int t) {
    const int DH = c_.head_dim;
    const std::vector<int>& positions = taps_.selected.at(0).at(t).positions;
    for (int hd = 0; hd < c_.num_attention_heads; ++hd) {
      const int kv = hd / (c_.num_attention_heads / c_.num_kv_heads) * DH;
      const BoundedRow q = rotated(test::exactly(part(stage("qsa.q_normed", t), hd * DH, DH)), start_ + t);
      BoundedRow p;
      double largest = -INFINITY;
      std::vector<std::vector<float>> values;
      for (const int position : positions) {
        const std::vector<float> k = cached("layers.0.k", position);
        p.push_back(bf(bf(test::bounded_dot(q, test::exactly(part(k, kv, DH)))) * Bounded(static_cast<float>(1 / std::sqrt(DH)))));
        largest = std::max(largest, p.back().value);
        values.push_back(cached("layers.0.v", position));
      }
      for (Bounded& l : p) l = test::bounded_exp({l.value - largest, l.error});
      const Bounded sum = test::bounded_sum(p);
      for (Bounded& l : p) l = bf(l / sum);
      BoundedRow expected;
      for (int d = 0; d < DH; ++d) {
        BoundedRow column;
        for (const auto& v : values) column.emplace_back(v[static_cast<std::size_t>(kv + d)]);
        const Bounded gate = bf(test::bounded_sigmoid(Bounded(stage("qsa.q_proj", t)[static_cast<std::size_t>(hd * 2 * DH + DH + d)])));
        expected.push_back(bf(bf(test::bounded_dot(p, column)) * gate));
      }
      test::expect_within(part(stage("qsa.gated", t), hd * DH, DH), expected, 0.8, fmt::format("head {}{}", hd, which_));
    }
  }

  QsaModel model_;
  const Config& c_;
  test::OpRig rig_;
  TapStore taps_;
  int T_ = 0, start_ = 0, cuts_ = 0;
  std::string which_;
  std::vector<std::vector<float>> raw_keys_;
  std::vector<float> scores_;
  BoundedRow expected_scores_;
};

class QsaLayer : public ::testing::TestWithParam<Shape> {};

// Pieces of one token, of less than a block, past a page, and one token again.
TEST_P(QsaLayer, agrees_with_double) {
  Checker checker(GetParam());
  for (const int T : {1, 1, 5, 2, 60, 1, 7}) checker.run(T);
  checker.finish();
}

INSTANTIATE_TEST_SUITE_P(shapes, QsaLayer,
                         ::testing::Values(Shape{2, 1, 2, 4, 2}, Shape{4, 2, 1, 2, 5}, Shape{3, 3, 3, 3, 1}, Shape{6, 2, 2, 5, 3},
                                           Shape{2, 2, 4, 8, 2}),
                         [](const auto& p) {
                           return fmt::format("{}_on_{}_heads_{}_index_heads_ratio_{}_topk_{}", p.param.HQ, p.param.HKV, p.param.HI,
                                              p.param.R, p.param.topk);
                         });

}  // namespace
}  // namespace tetrad::cpu::qsa_test
