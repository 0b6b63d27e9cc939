#include "cpu/hyper_connections.h"

#include "base/bf16.h"
#include "cpu/mutants.h"
#include "cpu/norm.h"
#include "cpu/vector_math.h"

namespace tetrad::cpu {
namespace {

// x[d] = bf(mean_s bf(gate[s, d] * normed[s, d])); one token. Written out for the faults, by gated_mean_bf16 otherwise.
void gated_mean(const Config& c, const float* gate, const float* normed, float* x) {
  if (!mutant(Mutant::kFloatMix) && !mutant(Mutant::kMixSum)) return gated_mean_bf16(gate, normed, c.hc_count, x, c.hidden_size);
  for (int d = 0; d < c.hidden_size; ++d) {
    float sum = 0.0f;
    for (int s = 0; s < c.hc_count; ++s) {
      const float product = gate[s * c.hidden_size + d] * normed[s * c.hidden_size + d];
      sum += mutant(Mutant::kFloatMix) ? product : round_bf16(product);
    }
    x[d] = round_bf16(mutant(Mutant::kMixSum) ? sum : sum / static_cast<float>(c.hc_count));
  }
}

void injection_weights(const Config& c, const float* logits, float* inject) {
  for (int s = 0; s < c.hc_count; ++s) inject[s] = round_bf16(logits[s] / static_cast<float>(c.hc_count));
  sigmoid_bf16(inject, inject, c.hc_count);
  for (int s = 0; s < c.hc_count; ++s) inject[s] *= mutant(Mutant::kInjectNotDoubled) ? 1.0f : 2.0f;  // exact in bf16
}

// low [LR] in place: bf(silu(bf(low / HC))).
void low_rank_activation(const Config& c, float* low) {
  const auto streams = static_cast<float>(c.hc_count);
  const bool late = mutant(Mutant::kMixScaleAfterSilu);
  if (!late)
    for (int i = 0; i < c.hc_lowrank; ++i) low[i] = round_bf16(low[i] / streams);
  silu_bf16(low, low, c.hc_lowrank);
  if (late)
    for (int i = 0; i < c.hc_lowrank; ++i) low[i] = round_bf16(low[i] / streams);
}

}  // namespace

void hc_mix(const PackedHc& w, const Config& c, int T, const float* streams, float* x, float* inject, Workspace& ws, ThreadPool& pool) {
  const int width = c.streams_size();
  const int low_width = w.down_inject.rows();
  float* normed = ws.normed.data();
  float* low = ws.low_rank.data();
  float* gate = ws.stream_gate.data();
  const auto eps = static_cast<float>(c.rms_norm_eps);
  const bool flat = mutant(Mutant::kNormOverAllStreams);
  rms_norm({.rows = T,
            .groups = flat ? 1 : c.hc_count,
            .group = flat ? width : c.hidden_size,
            .eps = eps,
            .x = streams,
            .ldx = width,
            .scale = w.norm_scale.data(),
            .out = normed,
            .ldo = width},
           pool);
  matmul(w.down_inject, {.T = T, .x = normed, .ldx = width, .y = low, .ldy = low_width}, pool);
  pool.parallel_for(T, 16, [&](int begin, int end) {
    for (int t = begin; t < end; ++t) {
      float* row = low + static_cast<std::ptrdiff_t>(t) * low_width;
      if (inject != nullptr) injection_weights(c, row + c.hc_lowrank, inject + static_cast<std::ptrdiff_t>(t) * c.hc_count);
      low_rank_activation(c, row);
    }
  });
  matmul(w.up, {.T = T, .x = low, .ldx = low_width, .y = gate, .ldy = width}, pool);
  const float* mixed = mutant(Mutant::kMixRawStreams) ? streams : normed;
  pool.parallel_for(T, 1, [&](int begin, int end) {
    for (int t = begin; t < end; ++t) {
      const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(t) * width;
      sigmoid_bf16(gate + row, gate + row, width);
      gated_mean(c, gate + row, mixed + row, x + static_cast<std::ptrdiff_t>(t) * c.hidden_size);
    }
  });
}

void hc_inject(const Config& c, int T, float* streams, const float* inject, const float* y, ThreadPool& pool) {
  pool.parallel_for(T, 1, [&](int begin, int end) {
    for (int t = begin; t < end; ++t)
      for (int s = 0; s < c.hc_count; ++s) {
        float* h = streams + static_cast<std::ptrdiff_t>(t) * c.streams_size() + static_cast<std::ptrdiff_t>(s) * c.hidden_size;
        const float weight = inject[static_cast<std::ptrdiff_t>(t) * c.hc_count + s];
        const float* out = y + static_cast<std::ptrdiff_t>(t) * c.hidden_size;
        inject_round_bf16(weight, out, h, c.hidden_size);
      }
  });
}

}  // namespace tetrad::cpu
