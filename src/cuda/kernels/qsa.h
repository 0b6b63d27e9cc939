#pragma once
// qsa: the sparse attention between its two projections.
//   Math      q, k = rope(rms_norm(.)); block key = rope(rms_norm(mean of R raw index keys), first token of the block)
//             score[b] = sum_j relu(iq_j . key_b) / sqrt(DI);  S = the topk best complete blocks and the incomplete tail
//             p = softmax(q . k / sqrt(DH)) over S;  y = (p v) * sigmoid(output gate)
//   Inputs    projected [T, row] bf16: per head q and gate, k, v, index queries, raw index key; norm scales 1 + w, f32
//             cos, sin [T, DR/2] f32 holding bf16 values; frequencies [DR/2] f32
//   State     K, V rows and block keys in the pages, the raw keys of the incomplete block in the slot; save_slot[t] gets the latter too
//   Output    projected in place (queries normed and rotated); scores [G, max_blocks] f32; positions [G, attended], counts [G];
//             y [T, HQ*DH]
//   Rounding  bf16: norms, each product and the sum of a rotation, pooled mean, score, scaled score, probability, weighted sum, sigmoid,
//             gated value. Index scores, softmax and sums float32
//   Order     dot products in tensor-core steps, columns ascending; index heads ascending. Sums over selected positions in chunks of 128,
//             chunks ascending. Of a chunk, exponentials: positions l, l + 32, l + 64, l + 96 ascending, then a tree over the l; weighted
//             sum: from zero in tensor-core steps of 16 positions, ascending. So independent of T, of the batch and of how chunks meet
//             blocks
//   Selection score descending, then lower index; -0 equals +0; output ascending; a row whose complete blocks fit the budget keeps all
//   NaN       a NaN key stays NaN in the rows that see it; a NaN score ranks first and fails the row (record_fault)
//   Traps     slot, page, position or count out of range; more blocks than most_blocks says
//   Launch    prepare, scores, select, attend: each one launch over the rows of the step or of a group of G rows, so that scores of long
//             contexts stay bounded. Scores of a row stay in shared memory: budgets up to some 10,000 tokens. Few rows: the attention of a
//             row, and a long selection, is spread over a cluster of blocks where the GPU has them
//   Bytes     attention: 4*DH*HKV per position and row; scores: 2*DI per block and up to 64 rows
//   Oracle    cpu::qsa_layer, cpu::select_blocks
//   Tests     gpu/qsa_test, gpu/golden_kernels_test, gpu/index_trap_test; properties/state_test on the device; verify:
//             qsa.q_normed, qsa.selected, qsa.gated
#include "base/bf16.h"
#include "cuda/kernels/step_rows.h"
#include "cuda/runtime/stream.h"

namespace tetrad::cuda {

inline constexpr int kAttendChunk = 128;  // positions whose sums start from zero

struct QsaShape {
  int HQ, HKV, DH, HI, DI, R, DR;
  int k, v, index_q, index_k, row;  // offsets in a projected row, and its length rounded up to 8
  int topk, attended;               // blocks a row may select; positions it then attends to at most
  int max_blocks;                   // of the longest sequence: row length of scores
  int layer;
  float eps, rope_factor;
  std::size_t k_offset, v_offset, keys_offset;  // in a page
  std::size_t pending_offset;                   // in a slot
};

struct QsaWeightsView {
  const float *q_norm, *k_norm, *index_q_norm, *index_k_norm, *frequencies;
};

// Angles of T positions as the reference holds them: cos and sin rounded to bf16.
void rope_angles(int T, int half, const int* position, const float* frequencies, float factor, float* cos, float* sin,
                 const Stream& stream);

// Norms queries and keys in place, for a sink that wants to see them; qsa_prepare does it otherwise.
void qsa_norm(const QsaShape& s, const QsaWeightsView& w, bf16* projected, int T, const Stream& stream);
// Norms and rotates queries and index queries in place, writes keys and values to the pages, the block keys of the blocks that rows of this
// step complete, and the raw keys that stay pending.
void qsa_prepare(const QsaShape& s, const QsaWeightsView& w, bf16* projected, const float* cos, const float* sin, bool normed,
                 const StepRows& r, const Stream& stream);

// Rows [first, first + count) of the step.
struct QsaGroup {
  int first, count;
  float* scores;   // [count, max_blocks]; only rows with more than topk complete blocks are written
  int* positions;  // [count, attended]
  int* counts;     // [count]
};
void qsa_scores(const QsaShape& s, const bf16* projected, const QsaGroup& g, int most_blocks, const StepRows& r, const Stream& stream);
void qsa_select(const QsaShape& s, const QsaGroup& g, int most_blocks, const StepRows& r, const Stream& stream);
void qsa_attend(const QsaShape& s, const bf16* projected, const QsaGroup& g, bf16* y, const StepRows& r, const Stream& stream);

}  // namespace tetrad::cuda
