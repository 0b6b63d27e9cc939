#include "server/stats_sampler.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace tetrad {

Percentiles percentiles_between(const Histogram& before, const Histogram& now) {
  const auto bounds = now.upper_bounds();
  std::vector<double> grown(now.counts().size());
  for (std::size_t i = 0; i < grown.size(); ++i)
    grown[i] = static_cast<double>(now.counts()[i] - std::min(before.counts()[i], now.counts()[i]));
  Percentiles result;
  result.count = now.count() - std::min(before.count(), now.count());
  if (result.count == 0) return result;
  const auto value_at = [&](double share) {
    double left = share * static_cast<double>(result.count), low = 0;
    for (std::size_t i = 0; i < bounds.size(); ++i) {
      if (grown[i] > 0 && left <= grown[i]) return low + (bounds[i] - low) * left / grown[i];
      left -= grown[i];
      low = bounds[i];
    }
    return low;  // above the last bound: at least that
  };
  result.p50 = value_at(0.5);
  result.p90 = value_at(0.9);
  result.p99 = value_at(0.99);
  return result;
}

void StatsSampler::add(EngineStats stats, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  samples_.push_back({now, std::move(stats)});
  while (samples_.size() > 1 && now - samples_.front().time > kKept) samples_.pop_front();
}

std::optional<StatsSampler::Look> StatsSampler::before(std::chrono::seconds age, Clock::time_point now) const {
  const std::lock_guard lock(mutex_);
  if (samples_.empty()) return std::nullopt;
  auto found = samples_.begin();
  for (auto sample = samples_.begin(); sample != samples_.end() && now - sample->time >= age; ++sample) found = sample;
  return Look{std::chrono::duration<double>(now - found->time).count(), found->stats};
}

}  // namespace tetrad
