#pragma once
// How the next token is drawn from a row of logits: what a backend is told, what it answers, and the arithmetic that every backend shares,
// so that host and device choose the same id. engine/sampler.h says what the steps are for; this is what they compute:
//
//   score     the logit, adjusted (adjusted_score); minus infinity for an id that may not be chosen
//   exponent  (score - best) * inverse_temperature, a float; never falls where the score rises
//   weight    floor(exp(exponent) * 2^40), an integer: sums of weights are exact, so their order makes no difference
//   rank      higher score first (-0 equals 0), then lower id
//   top-k     the first top_k ids in rank order
//   top-p     of what top-k leaves, of mass M: the fewest ids in rank order whose mass is at least ceil(M * top_p / 2^64)
//   min-p     of what top-p leaves: exponent >= least_exponent
//   draw      of what min-p leaves, of mass M: the first id, ascending, with which the running sum of weights exceeds
//             floor(M * random / 2^64)
//
// Each filter keeps a beginning of the rank order: the ids above some score, and of those that equal it the first few.
#include <cstdint>
#include <limits>
#include <span>

#if defined(__CUDACC__)
#define TETRAD_HOST_DEVICE __host__ __device__
#else
#define TETRAD_HOST_DEVICE
#endif

namespace tetrad {

// What is done to the score of one id before anything else.
struct TokenAdjustment {
  enum Flags : unsigned { kBiased = 1, kUsed = 2, kInAnswer = 4 };
  int id = 0;  // in [0, V)
  unsigned flags = 0;
  float bias = 0;       // kBiased: added
  float frequency = 0;  // kInAnswer: subtracted
};

struct TokenChoice {
  int row = 0;                    // of logits of the last step
  int forced = -1;                // at least 0: this id, if the row is sound, and nothing below matters
  float inverse_temperature = 0;  // finite; 0: greedy, the first id in rank order
  int top_k = 0;                  // 0: off
  std::uint64_t top_p = 0;        // in units of 2^-64; 0: off
  float least_exponent = -std::numeric_limits<float>::infinity();
  std::uint64_t random = 0;                           // 64 random bits
  float repetition = 1, presence = 0;                 // of adjustments
  std::span<const TokenAdjustment> adjustments = {};  // every id at most once
  std::span<const std::uint32_t> mask = {};           // [ceil(V / 32)]: the ids that may be chosen (engine/token_mask.h); empty: all
};

// All choices of one step. Several may be of one row.
struct ChoiceBatch {
  int limit = 0;                    // only ids in [0, limit) are chosen
  std::span<const int> holes = {};  // but not these: ascending, below limit
  std::span<const TokenChoice> choices = {};
};

enum class ChoiceOutcome : int {
  kChosen,
  kUnsound,     // the row holds a NaN or plus infinity; id: the first one
  kNothing,     // no id is above minus infinity
  kNotAllowed,  // no id that the mask allows is
  kToInfinity,  // adjustments take an id to plus infinity, which has no weight; id: the first one. Greedy takes it
};

struct ChosenToken {
  int id = -1;
  ChoiceOutcome outcome = ChoiceOutcome::kChosen;
  float value = 0;  // kUnsound: what the row holds there
};

inline constexpr int kWeightBits = 40;
inline constexpr float kLargestScore = std::numeric_limits<float>::max();

TETRAD_HOST_DEVICE inline float adjusted_score(float score, const TokenAdjustment& by, float repetition, float presence) {
  if ((by.flags & TokenAdjustment::kBiased) != 0) score += by.bias;
  if ((by.flags & TokenAdjustment::kUsed) != 0) score = score > 0 ? score / repetition : score * repetition;
  if ((by.flags & TokenAdjustment::kInAnswer) != 0) {
    score -= by.frequency;
    score -= presence;
  }
  return score;
}

// exp(x) for x <= 0, to about 1e-7 relative, 0 below e^-87: 2^n * e^r with |r| <= ln(2)/2, e^r by its Taylor polynomial of degree 7
// (remainder below 5e-9). Our own, so that the bits depend on no library; no multiply and add are fused (compile options).
TETRAD_HOST_DEVICE inline float exp_nonpositive(float x) {
  constexpr float kLowest = -87.0f;  // 2^n stays a normal number
  constexpr float kLog2E = 1.44269504f, kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  constexpr float kRoundShift = 12582912.0f;  // 1.5 * 2^23: adding and subtracting it rounds to an integer
  const float clamped = x > kLowest ? x : kLowest;
  const float n = (clamped * kLog2E + kRoundShift) - kRoundShift;
  const float r = (clamped - n * kLn2High) - n * kLn2Low;
  float p = 1.0f / 5040.0f;
  p = p * r + 1.0f / 720.0f;
  p = p * r + 1.0f / 120.0f;
  p = p * r + 1.0f / 24.0f;
  p = p * r + 1.0f / 6.0f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const float power = __builtin_bit_cast(float, (static_cast<std::int32_t>(n) + 127) << 23);
  return x < kLowest ? 0.0f : p * power;
}

TETRAD_HOST_DEVICE inline float choice_exponent(float score, float best, float inverse_temperature) {
  return (score - best) * inverse_temperature;
}

// Of exp_nonpositive's value, which is at most 1.
TETRAD_HOST_DEVICE inline std::uint64_t fixed_weight(float weight) { return static_cast<std::uint64_t>(weight * 0x1p40f); }

// The high and the low half of a 128-bit product.
TETRAD_HOST_DEVICE inline std::uint64_t multiply_high(std::uint64_t a, std::uint64_t b) {
#if defined(__CUDA_ARCH__)
  return __umul64hi(a, b);
#else
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::uint64_t>((static_cast<Wide>(a) * b) >> 64);
#endif
}

// The mass that top-p must reach.
TETRAD_HOST_DEVICE inline std::uint64_t top_p_target(std::uint64_t mass, std::uint64_t top_p) {
  return multiply_high(mass, top_p) + (mass * top_p != 0 ? 1 : 0);
}

}  // namespace tetrad
