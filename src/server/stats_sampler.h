#pragma once
// The engine's recent past: its statistics of every second of the last minute. Every member may be called from any thread.
#include <chrono>
#include <deque>
#include <mutex>
#include <optional>

#include "engine/engine_stats.h"
#include "server/activity.h"

namespace tetrad {

// Of observations since an earlier look, estimated within the histogram's buckets. count 0: nothing is known.
struct Percentiles {
  std::uint64_t count = 0;
  double p50 = 0, p90 = 0, p99 = 0;
};
Percentiles percentiles_between(const Histogram& before, const Histogram& now);

class StatsSampler {
 public:
  using Clock = std::chrono::steady_clock;

  static constexpr std::chrono::seconds kRateWindow{5}, kKept{60};

  void add(EngineStats stats, Clock::time_point now = Clock::now());

  struct Look {
    double seconds = 0;  // since then
    EngineStats stats;
  };
  // The newest sample that is at least this old, or the oldest there is; nothing before the first.
  std::optional<Look> before(std::chrono::seconds age, Clock::time_point now = Clock::now()) const;

 private:
  struct Sample {
    Clock::time_point time;
    EngineStats stats;
  };
  mutable std::mutex mutex_;
  std::deque<Sample> samples_;  // oldest first
};

}  // namespace tetrad
