#include "cpu/qsa_index.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/bf16.h"
#include "cpu/mutants.h"
#include "cpu/norm.h"
#include "cpu/vector_math.h"

namespace tetrad::cpu {
namespace {

// Larger is better: the score's order in the high half (NaN first, then descending), the inverted index in the low half.
std::uint64_t order_key(float score, int index) {
  std::uint32_t bits = std::bit_cast<std::uint32_t>(score == 0.0f ? 0.0f : score);
  bits = std::isnan(score) ? 0xffffffffu : (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return static_cast<std::uint64_t>(bits) << 32 | (0xffffffffu - static_cast<std::uint32_t>(index));
}

}  // namespace

void pool_block_key(const IndexGeometry& g, const float* raw, const float* norm_scale, const float* cos, const float* sin, int rotary_dim,
                    float* kb) {
  for (int i = 0; i < g.DI; ++i) {
    float sum = 0.0f;
    for (int r = 0; r < g.R; ++r) sum += raw[r * g.DI + i];
    kb[i] = round_bf16(mutant(Mutant::kPoolSum) ? sum : sum / static_cast<float>(g.R));
  }
  rms_norm_row(kb, norm_scale, g.eps, 1, g.DI, kb);
  RopeTable::rotate(kb, cos, sin, rotary_dim);
}

void index_query(const IndexGeometry& g, const float* norm_scale, const float* cos, const float* sin, int rotary_dim, float* q) {
  rms_norm_row(q, norm_scale, g.eps, 1, g.DI, q);
  RopeTable::rotate(q, cos, sin, rotary_dim);
}

void block_scores(const IndexGeometry& g, const float* q, const bf16* keys, int num_blocks, float* scores) {
  const float root = std::sqrt(static_cast<float>(g.DI));
  for (int b = 0; b < num_blocks; ++b) {
    const bf16* key = keys + static_cast<std::ptrdiff_t>(b) * g.DI;
    float sum = 0.0f;
    for (int j = 0; j < g.HI; ++j) {
      const float d = dot(q + static_cast<std::ptrdiff_t>(j) * g.DI, key, g.DI);
      sum += d < 0.0f && !mutant(Mutant::kScoreWithoutRelu) ? 0.0f : d;  // a comparison with NaN is false, so NaN passes
    }
    scores[b] = sum / root;
  }
}

int select_blocks(std::span<const float> scores, int topk, std::uint64_t* order, int* blocks) {
  const int count = static_cast<int>(scores.size());
  const int budget = mutant(Mutant::kSelectionOffByOne) ? topk - 1 : topk;
  const int chosen = std::min(count, budget);
  if (chosen < count) {
    for (int b = 0; b < count; ++b) order[b] = order_key(scores[static_cast<std::size_t>(b)], b);
    std::nth_element(order, order + chosen, order + count, std::greater<>());
    for (int i = 0; i < chosen; ++i) blocks[i] = static_cast<int>(0xffffffffu - static_cast<std::uint32_t>(order[i]));
    std::sort(blocks, blocks + chosen);
  } else {
    for (int b = 0; b < count; ++b) blocks[b] = b;
  }
  return chosen;
}

int expand_selection(const IndexGeometry& g, std::span<const int> blocks, int position, int* positions) {
  int count = 0;
  for (const int b : blocks)
    for (int r = 0; r < g.R; ++r) positions[count++] = b * g.R + r;
  const int first_tail = mutant(Mutant::kTailDropped) && (position + 1) % g.R != 0 ? position : (position + 1) / g.R * g.R;
  for (int p = first_tail; p <= position; ++p) positions[count++] = p;
  return count;
}

}  // namespace tetrad::cpu
