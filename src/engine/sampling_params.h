#pragma once
// What a request says about choosing tokens, and the check of every field.
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace tetrad {

struct SamplingParams {
  double temperature = 1.0;                             // 0: greedy
  int top_k = 0;                                        // 0 or -1: off
  double top_p = 1.0;                                   // 1: off
  double min_p = 0.0;                                   // 0: off
  double repetition_penalty = 1.0;                      // 1: off; prompt and answer count
  double presence_penalty = 0.0;                        // of tokens of the answer
  double frequency_penalty = 0.0;                       // of tokens of the answer
  std::vector<std::pair<int, double>> logit_bias = {};  // token id, added to its logit
  std::uint64_t seed = 0;
  std::optional<int> logprobs = {};  // report the chosen token and this many of the best

  bool greedy() const { return temperature == 0.0; }
};

inline constexpr double kMaxTemperature = 100.0;
inline constexpr double kMaxRepetitionPenalty = 10.0;
inline constexpr double kMaxAdditivePenalty = 2.0;
inline constexpr double kMaxLogitBias = 100.0;
inline constexpr int kMaxLogprobs = 20;

// Throws InputError naming the field, the allowed range and the value.
void validate(const SamplingParams& params, int vocab_size);

}  // namespace tetrad
