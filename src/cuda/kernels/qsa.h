#pragma once
// qsa: the sparse attention between its two projections.
//   Math      q, k = rope(rms_norm(.)); block key = rope(rms_norm(mean of R raw index keys), first token of the block)
//             score[b] = sum_j relu(iq_j . key_b) / sqrt(DI);  S = the topk best complete blocks and the incomplete tail
//             p = softmax(q . k / sqrt(DH)) over S;  y = (p v) * sigmoid(output gate)
//   Inputs    projected [T, row] bf16: per head q and gate, k, v, index queries, raw index key; norm scales 1 + w, f32
//             cos, sin [T, DR/2] f32 holding bf16 values; frequencies [DR/2] f32
//   State     K, V rows and block keys in the pages, the raw keys of the incomplete block in the slot; save_slot[t] gets the latter too
//   Output    projected in place (queries normed and rotated); scores [G, max_blocks] f32; positions [G, attended], counts [G]; y [T,
//   HQ*DH] Rounding  bf16: norms, each product and the sum of a rotation, pooled mean, score, scaled score, probability, weighted sum,
//   sigmoid,
//             gated value. Index scores, softmax and sums float32
//   Order     dot products in tensor-core steps, columns ascending; heads ascending; weighted sum in chunks of 128 selected positions, each
//             ascending from zero, chunks ascending: independent of T, of the batch and of how the sum is split over blocks
//   Selection score descending, then lower index; -0 equals +0; output ascending; a row whose complete blocks fit the budget keeps all
//   NaN       a NaN key stays NaN in the rows that see it; a NaN score ranks first and fails the row (record_fault)
//   Traps     slot, page, position or count out of range
//   Launch    rows in groups of G, so that scores of long contexts stay bounded; select grid G of 512; attention in four launches
//   Bytes     attention: 4*DH*HKV per position and row; scores: 2*DI per block and eight rows
//   Oracle    cpu::qsa_layer, cpu::select_blocks
//   Tests     gpu/backend_test; properties/state_test on the device; verify: qsa.q_normed, qsa.selected, qsa.gated
#include "base/bf16.h"
#include "cuda/kernels/step_rows.h"
#include "cuda/runtime/stream.h"

namespace tetrad::cuda {

inline constexpr int kValueChunk = 128;  // positions whose weighted sum starts from zero

struct QsaShape {
  int HQ, HKV, DH, HI, DI, R, DR;
  int k, v, index_q, index_k, row;  // offsets in a projected row, and its length rounded up to 8
  int topk, attended;               // blocks a row may select; positions it then attends to at most
  int max_blocks;                   // of the longest sequence: row length of scores
  int layer;
  float eps, rope_factor;
  std::size_t k_offset, v_offset, keys_offset;  // in a page
  std::size_t pending_offset;                   // in a slot

#if defined(__CUDACC__)
  __host__ __device__
#endif
      int
      value_chunks() const {
    return (attended + kValueChunk - 1) / kValueChunk;
  }
};

struct QsaWeightsView {
  const float *q_norm, *k_norm, *index_q_norm, *index_k_norm, *frequencies;
};

// Angles of T positions as the reference holds them: cos and sin rounded to bf16.
void rope_angles(int T, int half, const int* position, const float* frequencies, float factor, float* cos, float* sin,
                 const Stream& stream);

void qsa_norm(const QsaShape& s, const QsaWeightsView& w, bf16* projected, int T, const Stream& stream);
// Rotates queries in place, writes rotated keys and values to the pages, norms and rotates index queries in place.
void qsa_rotate(const QsaShape& s, const QsaWeightsView& w, bf16* projected, const float* cos, const float* sin, const StepRows& r,
                const Stream& stream);
// Block keys of the blocks that rows of this step complete; then the raw keys that stay pending, a launch of its own.
void qsa_pool(const QsaShape& s, const QsaWeightsView& w, const bf16* projected, const StepRows& r, const Stream& stream);
void qsa_move_pending(const QsaShape& s, const bf16* projected, const StepRows& r, const Stream& stream);

// Rows [first, first + count) of the step.
struct QsaGroup {
  int first, count;
  float* scores;   // [count, max_blocks]; only rows with more than topk complete blocks are written
  int* positions;  // [count, attended]
  int* counts;     // [count]
};
void qsa_scores(const QsaShape& s, const bf16* projected, const QsaGroup& g, int most_blocks, const StepRows& r, const Stream& stream);
void qsa_select(const QsaShape& s, const QsaGroup& g, const StepRows& r, const Stream& stream);

// Scratch of the attention: `rows` rows at a time, and of those at most split_rows with their sums split over blocks.
struct QsaScratch {
  int rows, split_rows;
  float* scores;   // [rows, HQ, attended]
  float* partial;  // [split_rows, HQ, value_chunks, DH]
};
void qsa_attend(const QsaShape& s, const bf16* projected, const QsaGroup& g, const QsaScratch& scratch, bf16* y, const StepRows& r,
                const Stream& stream);

}  // namespace tetrad::cuda
