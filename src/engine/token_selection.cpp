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
constexpr std::size_t kLanes = 16;    // independent partial results, so that a pass is bound by memory and not by latency
constexpr std::size_t kBlock = 1024;  // elements between two looks at the partial results; a multiple of kLanes

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

// exp(x) for x <= 0: 2^n * e^r with |r| <= ln(2)/2, e^r by its Taylor polynomial of degree 7 (remainder below 5e-9).
inline float exp_nonpositive(float x) {
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
  const float power = std::bit_cast<float>((static_cast<std::int32_t>(n) + 127) << 23);
  return x < kLowest ? 0.0f : p * power;
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
  std::size_t of(float score) const {
    const float bucket = (best_ - score) * scale_;
    return bucket < static_cast<float>(kCount - 1) ? static_cast<std::size_t>(bucket) : kCount - 1;
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

void softmax_weights(std::span<const float> scores, float best, float temperature, std::span<float> weights) {
  TETRAD_CHECK(weights.size() == scores.size(), "softmax_weights: {} weights for {} scores", weights.size(), scores.size());
  for (std::size_t i = 0; i < scores.size(); ++i) weights[i] = exp_nonpositive((scores[i] - best) / temperature);
}

double sum_weights(std::span<const float> weights) {
  double total = 0;
  for (std::size_t begin = 0; begin < weights.size(); begin += kBlock)
    total += block_sum(weights.data() + begin, std::min(kBlock, weights.size() - begin));
  return total;
}

void keep_top_p(std::span<const float> scores, std::span<float> weights, double top_p) {
  if (top_p >= 1.0) return;
  float best = -kInfinity, lowest = kInfinity;  // over the scores that have a weight
  for (std::size_t i = 0; i < scores.size(); ++i) {
    if (weights[i] <= 0) continue;
    best = std::max(best, scores[i]);
    lowest = std::min(lowest, scores[i]);
  }
  const ScoreBuckets buckets(best, lowest);
  std::array<double, ScoreBuckets::kCount> mass{};
  for (std::size_t i = 0; i < scores.size(); ++i)
    if (weights[i] > 0) mass[buckets.of(scores[i])] += weights[i];

  double total = 0;
  for (const double m : mass) total += m;
  const double target = top_p * total;
  std::size_t crossing = 0;
  double before = 0;
  while (crossing + 1 < mass.size() && before + mass[crossing] < target) before += mass[crossing++];

  std::vector<ScoredToken> ranked;
  for (std::size_t i = 0; i < scores.size(); ++i)
    if (weights[i] > 0 && buckets.of(scores[i]) == crossing) ranked.push_back({scores[i], static_cast<int>(i)});
  std::sort(ranked.begin(), ranked.end(), ranks_before);
  ScoredToken last{kInfinity, -1};  // the last one kept; nothing of this bucket so far
  for (const ScoredToken& token : ranked) {
    if (before >= target) break;
    last = token;
    before += weights[static_cast<std::size_t>(token.id)];
  }
  for (std::size_t i = 0; i < scores.size(); ++i) {
    const std::size_t bucket = weights[i] > 0 ? buckets.of(scores[i]) : crossing + 1;
    if (bucket > crossing || (bucket == crossing && ranks_before(last, {scores[i], static_cast<int>(i)}))) weights[i] = 0;
  }
}

int draw_index(std::span<const float> weights, double uniform) {
  const double target = uniform * sum_weights(weights);
  double before = 0;
  int last_positive = -1;  // rounding of the partial sums can leave the target just above the end
  for (std::size_t begin = 0; begin < weights.size(); begin += kBlock) {
    const std::size_t end = std::min(begin + kBlock, weights.size());
    const double block = block_sum(weights.data() + begin, end - begin);
    if (block <= 0) continue;
    double running = before;
    if (before + block > target || end == weights.size()) {
      for (std::size_t i = begin; i < end; ++i) {
        if (weights[i] <= 0) continue;
        running += weights[i];
        last_positive = static_cast<int>(i);
        if (running > target) return last_positive;
      }
      if (before + block > target) return last_positive;
    } else {
      last_positive = static_cast<int>(end - 1);
      while (weights[static_cast<std::size_t>(last_positive)] <= 0) --last_positive;
    }
    before += block;
  }
  TETRAD_CHECK(last_positive >= 0, "draw_index: none of {} weights is positive", weights.size());
  return last_positive;
}

}  // namespace tetrad
