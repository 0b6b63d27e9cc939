// Properties of sampling and of stop strings against brute force.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>

#include "engine/stop_strings.h"
#include "engine/token_selection.h"
#include "support/sampling_reference.h"

namespace tetrad::sampling_properties_test {
namespace {

std::vector<float> draw_scores(int count) {
  const bool ties = *rc::gen::arbitrary<bool>();
  std::vector<float> scores;
  for (int i = 0; i < count; ++i)
    scores.push_back(ties ? static_cast<float>(*rc::gen::inRange(-6, 7)) : static_cast<float>(*rc::gen::inRange(-80000, 80000)) / 8000.0f);
  return scores;
}

RC_GTEST_PROP(token_selection, top_k_equals_a_full_sort, ()) {
  const int count = *rc::gen::inRange(1, 700);
  const int k = *rc::gen::inRange(1, 40);
  const std::vector<float> scores = draw_scores(count);
  std::vector<ScoredToken> all, best;
  for (int i = 0; i < count; ++i) all.push_back({scores[static_cast<std::size_t>(i)], i});
  std::sort(all.begin(), all.end(), ranks_before);
  all.resize(static_cast<std::size_t>(std::min(k, count)));
  select_top_k(scores, k, best);
  std::sort(best.begin(), best.end(), ranks_before);
  RC_ASSERT(best.size() == all.size());
  for (std::size_t i = 0; i < all.size(); ++i) RC_ASSERT(best[i].id == all[i].id && best[i].score == all[i].score);
}

RC_GTEST_PROP(token_selection, top_p_and_min_p_keep_the_sets_of_brute_force, ()) {
  const int count = *rc::gen::inRange(1, 400);
  const std::vector<float> scores = draw_scores(count);
  SamplingParams params;
  params.temperature = *rc::gen::element(0.3, 0.7, 1.0, 1.9, 20.0);
  params.top_p = *rc::gen::inRange(1, 1001) / 1000.0;
  double closeness = 0;
  const std::vector<double> expected = testing::reference_distribution(scores, params, {}, {}, &closeness);
  RC_PRE(closeness > 1e-5);  // float weights cannot decide closer calls as double does
  std::vector<float> weights(scores.size());
  softmax_weights(scores, *std::max_element(scores.begin(), scores.end()), 1.0f / static_cast<float>(params.temperature), weights);
  if (params.top_p < 1) drop_others(scores, TopP().keep(scores, weights, top_p_units(params.top_p)), weights);
  const double total = sum_weights(weights);
  for (std::size_t i = 0; i < scores.size(); ++i) {
    RC_ASSERT((weights[i] > 0) == (expected[i] > 0));
    RC_ASSERT(std::abs(weights[i] / total - expected[i]) <= 1e-5 * expected[i]);
  }
}

RC_GTEST_PROP(token_selection, a_draw_inverts_the_cumulative_distribution, ()) {
  const int count = *rc::gen::inRange(1, 3000);
  std::vector<float> weights;
  for (int i = 0; i < count; ++i) weights.push_back(static_cast<float>(*rc::gen::inRange(0, 4)) * 0.25f);  // many zeros
  weights[static_cast<std::size_t>(*rc::gen::inRange(0, count))] = 1;
  const auto random = static_cast<std::uint64_t>(*rc::gen::inRange(0, 1 << 20)) << 44;
  std::uint64_t total = 0, running = 0;
  for (const float w : weights) total += fixed_weight(w);
  RC_ASSERT(mass_of(weights) == total);
  int expected = -1;
  for (int i = 0; i < count && expected < 0; ++i) {
    running += fixed_weight(weights[static_cast<std::size_t>(i)]);
    if (running > multiply_high(total, random)) expected = i;
  }
  RC_ASSERT(draw_index(weights, random) == expected);
  RC_ASSERT(weights[static_cast<std::size_t>(draw_index(weights, ~std::uint64_t{0}))] > 0);
}

RC_GTEST_PROP(token_selection, masses_are_exact_sums, ()) {
  const int count = *rc::gen::inRange(1, 5000);
  std::vector<float> weights;
  std::uint64_t total = 0;
  for (int i = 0; i < count; ++i) {
    weights.push_back(exp_nonpositive(-static_cast<float>(*rc::gen::inRange(0, 1 << 24)) * 0x1p-19f));
    total += fixed_weight(weights.back());
  }
  RC_ASSERT(mass_of(weights) == total);
}

// The shortest prefix of the text that ends in a stop string, and of the stop strings that end there the longest.
std::pair<std::string, bool> stop_by_brute_force(const std::string& text, const std::vector<std::string>& stops, bool include_stop) {
  for (std::size_t end = 1; end <= text.size(); ++end) {
    const std::string prefix = text.substr(0, end);
    std::size_t longest = 0;
    for (const std::string& stop : stops)
      if (prefix.ends_with(stop)) longest = std::max(longest, stop.size());
    if (longest > 0) return {include_stop ? prefix : prefix.substr(0, end - longest), true};
  }
  return {text, false};
}

RC_GTEST_PROP(stop_strings, the_result_does_not_depend_on_the_cuts, ()) {
  const auto letter = rc::gen::element('a', 'b');
  const auto text = *rc::gen::container<std::string>(letter);
  const auto stops = *rc::gen::resize(
      5, rc::gen::nonEmpty(rc::gen::container<std::vector<std::string>>(rc::gen::nonEmpty(rc::gen::container<std::string>(letter)))));
  const bool include_stop = *rc::gen::arbitrary<bool>();
  const auto expected = stop_by_brute_force(text, stops, include_stop);
  StopStrings matcher(stops, include_stop);
  std::string shown;
  for (std::size_t begin = 0; begin < text.size() && !matcher.stopped();) {
    const auto length = static_cast<std::size_t>(*rc::gen::inRange(1, 6));
    shown += matcher.feed(std::string_view(text).substr(begin, length));
    begin += length;
    RC_ASSERT(expected.first.starts_with(shown));  // never shown too early
  }
  if (!matcher.stopped()) shown += matcher.finish();
  RC_ASSERT(shown == expected.first);
  RC_ASSERT(matcher.stopped() == expected.second);
}

}  // namespace
}  // namespace tetrad::sampling_properties_test
