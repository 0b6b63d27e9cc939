#include "cpu/ple.h"

#include <algorithm>
#include <cmath>

#include "base/bf16.h"
#include "cpu/mutants.h"
#include "cpu/norm.h"
#include "cpu/vector_math.h"

namespace tetrad::cpu {
namespace {

constexpr float kGateFloor = 1e-6f;  // of |t| before the square root, as the reference's clamp
constexpr int kMaxNgram = 64;        // config validation keeps ngram_size below

// Row ids of the tokens of one sequence: [num_rows, NG].
void row_ids(const PackedPle& w, const Config& c, const SequenceRows& sequence, std::span<const int> tokens, const std::int32_t* history,
             std::int64_t* rows) {
  const int past = c.ngram_size - 1;
  NgramHash reversed;
  if (mutant(Mutant::kPleMultiplierOrder)) {
    reversed = w.hash;
    std::reverse(reversed.multipliers.begin(), reversed.multipliers.end());
  }
  int window[kMaxNgram], context[kMaxNgram];
  const int eos = mutant(Mutant::kPleContextNotCut) ? -1 : c.ple_eos_token;
  for (int i = 0; i < sequence.num_rows; ++i) {
    for (int j = 0; j < past; ++j) {  // oldest first
      const int source = i - past + j;
      window[j] = source >= 0 ? tokens[static_cast<std::size_t>(source)] : history[source + past];
      if (source < 0 && sequence.start + source < 0 && mutant(Mutant::kPleContextZero)) window[j] = 0;
    }
    ngram_context(tokens[static_cast<std::size_t>(i)], {window, static_cast<std::size_t>(past)}, eos,
                  {context, static_cast<std::size_t>(past + 1)});
    ngram_row_ids(mutant(Mutant::kPleMultiplierOrder) ? reversed : w.hash, c.heads_per_ngram, {context, static_cast<std::size_t>(past + 1)},
                  {rows + static_cast<std::ptrdiff_t>(i) * c.ngram_heads(), static_cast<std::size_t>(c.ngram_heads())});
  }
}

// One stream's gate: bf(sigmoid(signed root of key . query / sqrt(D))).
float stream_gate(const Config& c, const float* key, const float* query) {
  const float root = std::sqrt(static_cast<float>(c.hidden_size));
  const float t = round_bf16(round_bf16(dot_rounded_products(key, query, c.hidden_size)) / root);
  float gate = std::fabs(t) < round_bf16(kGateFloor) ? round_bf16(kGateFloor) : std::fabs(t);  // a NaN fails the comparison and stays
  gate = mutant(Mutant::kPleGateNoRoot) ? gate : round_bf16(std::sqrt(gate));
  gate = t > 0.0f ? gate : t < 0.0f ? -gate : t == 0.0f ? 0.0f : t;
  sigmoid_bf16(&gate, &gate, 1);
  return gate;
}

// key_value [HC*D keys, D value] and the streams of one token -> gated [HC*D], normed [HC*D]; the keys are normed in place.
void gate_token(const PackedPle& w, const Config& c, float* key_value, const float* streams, float* gated, float* normed) {
  const int D = c.hidden_size, HC = c.hc_count;
  const auto eps = static_cast<float>(c.rms_norm_eps);
  rms_norm_row(key_value, w.norm_key_scale.data(), eps, HC, D, key_value);
  rms_norm_row(streams, w.norm_query_scale.data(), eps, HC, D, normed);  // the queries need their room only until the gates are known
  const float* value = key_value + static_cast<std::ptrdiff_t>(HC) * D;
  for (int s = 0; s < HC; ++s) {
    const std::ptrdiff_t first = static_cast<std::ptrdiff_t>(s) * D;
    const float gate = stream_gate(c, key_value + first, normed + first);
    for (int d = 0; d < D; ++d) gated[first + d] = round_bf16(gate * value[d]);
  }
  rms_norm_row(gated, w.norm_conv_scale.data(), eps, HC, D, normed);
}

// out = bf(gated + bf(silu(bf(sum_j w[j] normed[t - (width-1-j)*dilation])))), added to the streams; then the window moves on.
void convolve_segment(const PackedPle& w, const Config& c, const float* gated, const float* normed, float* out, int rows, bf16* window,
                      ThreadPool& pool) {
  constexpr int kChannelChunk = 256;
  const int width = c.streams_size(), history = c.ple_conv_rows();
  const int dilation = mutant(Mutant::kPleConvUndilated) ? 1 : c.ngram_size;
  pool.parallel_for(width, kChannelChunk, [&](int begin, int end) {
    for (int t = 0; t < rows; ++t) {
      float* y = out + static_cast<std::ptrdiff_t>(t) * width;
      std::fill(y + begin, y + end, 0.0f);
      for (int j = 0; j < c.ple_conv_width; ++j) {
        const int source = t - (c.ple_conv_width - 1 - j) * dilation;
        const float* tap = w.conv.data() + static_cast<std::ptrdiff_t>(j) * width;
        if (source >= 0) {
          const float* p = normed + static_cast<std::ptrdiff_t>(source) * width;
          add_product(tap + begin, p + begin, y + begin, end - begin);
        } else {
          const bf16* p = window + static_cast<std::ptrdiff_t>(source + history) * width;
          add_product(tap + begin, p + begin, y + begin, end - begin);
        }
      }
      round_bf16_array(y + begin, end - begin);
      silu_bf16(y + begin, y + begin, end - begin);
      const float* skip = (mutant(Mutant::kPleSkipNormed) ? normed : gated) + static_cast<std::ptrdiff_t>(t) * width;
      add_round_bf16(skip + begin, y + begin, y + begin, end - begin);
    }
    for (int r = 0; r < history; ++r) {  // ascending, so a row is read before it is overwritten
      const int source = rows - history + r;
      for (int ch = begin; ch < end; ++ch)
        window[static_cast<std::ptrdiff_t>(r) * width + ch] = source >= 0
                                                                  ? to_bf16(normed[static_cast<std::ptrdiff_t>(source) * width + ch])
                                                                  : window[static_cast<std::ptrdiff_t>(r + rows) * width + ch];
    }
  });
}

void gather_embeddings(const PackedPle& w, StepContext& step) {
  const Config& c = step.config;
  const int NG = c.ngram_heads(), DE = c.ngram_row_dim();
  for (const SequenceRows& sequence : step.batch.sequences) {
    const auto* history = step.state.section<std::int32_t>(sequence.slot, StateKind::kNgramHistory, -1);
    const auto tokens =
        step.batch.token_ids.subspan(static_cast<std::size_t>(sequence.first_row), static_cast<std::size_t>(sequence.num_rows));
    row_ids(w, c, sequence, tokens, history, step.ws.ngram_rows.data() + static_cast<std::ptrdiff_t>(sequence.first_row) * NG);
  }
  step.pool.parallel_for(step.T(), 4, [&](int begin, int end) {
    for (int t = begin; t < end; ++t)
      for (int j = 0; j < NG; ++j)
        read_table_row(
            w.table, step.ws.ngram_rows[static_cast<std::size_t>(t) * NG + j], DE,
            step.ws.ngram_embedding.data() + static_cast<std::ptrdiff_t>(t) * c.ple_embed_dim + static_cast<std::ptrdiff_t>(j) * DE);
  });
}

}  // namespace

void ple_layer(const PackedPle& w, int layer, float* streams, StepContext& step) {
  const Config& c = step.config;
  Workspace& ws = step.ws;
  const int T = step.T(), width = c.streams_size(), kv_width = width + c.hidden_size;
  gather_embeddings(w, step);
  if (step.batch.taps != nullptr)
    step.batch.taps->record_ids(layer, "ple.rows", {ws.ngram_rows.data(), static_cast<std::size_t>(T) * c.ngram_heads()},
                                {T, c.ngram_heads()});
  step.tap(layer, "ple.embedding", ws.ngram_embedding.data(), {{T, c.ple_embed_dim}});
  matmul(w.key_value, {.T = T, .x = ws.ngram_embedding.data(), .ldx = c.ple_embed_dim, .y = ws.ple_key_value.data(), .ldy = kv_width},
         step.pool);
  step.pool.parallel_for(T, 1, [&](int begin, int end) {
    for (int t = begin; t < end; ++t) {
      const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(t) * width;
      gate_token(w, c, ws.ple_key_value.data() + static_cast<std::ptrdiff_t>(t) * kv_width, streams + row, ws.ple_gated.data() + row,
                 ws.ple_normed.data() + row);
    }
  });
  float* out = ws.stream_gate.data();
  for (const SequenceRows& sequence : step.batch.sequences)
    for_each_segment(sequence, [&](int begin, int end, int save_slot) {
      const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(sequence.first_row + begin) * width;
      convolve_segment(w, c, ws.ple_gated.data() + row, ws.ple_normed.data() + row, out + row, end - begin,
                       step.state.section<bf16>(sequence.slot, StateKind::kPleConv, layer), step.pool);
      if (save_slot >= 0) step.state.copy_section(save_slot, sequence.slot, StateKind::kPleConv, layer);
    });
  step.tap(layer, "ple.out", out, {{T, width}});
  step.pool.parallel_for(T, 8, [&](int begin, int end) {
    const std::ptrdiff_t first = static_cast<std::ptrdiff_t>(begin) * width;
    add_round_bf16(streams + first, out + first, streams + first, (end - begin) * width);
  });
}

void advance_ngram_history(StepContext& step) {
  const int past = step.config.ngram_size - 1;
  for (const SequenceRows& sequence : step.batch.sequences)
    for_each_segment(sequence, [&](int begin, int end, int save_slot) {
      auto* history = step.state.section<std::int32_t>(sequence.slot, StateKind::kNgramHistory, -1);
      for (int i = begin; i < end; ++i) {
        std::copy(history + 1, history + past, history);
        history[past - 1] = step.batch.token_ids[static_cast<std::size_t>(sequence.first_row + i)];
      }
      if (save_slot >= 0) step.state.copy_section(save_slot, sequence.slot, StateKind::kNgramHistory, -1);
    });
}

}  // namespace tetrad::cpu
