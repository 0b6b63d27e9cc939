#pragma once
// Activations of one step on the device, sized once from the largest step, and the arrays through which a step is described to kernels.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/bf16.h"
#include "cuda/kernels/moe.h"
#include "cuda/kernels/step_rows.h"
#include "cuda/runtime/memory.h"
#include "model/backend.h"

namespace tetrad::cuda {

// Rows of activations start at multiples of 16 bytes: the linears read them in such pieces.
constexpr int padded(int width) { return (width + 7) / 8 * 8; }

class Workspace {
 public:
  // Scores of long contexts are kept for this many rows at a time, or fewer so that they stay within kScoreBytes.
  static constexpr std::size_t kScoreBytes = std::size_t{64} << 20;
  static constexpr std::size_t kLogitBytes = std::size_t{64} << 20;

  Workspace(const Config& config, int max_rows, int max_positions);
  std::size_t bytes() const { return memory_.bytes(); }

  int low_width, low_ld, projected_ld, moe_in_ld, hidden_ld, act_ld, shared_act_ld, embedding_ld, key_value_ld;
  int group_rows;  // rows per group of the sparse attention
  int max_blocks;  // block scores per row
  int logit_rows;  // rows of logits at a time

  bf16 *streams, *streams_after;  // a kernel that others read at the same time writes to the second, then they change places
  bf16 *inject, *inject_after;
  bf16 *x, *y, *normed, *low_logits, *low, *stream_gate, *projected, *heads, *conv;
  float* low_sums;  // [segments, kFewLinearRows, padded LR + HC]
  float *decay, *beta, *unit_scales, *rope_cos, *rope_sin;
  unsigned* arrivals;  // of gdn_step: [max_rows, HK], zero between steps
  float* block_scores;
  int *positions, *counts;
  bf16* moe_in;
  int* expert_ids;
  float* expert_weights;
  MoeGrouping grouping;
  bf16 *hidden, *act, *expert_out, *shared_act, *shared_out, *routed;
  std::int64_t* ngram_rows;
  bf16 *ngram_embedding, *key_value, *ple_gated, *ple_normed, *ple_out;
  bf16 *wanted, *logits;
  float* wide_logits;
  int* faults;

 private:
  void place(const Config& c, int max_rows, std::byte* memory, std::size_t* bytes);
  DeviceBuffer<std::byte> memory_;
};

}  // namespace tetrad::cuda
