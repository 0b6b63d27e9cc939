#pragma once
// Scratch of one step, sized once from the largest step, so that a step allocates nothing, in huge pages where there are any. Activations
// are floats that hold bf16 values.
#include <cstddef>
#include <cstdint>

#include "base/bf16.h"
#include "cpu/aligned_buffer.h"
#include "cpu/matmul.h"
#include "model/config.h"

namespace tetrad::cpu {

struct Workspace {
  Workspace(const Config& config, int max_rows, int max_positions);
  std::size_t bytes() const;

  // [T, ...] of the whole step
  AlignedVector<float> streams;             // [T, HC*D]
  AlignedVector<float> x, y;                // [T, D] input and output of a sub-block
  AlignedVector<float> inject;              // [T, HC]
  AlignedVector<float> normed;              // [T, HC*D]
  AlignedVector<float> low_rank;            // [T, LR + HC]
  AlignedVector<float> stream_gate;         // [T, HC*D]
  AlignedVector<float> projected;           // [T, widest in-projection]
  AlignedVector<float> heads;               // [T, widest core output]
  AlignedVector<float> conv;                // [T, conv_dim]
  AlignedVector<float> decay, beta;         // [T, HV]
  AlignedVector<float> rope_cos, rope_sin;  // [T, DR/2]

  // QSA, a group of kRowGroup rows at a time
  static constexpr int kRowGroup = 16;
  AlignedVector<float> block_scores;          // [kRowGroup, max blocks]
  AlignedVector<std::uint64_t> block_order;   // [kRowGroup, max blocks]
  AlignedVector<int> selected_blocks;         // [kRowGroup, topk + 1]
  AlignedVector<int> selected;                // [kRowGroup, budget + R]
  AlignedVector<const bf16*> k_rows, v_rows;  // [kRowGroup, budget + R]
  AlignedVector<float> attention_scores;      // [kRowGroup, HQ, budget + R]
  AlignedVector<float> raw_index_keys;        // [R + 1, DI]
  AlignedVector<float> block_rope;            // [DR] cos, then sin

  // MoE
  AlignedVector<float> router_logits;   // [T, E]
  AlignedVector<float> router_probs;    // [T, E]
  AlignedVector<int> expert_ids;        // [T, EK], descending weight
  AlignedVector<float> expert_weights;  // [T, EK]
  AlignedVector<int> expert_first;      // [E + 1] prefix sums of rows per expert
  AlignedVector<int> expert_rows;       // [T*EK] place in the grouped order of (t, k)
  AlignedVector<float> grouped_x;       // [T*EK, D]
  AlignedVector<float> grouped_hidden;  // [T*EK, 2F]
  AlignedVector<float> grouped_out;     // [T*EK, D]
  AlignedVector<float> shared_hidden;   // [T, 2*FS + 1]
  AlignedVector<float> shared_out;      // [T, D]
  AlignedVector<MatmulJob> jobs;        // E + 1

  // PLE
  AlignedVector<std::int64_t> ngram_rows;      // [T, NG]
  AlignedVector<float> ngram_embedding;        // [T, ple_embed_dim]
  AlignedVector<float> ple_key_value;          // [T, HC*D + D]
  AlignedVector<float> ple_gated, ple_normed;  // [T, HC*D]

  // logits
  AlignedVector<float> logit_rows;  // [T, D]
};

}  // namespace tetrad::cpu
