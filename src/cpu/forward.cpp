#include "cpu/forward.h"

#include <algorithm>
#include <cmath>

#include "cpu/gdn.h"
#include "cpu/hyper_connections.h"
#include "cpu/moe.h"
#include "cpu/mutants.h"
#include "cpu/ple.h"
#include "cpu/qsa.h"

namespace tetrad::cpu {
namespace {

void rope_angles(StepContext& step) {
  const int half = step.rope.rotary_dim() / 2;
  for (const SequenceRows& sequence : step.batch.sequences)
    for (int i = 0; i < sequence.num_rows; ++i) {
      const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(sequence.first_row + i) * half;
      const int position = sequence.start + i + (mutant(Mutant::kRopePositionOff) ? sequence.start + i : 0);
      step.rope.angles(position, step.ws.rope_cos.data() + row, step.ws.rope_sin.data() + row);
    }
}

// Every stream starts as the token's embedding.
void embed(const PackedModel& model, StepContext& step) {
  const Config& c = step.config;
  step.pool.parallel_for(step.T(), 8, [&](int begin, int end) {
    for (int t = begin; t < end; ++t) {
      float* row = step.ws.streams.data() + static_cast<std::ptrdiff_t>(t) * c.streams_size();
      read_embedding_row(model.embed_tokens, step.batch.token_ids[static_cast<std::size_t>(t)], row);
      for (int s = 1; s < c.hc_count; ++s) std::copy_n(row, c.hidden_size, row + static_cast<std::ptrdiff_t>(s) * c.hidden_size);
    }
  });
}

void advance_positions(StepContext& step) {
  for (const SequenceRows& sequence : step.batch.sequences) {
    for (const StateSave& save : sequence.saves) step.state.length(save.slot) = sequence.start + save.row + 1;
    step.state.length(sequence.slot) = sequence.start + sequence.num_rows;
  }
}

void logits_of_rows(const PackedModel& model, StepContext& step, std::span<float> logits) {
  const Config& c = step.config;
  const int count = static_cast<int>(step.batch.logit_rows.size());
  float* rows = step.ws.logit_rows.data();
  for (int i = 0; i < count; ++i)
    std::copy_n(step.ws.x.data() + static_cast<std::ptrdiff_t>(step.batch.logit_rows[static_cast<std::size_t>(i)]) * c.hidden_size,
                c.hidden_size, rows + static_cast<std::ptrdiff_t>(i) * c.hidden_size);
  matmul(model.lm_head, {.T = count, .x = rows, .ldx = c.hidden_size, .y = logits.data(), .ldy = c.vocab_size}, step.pool);
  for (int i = 0; i < count; ++i) {
    const auto row =
        logits.subspan(static_cast<std::size_t>(i) * static_cast<std::size_t>(c.vocab_size), static_cast<std::size_t>(c.vocab_size));
    if (!std::all_of(row.begin(), row.end(), [](float l) { return std::isfinite(l); }))
      step.fault(step.batch.logit_rows[static_cast<std::size_t>(i)], -1, "logits");
  }
}

}  // namespace

void forward(const PackedModel& model, StepContext& step, std::span<float> logits) {
  const Config& c = step.config;
  Workspace& ws = step.ws;
  const int T = step.T();
  float* streams = ws.streams.data();
  float* x = ws.x.data();
  float* y = ws.y.data();
  float* inject = ws.inject.data();

  rope_angles(step);
  embed(model, step);
  for (int layer = 0; layer < c.num_layers; ++layer) {
    const PackedLayer& w = model.layers[static_cast<std::size_t>(layer)];
    step.tap(layer, "stream_in", streams, {{T, c.streams_size()}});
    if (w.ple && !mutant(Mutant::kPleAfterAttention)) ple_layer(*w.ple, layer, streams, step);

    hc_mix(w.attn_hc, c, T, streams, x, inject, ws, step.pool);
    step.tap(layer, "attn.mixed", x, {{T, c.hidden_size}});
    step.tap(layer, "attn.inject", inject, {{T, c.hc_count}});
    if (w.gdn)
      gdn_layer(*w.gdn, layer, x, y, step);
    else
      qsa_layer(*w.qsa, layer, x, y, step);
    step.tap(layer, "attn.out", y, {{T, c.hidden_size}});
    if (mutant(Mutant::kInjectIntoNormed)) std::copy_n(ws.normed.data(), static_cast<std::ptrdiff_t>(T) * c.streams_size(), streams);
    hc_inject(c, T, streams, inject, y, step.pool);
    if (w.ple && mutant(Mutant::kPleAfterAttention)) ple_layer(*w.ple, layer, streams, step);

    hc_mix(w.mlp_hc, c, T, streams, x, inject, ws, step.pool);
    step.tap(layer, "mlp.mixed", x, {{T, c.hidden_size}});
    step.tap(layer, "mlp.inject", inject, {{T, c.hc_count}});
    moe_layer(w.moe, layer, x, y, step);
    step.tap(layer, "moe.out", y, {{T, c.hidden_size}});
    if (mutant(Mutant::kInjectIntoNormed)) std::copy_n(ws.normed.data(), static_cast<std::ptrdiff_t>(T) * c.streams_size(), streams);
    hc_inject(c, T, streams, inject, y, step.pool);
    step.tap(layer, "stream_out", streams, {{T, c.streams_size()}});
  }
  if (!c.ple_layers.empty()) advance_ngram_history(step);
  advance_positions(step);

  hc_mix(model.mixer, c, T, streams, x, nullptr, ws, step.pool);
  step.tap(-1, "final.mixed", x, {{T, c.hidden_size}});
  logits_of_rows(model, step, logits);
}

}  // namespace tetrad::cpu
