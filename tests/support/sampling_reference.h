#pragma once
// The sampling formulas in double and with full sorts: what the sampler is held to.
#include <span>
#include <vector>

#include "engine/sampling_params.h"

namespace tetrad::testing {

// Logits after bias and penalties.
std::vector<double> adjusted_logits(std::span<const float> logits, const SamplingParams& params, std::span<const int> prompt,
                                    std::span<const int> answer);

// The probability of every id; 0 for an id outside the filters. `closeness`, if given, receives the least distance of a filter's decision
// from its border, relative to the border: a set is only comparable where it is well above float rounding.
std::vector<double> reference_distribution(std::span<const float> logits, const SamplingParams& params, std::span<const int> prompt = {},
                                           std::span<const int> answer = {}, double* closeness = nullptr);

}  // namespace tetrad::testing
