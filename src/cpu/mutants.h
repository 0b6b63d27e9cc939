#pragma once
// Deliberate faults, one per promise the goldens must be able to tell from its plausible violation. Compiled in only for the trap tests
// (TETRAD_MUTANTS); in the product mutant() is the constant false and leaves no code behind.
#include <string_view>

namespace tetrad::cpu {

enum class Mutant {
  kNone,
  kNormWithoutOne,      // N1 norms multiply by w, not by 1 + w
  kNormOverAllStreams,  // hyper-connection norm takes one mean over all streams
  kEpsRemoved,          // no epsilon in the RMS norms
  kMixSum,              // streams are summed, not averaged
  kMixScaleAfterSilu,   // the division by HC comes after silu
  kMixRawStreams,       // gates multiply the raw streams, not the normed ones
  kInjectNotDoubled,    // injection weights without the factor 2
  kInjectIntoNormed,    // sub-block output is added to the normed streams
  kConvShifted,         // GDN convolution window one token late
  kConvWithoutSilu,
  kGdnHeadOrder,         // value head reads key head hv % HK instead of hv / (HV / HK)
  kGdnStateTransposed,   // one-token steps address S as [V, K], longer ones as [K, V]
  kGdnDecayAfterUpdate,  // decay applied after the update
  kGdnReadBeforeUpdate,  // output read from the state before the update
  kGdnNoL2Norm,          // keys and queries not normalised
  kGdnGateBeforeNorm,    // output gate applied before the norm
  kSoftplusMissing,      // decay from a + dt_bias without softplus
  kBetaWithoutSigmoid,
  kRopeAtBlockEnd,   // block key rotated at its last token
  kRopeInterleaved,  // pairs (2i, 2i+1) instead of (i, i + DR/2)
  kRopePositionOff,  // positions one too large for queries
  kPoolSum,          // block keys are sums, not means
  kScoreWithoutRelu,
  kSelectionOffByOne,  // one block fewer than the budget
  kTailDropped,        // of the incomplete block only the query's own token is attended
  kOwnBlockAlways,     // a complete own block is always attended
  kKvHeadOff,          // query head hd reads kv head (hd / group + 1) % HKV
  kOutputGateMissing,
  kSwapQueryAndGate,  // gate rows before query rows
  kRouterNoRenorm,
  kRouterTopkOneFewer,
  kExpertGateUpSwapped,
  kSharedGateMissing,
  kPleContextZero,      // n-gram context starts with token 0 instead of end-of-text
  kPleContextNotCut,    // end-of-text does not cut the context
  kPleMultiplierOrder,  // multipliers in reverse order
  kPleGateNoRoot,       // gate without the signed square root
  kPleConvUndilated,    // convolution with dilation 1
  kPleSkipNormed,       // skip term is the normed value
  kPleAfterAttention,   // n-gram features added after the first sub-block
  kFloatMix,            // f32 kept where the reference rounds: the hyper-connection mix
  kFloatExperts,        // f32 kept between expert activation and down projection
  kFloatRope,           // f32 kept in the rotary products
  kCount
};

#ifdef TETRAD_MUTANTS
extern Mutant active_mutant;  // set by the trap tests before a model is built
inline bool mutant(Mutant m) { return active_mutant == m; }
std::string_view mutant_name(Mutant m);
#else
constexpr bool mutant(Mutant) { return false; }
#endif

}  // namespace tetrad::cpu
