#pragma once
// ple: the n-gram table's layer: hashed row ids, gather, per-stream gate, dilated convolution, added to the streams.
//   Math      x_n = c0 m0 ^ c1 m1 ^ ... (int64, wrapping);  row_j = x_n mod size_j + offset_j;  e = table rows, concatenated
//             key, value = linear(e);  t = key . query / sqrt(D) of the normed pair;  gate = sigmoid(sign(t) sqrt(max(|t|, 1e-6)))
//             gated = gate * value;  out = gated + silu(sum_j w[j] norm(gated)[t - (width-1-j) * dilation]);  streams += out
//   Inputs    token ids of the step and the slot's history; table [rows, DE] bf16 or FP8 codes with one scale, device or pinned memory
//             key_value [T, HC*D + D] bf16; streams [T, HC*D] bf16; norm scales [HC*D] f32 (1 + w); conv [width, HC*D] f32
//   State     history: the last ngram_size-1 ids, oldest first; window: the last ple_conv_rows() normed rows, bf16
//   Output    rows [T, NG] int64; embedding [T, NG*DE] bf16; gated, normed [T, HC*D] bf16; out [T, HC*D] bf16; streams in place
//   Rounding  FP8: bf16(bf16(code) * bf16(scale)). bf16: norms, each product of the dot, the dot, t, the root, gate, gated, convolution
//             sum, silu, out, streams
//   Order     dot: 256 strided threads, then a fixed tree; taps ascending
//   Traps     slot or table row out of range, a token id that is negative
//   Launch    ids a thread per (row, head); gate a block per (row, stream); convolution a thread per eight elements
//   Bytes     gather: NG*DE elements per row, from the host when the table is there
//   Oracle    cpu::ple_layer, tetrad::ngram_row_ids
//   Tests     gpu/ple_test, gpu/index_trap_test; properties/state_test on the device; verify: ple.rows, ple.embedding, ple.out
#include <cstdint>

#include "base/bf16.h"
#include "cuda/kernels/step_rows.h"
#include "cuda/runtime/stream.h"

namespace tetrad::cuda {

struct PleShape {
  int HC, D, NG, DE, ngram_size, heads_per_ngram, conv_width, eos;
  std::int64_t table_rows;
  float eps;
  std::size_t history_offset, window_offset;  // in a slot
  int window_rows;                            // (conv_width - 1) * ngram_size
};

struct PleWeightsView {
  const std::int64_t *multipliers, *head_sizes, *head_offsets;  // [ngram_size], [NG], [NG], device
  const void* table;
  bool fp8;
  float scale;  // rounded to bf16
  const float *norm_key, *norm_query, *norm_conv, *conv;
};

struct PleBuffers {
  std::int64_t* rows;
  bf16* embedding;  // rows ld_embedding apart
  int ld_embedding;
  const bf16* key_value;  // rows ld_key_value apart
  int ld_key_value;
  bf16 *gated, *normed, *out;
};

void ple_row_ids(const PleShape& s, const PleWeightsView& w, const PleBuffers& b, const StepRows& r, const Stream& stream);
void ple_gather(const PleShape& s, const PleWeightsView& w, const PleBuffers& b, int T, const Stream& stream);
void ple_gate(const PleShape& s, const PleWeightsView& w, const PleBuffers& b, const bf16* streams, int T, const Stream& stream);
void ple_convolve(const PleShape& s, const PleWeightsView& w, const PleBuffers& b, const StepRows& r, const Stream& stream);
void ple_add(const PleShape& s, const bf16* out, bf16* streams, int T, const Stream& stream);
// The history moves on once per step, after the last layer that reads it.
void move_history(int ngram_size, std::size_t history_offset, const StepRows& r, const Stream& stream);

}  // namespace tetrad::cuda
