#pragma once
// Deliberate faults, one per promise of the contract headers that a test must be able to tell from its plausible violation. Compiled in
// only for tetrad_gpu_traps (TETRAD_GPU_MUTANTS), one binary with all of them; in the product mutant() is the constant false and leaves no
// code behind.
#include <cuda_runtime.h>

namespace tetrad::cuda {

enum class Mutant {
  kNone,
  kSegmentOrder,       // linear for few rows adds the segments of K from the last to the first
  kScaleOfNextBlock,   // FP8: a segment's sum takes the scale of the block of columns after it
  kNormWithoutOne,     // N1 norms multiply by w, not by 1 + w
  kEpsRemoved,         // no epsilon in the RMS norms
  kMixSum,             // streams are summed, not averaged
  kMixUnrounded,       // products of gate and normed stream are added unrounded
  kMixScaleAfterSilu,  // the division by HC comes after silu
  kInjectNotDoubled,   // injection weights without the factor 2
  kConvTapOrder,       // GDN convolution with its taps from the newest row to the oldest
  kConvSiluUnrounded,  // silu of the convolution's sum before that is rounded
  kWindowTooFar,       // windows of the convolutions moved on by one row too many
  kGdnHeadOrder,       // value head reads key head hv % HK instead of hv / (HV / HK)
  kGdnDecayAfterUpdate,
  kGdnNoL2Norm,  // keys and queries not normalised
  kSoftplusMissing,
  kBetaWithoutSigmoid,
  kBetaUnrounded,
  kGdnOtherGate,       // silu where the model has sigmoid, and the other way round
  kGdnNormUnrounded,   // the normed output is not rounded before its weight
  kRopeInterleaved,    // pairs (2i, 2i+1) instead of (i, i + DR/2)
  kRopeQueriesBehind,  // queries rotated by the angles of the row before
  kRopeUnrounded,      // products of a rotation are not rounded
  kRopeAtBlockEnd,     // block key rotated at its last token
  kPoolTruncated,      // pooled mean cut to bf16 instead of rounded
  kScoreWithoutRelu,
  kSelectionOffByOne,  // one block fewer than the budget
  kTieHigherIndex,     // of equal block scores the higher index is selected
  kTailDropped,        // of the incomplete block only the query's own token is attended
  kKvHeadOff,          // query heads read the key head after theirs
  kProbabilityTruncated,
  kOutputGateMissing,
  kRouterNoRenorm,
  kRouterTieHigher,      // of equal probabilities the higher expert is picked
  kExpertWeightOfNext,   // an expert's output takes the weight of the next rank
  kExpertGateUpSwapped,  // silu of up, not of gate
  kExpertSiluUnrounded,  // silu is not rounded before the product with up
  kRoutedSumRounded,     // the sum over experts is rounded after each of them
  kSharedGateMissing,
  kPleScaleMissing,       // FP8 table rows without the table's scale
  kPleContextNotCut,      // end-of-text does not cut the context
  kPleMultiplierOrder,    // multipliers in reverse order
  kPleGateNoRoot,         // gate without the signed square root
  kPleConvUndilated,      // convolution with dilation 1
  kPleSkipNormed,         // skip term is the normed value
  kEmbedFirstStreamOnly,  // the other streams start from zero
  kSampleTieHigher,       // of equal scores the higher id is the best
  kSampleDrawAtLeast,     // a token is drawn where the running sum reaches the target, not where it exceeds it
  kCount
};

#if !defined(TETRAD_GPU_MUTANTS)

#if defined(__CUDACC__)
__device__ constexpr bool mutant(Mutant) { return false; }
#endif

#else

// Every source has a selector of its own; this sets them all. The device must be idle.
void select_mutant(Mutant m);
const char* mutant_name(Mutant m);
using SetMutant = cudaError_t (*)(int);
bool add_mutant_setter(SetMutant set);

#if defined(__CUDACC__)
namespace {
__device__ int active_mutant;
[[maybe_unused]] const bool mutant_setter_added = add_mutant_setter([](int m) { return cudaMemcpyToSymbol(active_mutant, &m, sizeof(m)); });
}  // namespace
__device__ __forceinline__ bool mutant(Mutant m) { return active_mutant == static_cast<int>(m); }
#endif

#endif

}  // namespace tetrad::cuda
