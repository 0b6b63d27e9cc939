#pragma once
// What the engine counts, for /metrics and the status page. Counters only grow; gauges are of the moment the statistics were taken.
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/engine_events.h"
#include "engine/prefix_cache.h"

namespace tetrad {

// Counts of observations at or below each bound, as Prometheus wants them.
class Histogram {
 public:
  explicit Histogram(std::vector<double> upper_bounds);  // ascending; one more bucket holds what is above
  static Histogram of_seconds();                         // 1 ms to 10 minutes
  static Histogram of_rows();                            // 1 to 8192

  void observe(double value);

  std::span<const double> upper_bounds() const { return bounds_; }
  std::span<const std::uint64_t> counts() const { return counts_; }  // per bucket, not cumulative; one more than bounds
  std::uint64_t count() const { return count_; }
  double sum() const { return sum_; }

 private:
  std::vector<double> bounds_;
  std::vector<std::uint64_t> counts_;
  std::uint64_t count_ = 0;
  double sum_ = 0;
};

struct EngineStats {
  // Gauges.
  int requests_running = 0, requests_waiting = 0;    // started and not at their end; not started yet
  int sequences_running = 0, sequences_waiting = 0;  // with a slot; without, preempted ones among them
  std::int64_t waiting_tokens = 0;                   // of the prompts that wait
  int slots = 0, slots_taken = 0;                    // by sequences and the prefix cache
  int pages = 0, pages_taken = 0;
  // Counters.
  std::uint64_t submitted = 0;
  std::array<std::uint64_t, kNumEngineErrorKinds> refused{}, failed{};  // by EngineErrorKind: before and after being taken
  std::array<std::uint64_t, 4> choices_finished{};                      // by FinishReason
  std::uint64_t finished = 0;                                           // requests
  std::uint64_t steps = 0, rows = 0;
  std::uint64_t prompt_tokens = 0, cached_tokens = 0;  // of requests that started
  std::uint64_t generated_tokens = 0;
  std::uint64_t preemptions = 0;  // of sequences
  PrefixCacheStats prefix_cache;
  Histogram queue_seconds = Histogram::of_seconds();
  Histogram first_token_seconds = Histogram::of_seconds();
  Histogram inter_token_seconds = Histogram::of_seconds();
  Histogram request_seconds = Histogram::of_seconds();
  Histogram step_rows = Histogram::of_rows();
};

}  // namespace tetrad
