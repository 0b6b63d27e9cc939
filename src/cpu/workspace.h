#pragma once
// Scratch of one step, sized once from the largest step, so that a step allocates nothing. Activations are floats that hold bf16 values.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/bf16.h"
#include "cpu/matmul.h"
#include "model/config.h"

namespace tetrad::cpu {

struct Workspace {
  Workspace(const Config& config, int max_rows, int max_positions);
  std::size_t bytes() const;

  // [T, ...] of the whole step
  std::vector<float> streams;             // [T, HC*D]
  std::vector<float> x, y;                // [T, D] input and output of a sub-block
  std::vector<float> inject;              // [T, HC]
  std::vector<float> normed;              // [T, HC*D]
  std::vector<float> low_rank;            // [T, LR + HC]
  std::vector<float> stream_gate;         // [T, HC*D]
  std::vector<float> projected;           // [T, widest in-projection]
  std::vector<float> heads;               // [T, widest core output]
  std::vector<float> conv;                // [T, conv_dim]
  std::vector<float> decay, beta;         // [T, HV]
  std::vector<float> rope_cos, rope_sin;  // [T, DR/2]

  // QSA, a group of kRowGroup rows at a time
  static constexpr int kRowGroup = 16;
  std::vector<float> block_scores;          // [kRowGroup, max blocks]
  std::vector<std::uint64_t> block_order;   // [kRowGroup, max blocks]
  std::vector<int> selected_blocks;         // [kRowGroup, topk + 1]
  std::vector<int> selected;                // [kRowGroup, budget + R]
  std::vector<const bf16*> k_rows, v_rows;  // [kRowGroup, budget + R]
  std::vector<float> attention_scores;      // [kRowGroup, HQ, budget + R]
  std::vector<float> raw_index_keys;        // [R + 1, DI]
  std::vector<float> block_rope;            // [DR] cos, then sin

  // MoE
  std::vector<float> router_logits;   // [T, E]
  std::vector<float> router_probs;    // [T, E]
  std::vector<int> expert_ids;        // [T, EK], descending weight
  std::vector<float> expert_weights;  // [T, EK]
  std::vector<int> expert_first;      // [E + 1] prefix sums of rows per expert
  std::vector<int> expert_rows;       // [T*EK] place in the grouped order of (t, k)
  std::vector<float> grouped_x;       // [T*EK, D]
  std::vector<float> grouped_hidden;  // [T*EK, 2F]
  std::vector<float> grouped_out;     // [T*EK, D]
  std::vector<float> shared_hidden;   // [T, 2*FS + 1]
  std::vector<float> shared_out;      // [T, D]
  std::vector<MatmulJob> jobs;        // E + 1

  // PLE
  std::vector<std::int64_t> ngram_rows;      // [T, NG]
  std::vector<float> ngram_embedding;        // [T, ple_embed_dim]
  std::vector<float> ple_key_value;          // [T, HC*D + D]
  std::vector<float> ple_gated, ple_normed;  // [T, HC*D]

  // logits
  std::vector<float> logit_rows;  // [T, D]
};

}  // namespace tetrad::cpu
