#include "cpu/gdn.h"

#include <algorithm>
#include <cmath>

#include "base/bf16.h"
#include "cpu/gdn_step.h"
#include "cpu/mutants.h"
#include "cpu/norm.h"
#include "cpu/vector_math.h"

namespace tetrad::cpu {
namespace {

constexpr float kL2Eps = 1e-6f;  // fixed by the reference, not rms_norm_eps
constexpr float kSoftplusLinearAbove = 20.0f;

struct Shape {
  explicit Shape(const Config& c)
      : HK(c.gdn_key_heads),
        HV(c.gdn_value_heads),
        K(c.gdn_key_dim),
        V(c.gdn_value_dim),
        W(c.gdn_conv_width),
        conv(c.gdn_conv_dim()),
        z(conv),
        b(z + HV * V),
        a(b + HV),
        row(a + HV) {}
  int HK, HV, K, V, W;
  int conv;          // channels of the convolution, and offset of z in a projected row
  int z, b, a, row;  // offsets of z, b, a in a projected row; its length
};

// c[t, ch] = bf(silu(bf(sum_j w[j, ch] p[t - (W-1) + j, ch]))) over rows [begin, end) of a sequence; rows before the segment come from
// the window [W-1, conv] of the state, which is moved on afterwards.
void convolve_segment(const PackedGdn& w, const Shape& s, const float* projected, float* out, int rows, bf16* window, ThreadPool& pool) {
  constexpr int kChannelChunk = 256;
  const int history = s.W - 1;
  pool.parallel_for(s.conv, kChannelChunk, [&](int begin, int end) {
    for (int t = 0; t < rows; ++t) {
      float* y = out + static_cast<std::ptrdiff_t>(t) * s.conv;
      std::fill(y + begin, y + end, 0.0f);
      for (int j = 0; j < s.W; ++j) {
        const int source = t - history + j - (mutant(Mutant::kConvShifted) ? 1 : 0);
        const float* tap = w.conv.data() + static_cast<std::ptrdiff_t>(j) * s.conv;
        if (source >= 0) {
          const float* p = projected + static_cast<std::ptrdiff_t>(source) * s.row;
          add_product(tap + begin, p + begin, y + begin, end - begin);
        } else if (source >= -history) {
          const bf16* p = window + static_cast<std::ptrdiff_t>(source + history) * s.conv;
          add_product(tap + begin, p + begin, y + begin, end - begin);
        }
      }
      round_bf16_array(y + begin, end - begin);
      if (!mutant(Mutant::kConvWithoutSilu)) silu_bf16(y + begin, y + begin, end - begin);
    }
    for (int r = 0; r < history; ++r) {  // ascending, so a row is read before it is overwritten
      const int source = rows - history + r;
      for (int ch = begin; ch < end; ++ch)
        window[static_cast<std::ptrdiff_t>(r) * s.conv + ch] = source >= 0
                                                                   ? to_bf16(projected[static_cast<std::ptrdiff_t>(source) * s.row + ch])
                                                                   : window[static_cast<std::ptrdiff_t>(r + rows) * s.conv + ch];
    }
  });
}

// Keys and queries of one token to unit length (queries also / sqrt(K)), in place, not rounded.
void normalise_heads(const Shape& s, float* conv_row) {
  if (mutant(Mutant::kGdnNoL2Norm)) return;
  const float query_scale = 1.0f / std::sqrt(static_cast<float>(s.K));
  for (int head = 0; head < 2 * s.HK; ++head) {
    float* x = conv_row + static_cast<std::ptrdiff_t>(head) * s.K;
    const float inverse = 1.0f / std::sqrt(sum_of_squares(x, s.K) + kL2Eps);
    scale(inverse, x, x, s.K);
    if (head < s.HK) scale(query_scale, x, x, s.K);
  }
}

// decay[hv] = exp(-exp(A_log) softplus(a + dt_bias)), beta[hv] = bf(sigmoid(b)); one token.
void gates(const PackedGdn& w, const Shape& s, const float* b, const float* a, float* decay, float* beta) {
  if (mutant(Mutant::kBetaWithoutSigmoid))
    std::copy_n(b, s.HV, beta);
  else
    sigmoid_bf16(b, beta, s.HV);
  for (int hv = 0; hv < s.HV; ++hv) {
    const float u = a[hv] + w.dt_bias[static_cast<std::size_t>(hv)];
    const float soft = u > kSoftplusLinearAbove || mutant(Mutant::kSoftplusMissing) ? u : std::log1p(std::exp(u));
    decay[hv] = std::exp(w.neg_exp_a[static_cast<std::size_t>(hv)] * soft);
  }
}

int key_head(const Shape& s, int hv) { return mutant(Mutant::kGdnHeadOrder) ? hv % s.HK : hv / (s.HV / s.HK); }

// The recurrence over `rows` tokens of one sequence; columns of S are independent, so heads and column blocks spread over the workers.
void recurrence(const Shape& s, const float* conv, const float* decay, const float* beta, float* out, int rows, float* S,
                ThreadPool& pool) {
  const int column_blocks = (s.V + kGdnColumns - 1) / kGdnColumns;
  pool.parallel_for(s.HV * column_blocks, 1, [&](int begin, int end) {
    for (int unit = begin; unit < end; ++unit) {
      const int hv = unit / column_blocks;
      const int column = unit % column_blocks * kGdnColumns;
      const int hk = key_head(s, hv);
      gdn_step({.T = rows,
                .K = s.K,
                .V = s.V,
                .first_column = column,
                .num_columns = std::min(kGdnColumns, s.V - column),
                .q = conv + static_cast<std::ptrdiff_t>(hk) * s.K,
                .k = conv + static_cast<std::ptrdiff_t>(s.HK + hk) * s.K,
                .v = conv + static_cast<std::ptrdiff_t>(2 * s.HK) * s.K + static_cast<std::ptrdiff_t>(hv) * s.V,
                .ld_qkv = s.conv,
                .decay = decay + hv,
                .beta = beta + hv,
                .ld_gates = s.HV,
                .S = S + static_cast<std::ptrdiff_t>(hv) * s.K * s.V,
                .o = out + static_cast<std::ptrdiff_t>(hv) * s.V,
                .ld_o = s.HV * s.V});
    }
  });
}

// o [V] of one head in place: bf(bf(w * bf(o * rsqrt(mean(o^2) + eps))) * gate(z)).
void gated_norm(const PackedGdn& w, const Config& c, const float* z_gate, float* o) {
  if (mutant(Mutant::kGdnGateBeforeNorm))
    for (int i = 0; i < c.gdn_value_dim; ++i) o[i] *= z_gate[i];
  const float inverse = inverse_rms(o, c.gdn_value_dim, static_cast<float>(c.rms_norm_eps));
  for (int i = 0; i < c.gdn_value_dim; ++i) {
    const float normed = round_bf16(w.norm[static_cast<std::size_t>(i)] * round_bf16(o[i] * inverse));
    o[i] = round_bf16(mutant(Mutant::kGdnGateBeforeNorm) ? normed : normed * z_gate[i]);
  }
}

}  // namespace

void gdn_layer(const PackedGdn& w, int layer, const float* x, float* y, StepContext& step) {
  const Config& c = step.config;
  const Shape s(c);
  const int T = step.T();
  float* projected = step.ws.projected.data();
  float* conv = step.ws.conv.data();
  float* core = step.ws.heads.data();
  float* decay = step.ws.decay.data();
  float* beta = step.ws.beta.data();

  matmul(w.in, {.T = T, .x = x, .ldx = c.hidden_size, .y = projected, .ldy = s.row}, step.pool);
  step.tap(layer, "gdn.qkv_proj", projected, {{T, s.conv}, s.row});
  step.tap(layer, "gdn.z_proj", projected + s.z, {{T, s.HV * s.V}, s.row});
  step.tap(layer, "gdn.b_proj", projected + s.b, {{T, s.HV}, s.row});
  step.tap(layer, "gdn.a_proj", projected + s.a, {{T, s.HV}, s.row});
  step.pool.parallel_for(T, 16, [&](int begin, int end) {
    for (int t = begin; t < end; ++t) {
      const float* row = projected + static_cast<std::ptrdiff_t>(t) * s.row;
      gates(w, s, row + s.b, row + s.a, decay + static_cast<std::ptrdiff_t>(t) * s.HV, beta + static_cast<std::ptrdiff_t>(t) * s.HV);
    }
  });
  for (const SequenceRows& sequence : step.batch.sequences) {
    for_each_segment(sequence, [&](int begin, int end, int save_slot) {
      const std::ptrdiff_t row = sequence.first_row + begin;
      auto* window = step.state.section<bf16>(sequence.slot, StateKind::kGdnConv, layer);
      auto* S = step.state.section<float>(sequence.slot, StateKind::kGdnState, layer);
      convolve_segment(w, s, projected + row * s.row, conv + row * s.conv, end - begin, window, step.pool);
      step.pool.parallel_for(end - begin, 1, [&](int from, int to) {
        for (int t = from; t < to; ++t) normalise_heads(s, conv + (row + t) * s.conv);
      });
      recurrence(s, conv + row * s.conv, decay + row * s.HV, beta + row * s.HV, core + row * s.HV * s.V, end - begin, S, step.pool);
      if (save_slot >= 0) {
        step.state.copy_section(save_slot, sequence.slot, StateKind::kGdnConv, layer);
        step.state.copy_section(save_slot, sequence.slot, StateKind::kGdnState, layer);
      }
    });
  }
  step.pool.parallel_for(T, 1, [&](int begin, int end) {
    round_bf16_array(core + static_cast<std::ptrdiff_t>(begin) * s.HV * s.V, (end - begin) * s.HV * s.V);
  });
  step.tap(layer, "gdn.core", core, {{static_cast<std::int64_t>(T) * s.HV, s.V}});
  step.pool.parallel_for(T, 1, [&](int begin, int end) {
    for (int t = begin; t < end; ++t) {
      float* z = projected + static_cast<std::ptrdiff_t>(t) * s.row + s.z;  // the projection's tap has been taken: reuse it for the gate
      if (c.output_gate == OutputGate::kSigmoid)
        sigmoid(z, z, s.HV * s.V);
      else
        silu(z, z, s.HV * s.V);
      for (int hv = 0; hv < s.HV; ++hv)
        gated_norm(w, c, z + static_cast<std::ptrdiff_t>(hv) * s.V, core + (static_cast<std::ptrdiff_t>(t) * s.HV + hv) * s.V);
    }
  });
  step.tap(layer, "gdn.normed", core, {{static_cast<std::int64_t>(T) * s.HV, s.V}});
  matmul(w.out, {.T = T, .x = core, .ldx = s.HV * s.V, .y = y, .ldy = c.hidden_size}, step.pool);
}

}  // namespace tetrad::cpu
