#include "cpu/ple.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "support/op_rig.h"

namespace tetrad::cpu::ple_test {
namespace {

using test::Bounded;
using test::BoundedRow;

constexpr int kEos = 3;

struct Shape {
  int streams, ngram, heads_per_ngram, conv_width;
};

Config config_of(const Shape& s) {
  Config c = test::small_config();
  c.hc_count = s.streams;
  c.ple_layers = {0};
  c.ngram_size = s.ngram;
  c.heads_per_ngram = s.heads_per_ngram;
  c.ple_embed_dim = (s.ngram - 1) * s.heads_per_ngram * 3;
  c.ple_conv_width = s.conv_width;
  c.ngram_vocab_base = 20;
  c.ple_eos_token = kEos;
  return c;
}

struct PleModel {
  PleModel(const Config& config, unsigned seed)
      : c(config),
        random(seed),
        key(c.streams_size(), c.ple_embed_dim, random, 1 / std::sqrt(c.ple_embed_dim)),
        value(c.hidden_size, c.ple_embed_dim, random, 1 / std::sqrt(c.ple_embed_dim)),
        norm_key(random.row(c.streams_size(), 1.0)),
        norm_query(random.row(c.streams_size(), 1.0)),
        norm_conv(random.row(c.streams_size(), 1.0)),
        conv(random.row(c.ple_conv_width * c.streams_size(), 0.5)) {
    test::Matrix both = key;
    both.rows += value.rows;
    both.values.insert(both.values.end(), value.values.begin(), value.values.end());
    packed.key_value = both.pack();
    packed.norm_key_scale = norm_key;
    packed.norm_query_scale = norm_query;
    packed.norm_conv_scale = norm_conv;
    packed.conv = conv;
    packed.hash = make_ngram_hash(c, 0);
    fill_table();
  }

  // Two shards, the second shorter.
  void fill_table() {
    const std::int64_t rows = packed.hash.padded_rows, first = rows / 2 + 1;
    table = random.row(static_cast<int>(rows) * c.ngram_row_dim(), 1.0);
    for (const float v : table) bits.push_back(to_bf16(v));
    const auto shard = [&](std::int64_t begin, std::int64_t end) {
      return WeightView{reinterpret_cast<const std::byte*>(bits.data() + begin * c.ngram_row_dim()),
                        DType::kBF16,
                        {end - begin, c.ngram_row_dim()},
                        "table"};
    };
    packed.table.shards = {shard(0, first), shard(first, rows)};
    packed.table.first_row = {0, first, rows};
  }

  Config c;
  test::RandomValues random;
  test::Matrix key, value;
  std::vector<float> norm_key, norm_query, norm_conv, conv, table;
  std::vector<bf16> bits;
  PackedPle packed;
};

// sign(t) sqrt(max(|t|, 1e-6)), 0 at 0: it rises everywhere, so the ends of an interval bound it.
Bounded signed_root(Bounded t) {
  const auto root = [](double x) { return x == 0.0 ? 0.0 : std::copysign(std::sqrt(std::max(std::abs(x), 1e-6)), x); };
  const double y = root(t.value);
  return test::rounded(y, std::max(root(t.value + t.error) - y, y - root(t.value - t.error)) + 1e-3 * test::kBf16HalfStep);  // bf(1e-6)
}

class Oracle {
 public:
  explicit Oracle(const PleModel& model) : m_(model), c_(model.c) {}

  // Streams [HC*D] after the layer.
  BoundedRow token(int id, std::span<const float> streams) {
    ids_.push_back(id);
    const BoundedRow e = test::exactly(embedding());
    const BoundedRow keys = test::bounded_norm(m_.key.times(e), m_.norm_key, c_.rms_norm_eps, c_.hc_count);
    const BoundedRow queries = test::bounded_norm(test::exactly(streams), m_.norm_query, c_.rms_norm_eps, c_.hc_count);
    const BoundedRow values = m_.value.times(e);
    BoundedRow gated;
    for (int s = 0; s < c_.hc_count; ++s) {
      BoundedRow products;
      for (int d = 0; d < c_.hidden_size; ++d) products.push_back(bf(keys[at(s, d)] * queries[at(s, d)]));
      const Bounded t = bf(bf(test::bounded_sum(products)) / Bounded(std::sqrt(c_.hidden_size), 8 * test::kFloatHalfStep));
      const Bounded gate = bf(test::bounded_sigmoid(bf(signed_root(t))));
      for (const Bounded& v : values) gated.push_back(bf(gate * v));
    }
    normed_.push_back(test::bounded_norm(gated, m_.norm_conv, c_.rms_norm_eps, c_.hc_count));
    BoundedRow out;
    const int newest = static_cast<int>(normed_.size()) - 1;
    for (std::size_t ch = 0; ch < gated.size(); ++ch) {
      BoundedRow products;
      for (int j = 0; j < c_.ple_conv_width; ++j) {
        const int source = newest - (c_.ple_conv_width - 1 - j) * c_.ngram_size;
        if (source >= 0)
          products.push_back(Bounded(m_.conv[static_cast<std::size_t>(j) * gated.size() + ch]) *
                             normed_[static_cast<std::size_t>(source)][ch]);
      }
      const Bounded added = bf(gated[ch] + bf(test::bounded_silu(bf(test::bounded_sum(products)))));
      out.push_back(bf(Bounded(streams[ch]) + added));
    }
    return out;
  }

  const std::vector<BoundedRow>& normed() const { return normed_; }

 private:
  std::size_t at(int s, int d) const { return static_cast<std::size_t>(s * c_.hidden_size + d); }

  // The n ids up to the newest, an end-of-text before the newest hiding everything older, hashed per n-gram length.
  std::vector<float> embedding() const {
    std::vector<float> e;
    std::uint64_t mixed = 0;
    bool cut = false;
    std::size_t head = 0;
    for (int back = 0; back < c_.ngram_size; ++back) {
      const int index = static_cast<int>(ids_.size()) - 1 - back;
      int id = index >= 0 ? ids_[static_cast<std::size_t>(index)] : kEos;
      if (back > 0 && id == kEos) cut = true;
      if (cut) id = kEos;
      mixed ^= static_cast<std::uint64_t>(id) * static_cast<std::uint64_t>(m_.packed.hash.multipliers[static_cast<std::size_t>(back)]);
      for (int j = 0; back > 0 && j < c_.heads_per_ngram; ++j, ++head) {
        const auto row = mixed % static_cast<std::uint64_t>(m_.packed.hash.head_sizes[head]) +
                         static_cast<std::uint64_t>(m_.packed.hash.head_offsets[head]);
        const auto first = m_.table.begin() + static_cast<std::ptrdiff_t>(row) * c_.ngram_row_dim();
        e.insert(e.end(), first, first + c_.ngram_row_dim());
      }
    }
    return e;
  }

  const PleModel& m_;
  const Config& c_;
  std::vector<int> ids_;
  std::vector<BoundedRow> normed_;
};

class PleLayer : public ::testing::TestWithParam<Shape> {};

// Pieces shorter than the convolution window, one longer, and an end-of-text in the middle.
TEST_P(PleLayer, agrees_with_double) {
  PleModel model(config_of(GetParam()), 4);
  const Config& c = model.c;
  test::OpRig rig(c, 16, 3);
  Oracle oracle(model);
  int start = 0;
  for (const int T : {1, 3, 14, 2}) {
    std::vector<int> ids;
    for (int t = 0; t < T; ++t) ids.push_back((start + t) % 5 == 3 ? kEos : model.random.below(c.vocab_size));
    const std::vector<float> before = model.random.row(T * c.streams_size(), 1.0);
    std::vector<float> streams = before;
    rig.step(ids, start, {}, [&](StepContext& step) {
      ple_layer(model.packed, 0, streams.data(), step);
      advance_ngram_history(step);
    });
    const auto width = static_cast<std::size_t>(c.streams_size());
    for (int t = 0; t < T; ++t) {
      const std::size_t first = static_cast<std::size_t>(t) * width;
      const BoundedRow expected = oracle.token(ids[static_cast<std::size_t>(t)], std::span(before).subspan(first, width));
      test::expect_within(std::span(streams).subspan(first, width), expected, 0.5, fmt::format("token {}", start + t));
    }
    start += T;
    const auto* window = rig.state.section<bf16>(0, StateKind::kPleConv, 0);
    for (int r = 0; r < c.ple_conv_rows(); ++r) {
      const int source = start - c.ple_conv_rows() + r;
      std::vector<float> got;
      for (std::size_t ch = 0; ch < width; ++ch) got.push_back(to_float(window[static_cast<std::size_t>(r) * width + ch]));
      test::expect_within(got, source >= 0 ? oracle.normed()[static_cast<std::size_t>(source)] : BoundedRow(width), 0.5,
                          fmt::format("window row {}", r));
    }
    const auto* history = rig.state.section<std::int32_t>(0, StateKind::kNgramHistory, -1);
    EXPECT_EQ(history[c.ngram_size - 2], ids.back());
  }
}

TEST_P(PleLayer, any_split_and_any_thread_count_give_the_same_bits) {
  const Config c = config_of(GetParam());
  PleModel model(c, 5);
  const int T = 15;
  std::vector<int> ids;
  for (int t = 0; t < T; ++t) ids.push_back(t % 6 == 4 ? kEos : model.random.below(c.vocab_size));
  const std::vector<float> before = model.random.row(T * c.streams_size(), 1.0);
  std::vector<float> expected;
  std::vector<std::byte> state;
  for (const int threads : {1, 2, 3})
    for (const int piece : {15, 1, 2, 4, 10}) {
      test::OpRig rig(c, 16, threads);
      std::vector<float> streams = before;
      for (int first = 0; first < T; first += piece) {
        const std::vector<int> part(ids.begin() + first, ids.begin() + std::min(first + piece, T));
        rig.step(part, first, {}, [&](StepContext& step) {
          ple_layer(model.packed, 0, streams.data() + static_cast<std::ptrdiff_t>(first) * c.streams_size(), step);
          advance_ngram_history(step);
        });
      }
      const std::vector<std::byte> slot(rig.state.slot(0), rig.state.slot(0) + rig.state.layout().slot_bytes);
      if (expected.empty()) expected = streams, state = slot;
      EXPECT_EQ(streams, expected) << threads << " threads, pieces of " << piece;
      EXPECT_EQ(slot, state) << threads << " threads, pieces of " << piece;
    }
}

INSTANTIATE_TEST_SUITE_P(shapes, PleLayer, ::testing::Values(Shape{4, 3, 2, 4}, Shape{2, 2, 3, 3}, Shape{3, 5, 1, 2}, Shape{2, 3, 1, 1}),
                         [](const auto& p) {
                           return fmt::format("{}_streams_{}_grams_window_{}", p.param.streams, p.param.ngram, p.param.conv_width);
                         });

TEST(ple, history_starts_as_end_of_text_and_keeps_the_newest_ids) {
  const Config c = config_of({2, 4, 1, 2});
  test::OpRig rig(c);
  const auto* history = rig.state.section<std::int32_t>(0, StateKind::kNgramHistory, -1);
  const auto now = [&] { return std::vector<int>(history, history + 3); };
  EXPECT_EQ(now(), (std::vector{kEos, kEos, kEos}));
  rig.step({7, 8}, 0, {}, [](StepContext& step) { advance_ngram_history(step); });
  EXPECT_EQ(now(), (std::vector{kEos, 7, 8}));
  const std::vector<StateSave> saves{{0, 1}, {2, 2}};
  rig.step({9, 10, 11, 12, 13}, 2, saves, [](StepContext& step) { advance_ngram_history(step); });
  EXPECT_EQ(now(), (std::vector{11, 12, 13}));
  const auto* first = rig.state.section<std::int32_t>(1, StateKind::kNgramHistory, -1);
  const auto* second = rig.state.section<std::int32_t>(2, StateKind::kNgramHistory, -1);
  EXPECT_EQ(std::vector<int>(first, first + 3), (std::vector{7, 8, 9}));
  EXPECT_EQ(std::vector<int>(second, second + 3), (std::vector{9, 10, 11}));
}

}  // namespace
}  // namespace tetrad::cpu::ple_test
