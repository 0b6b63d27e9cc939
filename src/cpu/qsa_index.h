#pragma once
// The sparse attention's indexer: block keys, block scores, selection (docs/model.md, "QSA").
#include <cstdint>
#include <span>

#include "base/bf16.h"
#include "cpu/rope.h"

namespace tetrad::cpu {

struct IndexGeometry {
  int HI, DI, R;  // index heads, their dimension, tokens per block
  int topk;       // blocks a query may select
  float eps;
};

// kb [DI] = rope(norm(bf(mean of R raw keys)), position of the block's first token); raw: R rows of DI, `ld` apart.
void pool_block_key(const IndexGeometry& g, const float* raw, const float* norm_scale, const float* cos, const float* sin, int rotary_dim,
                    float* kb);

// One query head in place: rope(norm(q), position).
void index_query(const IndexGeometry& g, const float* norm_scale, const float* cos, const float* sin, int rotary_dim, float* q);

// scores[b] = sum_j relu(q_j . keys_b) / sqrt(DI), float32, dot products in a fixed 8-lane order, heads ascending; q [HI, DI],
// keys [num_blocks, DI] bf16. A NaN stays a NaN.
void block_scores(const IndexGeometry& g, const float* q, const bf16* keys, int num_blocks, float* scores);

// The `topk` best of scores[0 .. num_blocks): higher score first, then lower index; -0 equals +0, a NaN ranks above everything so that it
// stays visible. Writes block indices ascending, returns how many. `order` is scratch of num_blocks.
int select_blocks(std::span<const float> scores, int topk, std::uint64_t* order, int* blocks);

// Expands blocks [0, nc) chosen as above plus the incomplete tail of a query at `position` to token positions, ascending.
int expand_selection(const IndexGeometry& g, std::span<const int> blocks, int position, int* positions);

}  // namespace tetrad::cpu
