#pragma once
// sample: the next token of each choice from a row of logits, to the id what the host's sampler chooses.
//   Math      model/token_choice.h: scores, exponents, integer weights, top-k, top-p, min-p, draw
//   Inputs    logits [R, V] f32; per choice its row, parameters, adjustments and mask [ceil(V/32)]; holes of the vocabulary
//   Output    chosen [C]: id, outcome, value (ChosenToken), whole; scratch is undefined afterwards
//   Rounding  float32, each operation once, as on the host; weights and their sums are integers
//   NaN       a row with a NaN or plus infinity gives kUnsound with the first of them; the other choices are unaffected
//   Order     makes no difference: maxima, counts and integer sums. Of equal scores the lower id first, ids drawn in ascending order
//   Traps     row, mask, adjustments or an adjusted id out of range
//   Selection  the k-th largest of the best scores of 256 groups of ids is one that at least k scores reach. Where no more than 1024
//             reach it, these go to the first block, which sorts them, cuts by top-k and top-p, and draws: for top-k up to 256, and for
//             top-p alone with k = 192 where they have the mass that it wants. All else, in ever narrower ranges of scores: counts or
//             weights of 1024 bins, by score first, then by key
//   Bytes     4 V per choice from memory, the mask, and 16 per adjustment and block. Passes over the scores, in shared memory (scratch: in
//             the L2): read 1, best scores 1; greedy 1 more. From few: one by the warps that have some, weights 1 with top-p alone.
//             Else: top-k and top-p 2 each, and 2 for every further range (at most 4 more), draw 1 and 1/256
//   Launch    a cluster of 8 blocks per choice where there are clusters, elsewhere one block; 1024 threads, 37 KiB of shared memory, and
//             4 bytes per score where that fits, otherwise scores lie in the scratch of sample_plan. Candidates for which the first
//             block has no room are chosen from in ranges, so none can be short
//   Oracle    RowChooser
//   Tests     gpu/sample_test, gpu/index_trap_test
#include <cstddef>
#include <cstdint>

#include "cuda/runtime/stream.h"
#include "model/token_choice.h"

namespace tetrad::cuda {

// TokenChoice with places in the arrays of the call for what that points to.
struct DeviceChoice {
  std::uint64_t top_p = 0, random = 0;
  float inverse_temperature = 0, least_exponent = 0, repetition = 1, presence = 0;
  int row = 0, forced = -1, top_k = 0;
  int mask = -1;  // index; -1: every id is allowed
  int first_adjustment = 0, num_adjustments = 0;
};

struct SampleArgs {
  int num_choices = 0, num_rows = 0, V = 0, limit = 0;
  int num_holes = 0, num_adjustments = 0, num_masks = 0;
  const float* logits = nullptr;                 // [num_rows, V]
  const DeviceChoice* choices = nullptr;         // [num_choices]
  const int* holes = nullptr;                    // [num_holes] in [0, V)
  const TokenAdjustment* adjustments = nullptr;  // [num_adjustments]; those of a choice are of different ids
  const std::uint32_t* masks = nullptr;          // [num_masks, ceil(V / 32)]
  ChosenToken* chosen = nullptr;                 // [num_choices]
  float* scratch = nullptr;                      // [num_choices, SamplePlan::scratch_floats]
};

// How the scores of a row lie on this device.
struct SamplePlan {
  int peers = 1;                   // blocks per choice
  int items = 0;                   // scores per thread, a multiple of 4
  std::size_t shared_bytes = 0;    // scores of a block, in shared memory; 0: in the scratch
  std::size_t scratch_floats = 0;  // per choice
};

// Vocabularies up to this size: a block's sums of parts of weights stay within 32 bits.
inline constexpr int kSampleMostIds = 1 << 18;

// V in [1, kSampleMostIds].
SamplePlan sample_plan(int V, const Stream& stream);
// With so many blocks per choice: 1, or 8 where there are clusters; scores in shared memory, where that is allowed, or in the scratch.
SamplePlan sample_plan(int V, int peers, bool in_shared);
// No choices are a no-op. The plan is that of V and this device.
void sample(const SampleArgs& a, const SamplePlan& plan, const Stream& stream);

}  // namespace tetrad::cuda
