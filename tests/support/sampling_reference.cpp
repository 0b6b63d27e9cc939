#include "support/sampling_reference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

namespace tetrad::testing {

std::vector<double> adjusted_logits(std::span<const float> logits, const SamplingParams& params, std::span<const int> prompt,
                                    std::span<const int> answer) {
  std::vector<double> scores(logits.begin(), logits.end());
  for (const auto& [id, bias] : params.logit_bias) scores[static_cast<std::size_t>(id)] += bias;
  std::set<int> seen(prompt.begin(), prompt.end());
  seen.insert(answer.begin(), answer.end());
  for (const int id : seen) {
    double& score = scores[static_cast<std::size_t>(id)];
    score = score > 0 ? score / params.repetition_penalty : score * params.repetition_penalty;
  }
  for (const int id : answer) scores[static_cast<std::size_t>(id)] -= params.frequency_penalty;
  for (const int id : std::set<int>(answer.begin(), answer.end())) scores[static_cast<std::size_t>(id)] -= params.presence_penalty;
  return scores;
}

std::vector<double> reference_distribution(std::span<const float> logits, const SamplingParams& params, std::span<const int> prompt,
                                           std::span<const int> answer, double* closeness) {
  const std::vector<double> scores = adjusted_logits(logits, params, prompt, answer);
  std::vector<std::size_t> order(scores.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return scores[a] > scores[b]; });
  if (params.top_k > 0) order.resize(std::min(order.size(), static_cast<std::size_t>(params.top_k)));

  std::vector<double> mass;
  for (const std::size_t id : order) mass.push_back(std::exp((scores[id] - scores[order[0]]) / params.temperature));
  const double total = std::accumulate(mass.begin(), mass.end(), 0.0);
  double nearest = std::numeric_limits<double>::infinity();
  double before = 0;
  std::size_t kept = 0;
  for (; kept < order.size() && before < params.top_p * total; ++kept) {
    if (kept > 0) nearest = std::min(nearest, std::abs(before / (params.top_p * total) - 1));
    before += mass[kept];
  }
  if (kept < order.size()) nearest = std::min(nearest, std::abs(before / (params.top_p * total) - 1));
  std::vector<double> probability(scores.size(), 0.0);
  double kept_mass = 0;
  for (std::size_t i = 0; i < kept; ++i) {
    if (params.min_p > 0) nearest = std::min(nearest, std::abs(mass[i] / params.min_p - 1));
    if (mass[i] < params.min_p) continue;
    probability[order[i]] = mass[i];
    kept_mass += mass[i];
  }
  for (double& p : probability) p /= kept_mass;
  if (closeness != nullptr) *closeness = nearest;
  return probability;
}

}  // namespace tetrad::testing
