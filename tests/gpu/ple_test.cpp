// ple against the hash of model/ngram_hash and host loops, over several sequences of ragged lengths: ids, gathered rows, gate, convolution,
// and what moves on in the slots.
#include "cuda/kernels/ple.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "base/fp8.h"
#include "cuda/kernels/gdn.h"
#include "device_arrays.h"
#include "model/ngram_hash.h"

namespace tetrad::cuda {
namespace {

using test::random_bf16;
using test::to_device;
using test::to_host;

constexpr bf16 kSentinel{0x7b7b};
constexpr int kEos = 3, kVocab = 50, kSlots = 8;

struct Case {
  int HC, D, ngram, heads, conv_width;
};

double rounded(double x) { return round_bf16(static_cast<float>(x)); }
double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

class Ple : public ::testing::TestWithParam<Case> {
 protected:
  Ple() : width(GetParam().HC * GetParam().D) {
    const auto [HC, D, ngram, heads, conv_width] = GetParam();
    c.hidden_size = D, c.hc_count = HC;
    c.ple_layers = {0};
    c.ngram_size = ngram, c.heads_per_ngram = heads;
    c.ple_embed_dim = (ngram - 1) * heads * 6;
    c.ple_conv_width = conv_width;
    c.ngram_vocab_base = 200;
    c.vocab_size = kVocab;
    c.ple_eos_token = kEos;
    hash = make_ngram_hash(c, 0);
    const std::size_t history_offset = 32;
    const std::size_t window_offset = (history_offset + sizeof(int) * (ngram - 1) + 63) / 64 * 64;
    slot_bytes = (window_offset + sizeof(bf16) * c.ple_conv_rows() * width + 63) / 64 * 64 + 64;
    s = {.HC = HC,
         .D = D,
         .NG = c.ngram_heads(),
         .DE = c.ngram_row_dim(),
         .ngram_size = ngram,
         .heads_per_ngram = heads,
         .conv_width = conv_width,
         .eos = kEos,
         .table_rows = hash.padded_rows,
         .eps = 1e-6f,
         .history_offset = history_offset,
         .window_offset = window_offset,
         .window_rows = c.ple_conv_rows()};
    // Sequences of ragged lengths, not in the order of their slots; ids with some ends of text.
    std::mt19937 random(5);
    first_row = {0};
    for (std::size_t b = 0; b < slot.size(); ++b) {
      for (int i = 0; i < lengths[b]; ++i) sequence.push_back(static_cast<int>(b)), ids.push_back(token(random));
      first_row.push_back(first_row.back() + lengths[b]);
    }
    T = first_row.back();
    initial.assign(kSlots * slot_bytes, std::byte{0x5a});
    for (int i = 0; i < kSlots; ++i) {
      std::vector<int> history(static_cast<std::size_t>(ngram - 1));
      for (int& id : history) id = i == slot[0] ? kEos : token(random);  // the first sequence begins
      std::memcpy(initial.data() + i * slot_bytes + history_offset, history.data(), history.size() * sizeof(int));
      const auto window = random_bf16(static_cast<std::size_t>(s.window_rows * width), 40u + static_cast<unsigned>(i));
      std::memcpy(initial.data() + i * slot_bytes + window_offset, window.data(), window.size() * sizeof(bf16));
    }
    save_slot.assign(T, -1);
    slots = to_device(initial, stream);
    device_ids = to_device(ids, stream), device_sequence = to_device(sequence, stream), device_first = to_device(first_row, stream);
    device_slot = to_device(slot, stream), device_save = to_device(save_slot, stream);
    r.T = T, r.B = static_cast<int>(slot.size());
    r.token_ids = device_ids.data(), r.sequence = device_sequence.data(), r.first_row = device_first.data();
    r.slot = device_slot.data(), r.save_slot = device_save.data();
    r.slots = slots.data(), r.slot_bytes = slot_bytes, r.num_slots = kSlots, r.vocab_size = kVocab;
  }
  static int token(std::mt19937& random) { return random() % 6 == 0 ? kEos : static_cast<int>(random() % kVocab); }
  void save(const std::map<int, int>& rows) {
    for (const auto& [row, to] : rows) save_slot[row] = to;
    device_save = to_device(save_slot, stream);
    r.save_slot = device_save.data();
  }
  int history(int slot_index, int i) const {
    int id = 0;
    std::memcpy(&id, initial.data() + slot_index * slot_bytes + s.history_offset + i * sizeof(int), sizeof(id));
    return id;
  }
  bf16 window(int slot_index, int row, int ch) const {
    bf16 x;
    std::memcpy(&x, initial.data() + slot_index * slot_bytes + s.window_offset + (row * width + ch) * sizeof(bf16), sizeof(x));
    return x;
  }
  // The id of the sequence of row t, `back` rows before it.
  int id_back(int t, int back) const {
    const int b = sequence[t], row = t - first_row[b] - back;
    return row >= 0 ? ids[t - back] : history(slot[b], row + s.ngram_size - 1);
  }
  // Row t - back of a sequence's `rows`, or of its window.
  double row_back(const std::vector<bf16>& rows, int t, int back, int ch) const {
    const int b = sequence[t], row = t - first_row[b] - back;
    return to_float(row >= 0 ? rows[(t - back) * width + ch] : window(slot[b], row + s.window_rows, ch));
  }

  Config c;
  NgramHash hash;
  PleShape s{};
  int width, T = 0;
  std::size_t slot_bytes = 0;
  const std::vector<int> lengths{1, 30, 2, 9}, slot{4, 1, 6, 0};
  std::vector<int> first_row, sequence, ids, save_slot;
  std::vector<std::byte> initial;
  Stream stream;
  DeviceBuffer<std::byte> slots;
  DeviceBuffer<int> device_ids, device_sequence, device_first, device_slot, device_save;
  StepRows r;
};

TEST_P(Ple, row_ids_equal_the_hash) {
  const auto multipliers = to_device(hash.multipliers, stream), sizes = to_device(hash.head_sizes, stream),
             offsets = to_device(hash.head_offsets, stream);
  auto rows = to_device(std::vector<std::int64_t>(static_cast<std::size_t>((T + 1) * s.NG), -9), stream);
  PleWeightsView w{};
  w.multipliers = multipliers.data(), w.head_sizes = sizes.data(), w.head_offsets = offsets.data();
  PleBuffers b{};
  b.rows = rows.data();
  ple_row_ids(s, w, b, r, stream);
  const auto got = to_host(rows, stream);
  std::vector<int> before(static_cast<std::size_t>(s.ngram_size - 1)), context(static_cast<std::size_t>(s.ngram_size));
  std::vector<std::int64_t> expected(static_cast<std::size_t>(s.NG));
  for (int t = 0; t < T; ++t) {
    for (int i = 0; i < s.ngram_size - 1; ++i) before[i] = id_back(t, s.ngram_size - 1 - i);
    ngram_context(ids[t], before, kEos, context);
    ngram_row_ids(hash, s.heads_per_ngram, context, expected);
    for (int j = 0; j < s.NG; ++j) ASSERT_EQ(got[t * s.NG + j], expected[j]) << "row " << t << " head " << j;
  }
  for (int j = 0; j < s.NG; ++j) ASSERT_EQ(got[T * s.NG + j], -9);
}

TEST_P(Ple, gathered_rows_are_the_tables) {
  std::mt19937 random(9);
  const int ld = s.NG * s.DE + 3;
  std::vector<std::int64_t> rows(static_cast<std::size_t>(T * s.NG));
  for (auto& row : rows) row = static_cast<std::int64_t>(random() % static_cast<unsigned>(s.table_rows));
  rows[0] = 0, rows[1] = s.table_rows - 1;
  const auto device_rows = to_device(rows, stream);
  const std::size_t count = static_cast<std::size_t>(s.table_rows * s.DE);
  const auto table = random_bf16(count, 3);
  std::vector<std::uint8_t> codes(count);
  for (std::size_t i = 0; i < count; ++i) do
      codes[i] = static_cast<std::uint8_t>(random());
    while ((codes[i] & 0x7f) == 0x7f);
  const auto device_table = to_device(table, stream);
  const auto device_codes = to_device(codes, stream);
  const float scale = round_bf16(0.0123f);
  for (const bool fp8 : {false, true}) {
    auto embedding = to_device(std::vector<bf16>(static_cast<std::size_t>((T + 1) * ld), kSentinel), stream);
    PleWeightsView w{};
    w.table = fp8 ? static_cast<const void*>(device_codes.data()) : device_table.data(), w.fp8 = fp8, w.scale = scale;
    PleBuffers b{};
    b.rows = const_cast<std::int64_t*>(device_rows.data()), b.embedding = embedding.data(), b.ld_embedding = ld;
    ple_gather(s, w, b, T, stream);
    const auto got = to_host(embedding, stream);
    for (int i = 0; i < (T + 1) * ld; ++i) {
      const int t = i / ld, j = i % ld / s.DE, d = i % ld % s.DE;
      bf16 expected = kSentinel;
      if (t < T && j < s.NG) {
        const auto place = static_cast<std::size_t>(rows[t * s.NG + j] * s.DE + d);
        expected = fp8 ? to_bf16(e4m3_to_float(codes[place]) * scale) : table[place];
      }
      ASSERT_EQ(got[i], expected) << "row " << t << " column " << i % ld << (fp8 ? ", FP8" : "");
    }
  }
}

TEST_P(Ple, gate_equals_a_host_loop) {
  const int ld = width + s.D + 5;
  const auto key_value = random_bf16(static_cast<std::size_t>(T * ld), 1), streams = random_bf16(static_cast<std::size_t>(T * width), 2);
  std::vector<float> norms[3];
  for (unsigned i = 0; i < 3; ++i)
    for (const bf16 v : random_bf16(static_cast<std::size_t>(width), 20 + i, 0.2f)) norms[i].push_back(1 + to_float(v));
  const auto device_key_value = to_device(key_value, stream), device_streams = to_device(streams, stream);
  const auto norm_key = to_device(norms[0], stream), norm_query = to_device(norms[1], stream), norm_conv = to_device(norms[2], stream);
  auto gated = to_device(std::vector<bf16>(static_cast<std::size_t>((T + 1) * width), kSentinel), stream);
  auto normed = to_device(std::vector<bf16>(static_cast<std::size_t>((T + 1) * width), kSentinel), stream);
  PleWeightsView w{};
  w.norm_key = norm_key.data(), w.norm_query = norm_query.data(), w.norm_conv = norm_conv.data();
  PleBuffers b{};
  b.key_value = device_key_value.data(), b.ld_key_value = ld, b.gated = gated.data(), b.normed = normed.data();
  ple_gate(s, w, b, device_streams.data(), T, stream);
  const auto got = to_host(gated, stream), got_normed = to_host(normed, stream);
  for (int t = 0; t < T; ++t)
    for (int h = 0; h < s.HC; ++h) {
      const bf16 *key = key_value.data() + t * ld + h * s.D, *value = key_value.data() + t * ld + width,
                 *query = streams.data() + t * width + h * s.D;
      double key_squares = 0, query_squares = 0, dot = 0;
      for (int d = 0; d < s.D; ++d) key_squares += std::pow(to_float(key[d]), 2), query_squares += std::pow(to_float(query[d]), 2);
      for (int d = 0; d < s.D; ++d)
        dot += rounded(rounded(to_float(key[d]) / std::sqrt(key_squares / s.D + s.eps) * norms[0][h * s.D + d]) *
                       rounded(to_float(query[d]) / std::sqrt(query_squares / s.D + s.eps) * norms[1][h * s.D + d]));
      const double score = rounded(rounded(dot) / std::sqrt(s.D));
      const double root = rounded(std::sqrt(std::max(std::fabs(score), rounded(1e-6))));
      const double gate = rounded(sigmoid(score > 0 ? root : score < 0 ? -root : 0));
      double squares = 0;
      for (int d = 0; d < s.D; ++d) {
        const int at = t * width + h * s.D + d;
        // Roundings of the dot that fall to the other side move a root near zero most.
        ASSERT_NEAR(to_float(got[at]), gate * to_float(value[d]), 0x1p-5 * std::fabs(to_float(value[d])))
            << "gate of row " << t << " stream " << h << " column " << d << ", score " << score;
        squares += std::pow(to_float(got[at]), 2);
      }
      for (int d = 0; d < s.D; ++d) {
        const int at = t * width + h * s.D + d;
        const double expected = to_float(got[at]) / std::sqrt(squares / s.D + s.eps) * norms[2][h * s.D + d];
        ASSERT_NEAR(to_float(got_normed[at]), expected, 0x1.01p-8 * std::fabs(expected) + 1e-30)
            << "norm of row " << t << " stream " << h << " column " << d;
      }
    }
  for (int i = T * width; i < (T + 1) * width; ++i) ASSERT_TRUE(got[i] == kSentinel && got_normed[i] == kSentinel);
}

TEST_P(Ple, convolution_equals_a_host_loop) {
  const auto normed = random_bf16(static_cast<std::size_t>(T * width), 1), gated = random_bf16(static_cast<std::size_t>(T * width), 2);
  std::vector<float> taps;
  for (const bf16 v : random_bf16(static_cast<std::size_t>(s.conv_width * width), 3, 0.5f)) taps.push_back(to_float(v));
  const auto device_normed = to_device(normed, stream), device_gated = to_device(gated, stream);
  const auto device_taps = to_device(taps, stream);
  auto out = to_device(std::vector<bf16>(static_cast<std::size_t>((T + 1) * width), kSentinel), stream);
  PleWeightsView w{};
  w.conv = device_taps.data();
  PleBuffers b{};
  b.normed = const_cast<bf16*>(device_normed.data()), b.gated = const_cast<bf16*>(device_gated.data()), b.out = out.data();
  ple_convolve(s, w, b, r, stream);
  const auto got = to_host(out, stream);
  for (int t = 0; t < T; ++t)
    for (int ch = 0; ch < width; ++ch) {
      double sum = 0, magnitude = 0;
      for (int j = 0; j < s.conv_width; ++j) {
        const double product = taps[j * width + ch] * row_back(normed, t, (s.conv_width - 1 - j) * s.ngram_size, ch);
        sum += product, magnitude += std::fabs(product);
      }
      const double silu = rounded(rounded(sum) * sigmoid(rounded(sum))), expected = to_float(gated[t * width + ch]) + silu;
      // Half a unit of the result; the sum and its silu may round the other way, a unit of bf16 each.
      ASSERT_NEAR(to_float(got[t * width + ch]), expected, 0x1.01p-8 * std::fabs(expected) + 0x1p-7 * std::fabs(silu) + 1e-6 * magnitude)
          << "row " << t << " channel " << ch;
    }
  for (int ch = 0; ch < width; ++ch) ASSERT_EQ(got[T * width + ch], kSentinel);
  EXPECT_EQ(to_host(slots, stream), initial) << "the convolution reads the window only";
}

TEST_P(Ple, window_and_history_move_on_and_saves_hold_those_after_their_row) {
  const auto rows = random_bf16(static_cast<std::size_t>(T * width), 1);
  const auto device_rows = to_device(rows, stream);
  save({{0, 2}, {1, 3}, {20, 5}, {T - 1, 7}});  // of the first, the second and the last sequence
  move_window({.width = width, .history = s.window_rows, .rows = device_rows.data(), .ld = width, .offset = s.window_offset}, r, stream);
  move_history(s.ngram_size, s.history_offset, r, stream);
  std::vector<std::byte> expected = initial;
  const auto write = [&](int to, int t) {
    for (int row = 0; row < s.window_rows; ++row)
      for (int ch = 0; ch < width; ++ch) {
        const bf16 x = to_bf16(static_cast<float>(row_back(rows, t, s.window_rows - 1 - row, ch)));
        std::memcpy(expected.data() + to * slot_bytes + s.window_offset + (row * width + ch) * sizeof(bf16), &x, sizeof(x));
      }
    for (int i = 0; i < s.ngram_size - 1; ++i) {
      const int id = id_back(t, s.ngram_size - 2 - i);
      std::memcpy(expected.data() + to * slot_bytes + s.history_offset + i * sizeof(int), &id, sizeof(id));
    }
  };
  for (int t = 0; t < T; ++t)
    if (save_slot[t] >= 0) write(save_slot[t], t);
  for (std::size_t b = 0; b < slot.size(); ++b) write(slot[b], first_row[b + 1] - 1);
  const auto got = to_host(slots, stream);
  for (int i = 0; i < kSlots; ++i)
    EXPECT_EQ(0, std::memcmp(got.data() + i * slot_bytes, expected.data() + i * slot_bytes, slot_bytes)) << "slot " << i;
}

TEST_P(Ple, sum_of_streams_is_rounded_once) {
  const auto out = random_bf16(static_cast<std::size_t>(T * width), 1), before = random_bf16(static_cast<std::size_t>(T * width), 2);
  const auto device_out = to_device(out, stream);
  auto streams = to_device(before, stream);
  ple_add(s, device_out.data(), streams.data(), T, stream);
  const auto got = to_host(streams, stream);
  for (int i = 0; i < T * width; ++i) ASSERT_EQ(got[i], to_bf16(to_float(before[i]) + to_float(out[i]))) << i;
}

INSTANTIATE_TEST_SUITE_P(shapes, Ple,
                         ::testing::Values(Case{4, 64, 3, 8, 4}, Case{2, 40, 4, 4, 3}, Case{3, 6, 2, 2, 4}, Case{1, 5, 3, 1, 2},
                                           Case{4, 2560, 3, 2, 4}),
                         [](const auto& p) {
                           return fmt::format("{}_by_{}_ngram_{}_heads_{}_width_{}", p.param.HC, p.param.D, p.param.ngram, p.param.heads,
                                              p.param.conv_width);
                         });

}  // namespace
}  // namespace tetrad::cuda
