#include "engine/token_selection.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <limits>

#include "base/error.h"

namespace tetrad {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr std::size_t kLanes = 16;        // independent partial results, so that a pass is bound by memory and not by latency
constexpr float kLeastWeight = 0x1p-40f;  // smaller ones are 0 as integers
constexpr std::size_t kBlock = 1024;      // elements between two looks at the partial results; a multiple of kLanes

float block_max(const float* scores, std::size_t count) {
  std::array<float, kLanes> lanes;
  lanes.fill(-kInfinity);
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (std::size_t lane = 0; lane < kLanes; ++lane) lanes[lane] = scores[i + lane] > lanes[lane] ? scores[i + lane] : lanes[lane];
  for (; i < count; ++i) lanes[0] = std::max(lanes[0], scores[i]);
  return *std::max_element(lanes.begin(), lanes.end());
}

double block_sum(const float* weights, std::size_t count) {
  std::array<double, kLanes> lanes{};
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (std::size_t lane = 0; lane < kLanes; ++lane) lanes[lane] += weights[i + lane];
  for (; i < count; ++i) lanes[0] += weights[i];
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

// Of one block: integers of at most 41 bits as two of at most 21, whose sums stay within 32 bits. The compiler makes vectors of it.
std::uint64_t block_mass(const float* weights, std::size_t count) {
  constexpr int kLowBits = 20;
  std::array<std::int32_t, kLanes> high{}, low{};
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const float scaled = weights[i + lane] * 0x1p20f;  // 2^(kWeightBits - kLowBits)
      const auto top = static_cast<std::int32_t>(scaled);
      high[lane] += top;
      low[lane] += static_cast<std::int32_t>((scaled - static_cast<float>(top)) * 0x1p20f);  // both operations exact
    }
  std::uint64_t mass = 0;
  for (; i < count; ++i) mass += fixed_weight(weights[i]);
  for (std::size_t lane = 0; lane < kLanes; ++lane)
    mass += (static_cast<std::uint64_t>(high[lane]) << kLowBits) + static_cast<std::uint64_t>(low[lane]);
  return mass;
}

void trim_to_best(std::vector<ScoredToken>& tokens, std::size_t k) {
  std::nth_element(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(k) - 1, tokens.end(), ranks_before);
  tokens.resize(k);
}

// Buckets of equal width over the scores, best first; a score and its bucket never disagree in order.
class ScoreBuckets {
 public:
  static constexpr std::size_t kCount = 2048;

  ScoreBuckets(float best, float lowest) : best_(best) {
    const float range = best - lowest;
    scale_ = range > 0 ? static_cast<float>(kCount - 1) / range : 0.0f;
  }
  std::uint16_t of(float score) const {
    constexpr float kLast = kCount - 1;
    const float bucket = (best_ - score) * scale_;
    return static_cast<std::uint16_t>(static_cast<std::int32_t>(bucket < kLast ? bucket : kLast));
  }

 private:
  float best_, scale_;
};

}  // namespace

int argmax(std::span<const float> scores) {
  float best = -kInfinity;
  std::size_t best_block = 0;
  for (std::size_t begin = 0; begin < scores.size(); begin += kBlock) {
    const float block_best = block_max(scores.data() + begin, std::min(kBlock, scores.size() - begin));
    if (block_best > best) {
      best = block_best;
      best_block = begin;
    }
  }
  if (best == -kInfinity) return -1;
  return static_cast<int>(std::find(scores.begin() + static_cast<std::ptrdiff_t>(best_block), scores.end(), best) - scores.begin());
}

bool is_sound(std::span<const float> scores) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  for (std::size_t begin = 0; begin < scores.size(); begin += kBlock) {
    const std::size_t end = std::min(begin + kBlock, scores.size());
    std::uint32_t unsound = 0;
    for (std::size_t i = begin; i < end; ++i) unsound |= static_cast<std::uint32_t>(!(scores[i] <= kLargest));
    if (unsound != 0) return false;
  }
  return true;
}

void copy_allowed(std::span<const float> scores, std::span<const std::uint32_t> mask, std::span<float> out) {
  constexpr std::size_t kWordBits = 32;
  TETRAD_CHECK(out.size() == scores.size() && mask.size() * kWordBits >= scores.size(), "copy_allowed: {} scores, {} words, {} results",
               scores.size(), mask.size(), out.size());
  static constexpr auto kBits = [] {
    std::array<std::uint32_t, kWordBits> bits{};
    for (std::size_t b = 0; b < kWordBits; ++b) bits[b] = std::uint32_t{1} << b;
    return bits;
  }();
  std::size_t i = 0;
  for (; i + kWordBits <= scores.size(); i += kWordBits) {
    const std::uint32_t word = mask[i / kWordBits];
    const float* from = scores.data() + i;
    float* to = out.data() + i;
    if (word == ~std::uint32_t{0})
      std::copy_n(from, kWordBits, to);
    else if (word == 0)
      std::fill_n(to, kWordBits, -kInfinity);
    else
      for (std::size_t b = 0; b < kWordBits; ++b) to[b] = (word & kBits[b]) != 0 ? from[b] : -kInfinity;
  }
  for (; i < scores.size(); ++i) out[i] = (mask[i / kWordBits] & kBits[i % kWordBits]) != 0 ? scores[i] : -kInfinity;
}

void select_top_k(std::span<const float> scores, int k, std::vector<ScoredToken>& best) {
  TETRAD_CHECK(k > 0, "select_top_k: k = {}", k);
  const std::size_t wanted = static_cast<std::size_t>(k);
  const std::size_t capacity = 2 * wanted + 64;
  float threshold = -kInfinity;  // a later index needs a score above it: at an equal score the earlier one ranks first
  best.clear();
  const auto consider = [&](std::size_t i) {
    if (!(scores[i] > threshold)) return;
    best.push_back({scores[i], static_cast<int>(i)});
    if (best.size() < capacity) return;
    trim_to_best(best, wanted);
    threshold = best.back().score;  // nth_element leaves the k-th best last
  };
  std::size_t i = 0;
  for (; i + kLanes <= scores.size(); i += kLanes) {
    std::uint32_t any = 0;
    for (std::size_t lane = 0; lane < kLanes; ++lane) any |= static_cast<std::uint32_t>(scores[i + lane] > threshold);
    if (any == 0) continue;
    for (std::size_t lane = 0; lane < kLanes; ++lane) consider(i + lane);
  }
  for (; i < scores.size(); ++i) consider(i);
  if (best.size() > wanted) trim_to_best(best, wanted);
  std::sort(best.begin(), best.end(), [](const ScoredToken& a, const ScoredToken& b) { return a.id < b.id; });
}

void softmax_weights(std::span<const float> scores, float best, float inverse_temperature, std::span<float> weights) {
  TETRAD_CHECK(weights.size() == scores.size(), "softmax_weights: {} weights for {} scores", weights.size(), scores.size());
  for (std::size_t i = 0; i < scores.size(); ++i) weights[i] = exp_nonpositive(choice_exponent(scores[i], best, inverse_temperature));
}

double sum_weights(std::span<const float> weights) {
  double total = 0;
  for (std::size_t begin = 0; begin < weights.size(); begin += kBlock)
    total += block_sum(weights.data() + begin, std::min(kBlock, weights.size() - begin));
  return total;
}

std::uint64_t mass_of(std::span<const float> weights) {
  std::uint64_t total = 0;
  for (std::size_t begin = 0; begin < weights.size(); begin += kBlock)
    total += block_mass(weights.data() + begin, std::min(kBlock, weights.size() - begin));
  return total;
}

std::uint64_t top_p_units(double top_p) {
  if (top_p >= 1.0) return 0;
  return std::max<std::uint64_t>(static_cast<std::uint64_t>(top_p * 0x1p64), 1);
}

// Of candidates whose mass reaches `missing`: halves that lie wholly on one side are settled at once.
KeptScores TopP::crossing(std::span<Candidate> candidates, std::uint64_t missing) {
  const auto before = [](const Candidate& a, const Candidate& b) { return ranks_before(a.token, b.token); };
  int better_ties = 0;  // of the candidates settled as kept, those that share the last one's score
  float last_kept = kInfinity;
  while (candidates.size() > 1) {
    const std::size_t half = candidates.size() / 2;
    std::nth_element(candidates.begin(), candidates.begin() + static_cast<std::ptrdiff_t>(half), candidates.end(), before);
    std::uint64_t mass = 0;
    for (const Candidate& c : candidates.first(half)) mass += c.weight;
    if (mass >= missing) {
      candidates = candidates.first(half);
      continue;
    }
    missing -= mass;
    const float lowest =
        std::min_element(candidates.begin(), candidates.begin() + static_cast<std::ptrdiff_t>(half), [](const auto& a, const auto& b) {
          return a.token.score < b.token.score;
        })->token.score;
    if (lowest != last_kept) better_ties = 0;
    last_kept = lowest;
    for (const Candidate& c : candidates.first(half)) better_ties += c.token.score == lowest ? 1 : 0;
    candidates = candidates.subspan(half);
  }
  const float least = candidates.front().token.score;
  return {least, 1 + (least == last_kept ? better_ties : 0)};
}

KeptScores TopP::keep(std::span<const float> scores, std::span<const float> weights, std::uint64_t top_p) {
  const std::size_t count = scores.size();
  float best = -kInfinity, lowest = kInfinity;  // over the scores that have a weight
  std::array<float, kLanes> highs, lows;
  highs.fill(-kInfinity), lows.fill(kInfinity);
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const float score = scores[i + lane];
      const float low = weights[i + lane] >= kLeastWeight ? score : kInfinity;
      highs[lane] = score > highs[lane] ? score : highs[lane];
      lows[lane] = low < lows[lane] ? low : lows[lane];
    }
  for (; i < count; ++i) {
    highs[0] = std::max(highs[0], scores[i]);
    if (weights[i] >= kLeastWeight) lows[0] = std::min(lows[0], scores[i]);
  }
  best = *std::max_element(highs.begin(), highs.end()), lowest = *std::min_element(lows.begin(), lows.end());
  const ScoreBuckets buckets(best, lowest);
  buckets_.resize(count);
  for (std::size_t j = 0; j < count; ++j) buckets_[j] = buckets.of(scores[j]);

  // Neighbours often share a bucket: two tables in turn, so that an addition need not wait for the one before it.
  std::array<std::array<std::uint64_t, ScoreBuckets::kCount>, 2> masses{};
  for (std::size_t j = 0; j < count; ++j) masses[j % 2][buckets_[j]] += fixed_weight(weights[j]);
  std::uint64_t total = 0;
  for (std::size_t b = 0; b < ScoreBuckets::kCount; ++b) total += masses[0][b] += masses[1][b];

  std::uint64_t missing = top_p_target(total, top_p);
  std::size_t crossing_bucket = 0;
  while (masses[0][crossing_bucket] < missing) missing -= masses[0][crossing_bucket++];
  const auto wanted = static_cast<std::uint16_t>(crossing_bucket);
  candidates_.clear();
  const auto consider = [&](std::size_t j) {
    if (buckets_[j] == wanted && weights[j] >= kLeastWeight)
      candidates_.push_back({{scores[j], static_cast<int>(j)}, fixed_weight(weights[j])});
  };
  for (i = 0; i + kLanes <= count; i += kLanes) {
    std::uint16_t any = 0;
    for (std::size_t lane = 0; lane < kLanes; ++lane) any |= static_cast<std::uint16_t>(buckets_[i + lane] == wanted);
    if (any == 0) continue;
    for (std::size_t lane = 0; lane < kLanes; ++lane) consider(i + lane);
  }
  for (; i < count; ++i) consider(i);
  return crossing(candidates_, missing);
}

void drop_others(std::span<const float> scores, KeptScores kept, std::span<float> weights) {
  TETRAD_CHECK(weights.size() == scores.size(), "drop_others: {} weights for {} scores", weights.size(), scores.size());
  int ties = 0;
  const auto settle = [&](std::size_t i) {
    if (scores[i] < kept.least || (scores[i] == kept.least && ++ties > kept.ties)) weights[i] = 0;
  };
  std::size_t i = 0;
  for (; i + kLanes <= scores.size(); i += kLanes) {
    std::uint32_t any = 0;
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      any |= static_cast<std::uint32_t>(scores[i + lane] == kept.least);
      weights[i + lane] = scores[i + lane] < kept.least ? 0.0f : weights[i + lane];
    }
    if (any == 0) continue;
    for (std::size_t lane = 0; lane < kLanes; ++lane) settle(i + lane);
  }
  for (; i < scores.size(); ++i) settle(i);
}

int draw_index(std::span<const float> weights, std::uint64_t random) {
  std::vector<std::uint64_t> blocks;
  blocks.reserve(weights.size() / kBlock + 1);
  std::uint64_t total = 0;
  for (std::size_t begin = 0; begin < weights.size(); begin += kBlock) {
    blocks.push_back(block_mass(weights.data() + begin, std::min(kBlock, weights.size() - begin)));
    total += blocks.back();
  }
  TETRAD_CHECK(total > 0, "draw_index: none of {} weights is positive", weights.size());
  std::uint64_t target = multiply_high(total, random);
  std::size_t block = 0;
  while (blocks[block] <= target) target -= blocks[block++];
  std::size_t i = block * kBlock;
  for (;; ++i) {
    const std::uint64_t weight = fixed_weight(weights[i]);
    if (weight > target) return static_cast<int>(i);
    target -= weight;
  }
}

}  // namespace tetrad
