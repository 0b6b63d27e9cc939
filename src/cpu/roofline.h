#pragma once
// What this machine can do at best, measured now: the roof that `tetrad bench` divides by.
#include <cstddef>
#include <string>

#include "base/thread_pool.h"

namespace tetrad::cpu {

struct Roofline {
  double read_gb_per_s = 0;    // 1e9 bytes per second, all threads streaming through memory far larger than any cache
  double f32_gflop_per_s = 0;  // 1e9 float32 multiply-adds times two per second, all threads, registers only
  int num_threads = 0;
  std::string instruction_set;  // of the kernels, as Highway names it: "AVX2", "AVX3", "NEON"
};

// Each takes less than a second on a machine that is otherwise idle: the best of several passes, so a short disturbance does not count.
// measure_read_bandwidth allocates num_bytes (std::bad_alloc).
inline constexpr std::size_t kRooflineBytes = std::size_t{1} << 30;
double measure_read_bandwidth(ThreadPool& pool, std::size_t num_bytes = kRooflineBytes);
double measure_f32_peak(ThreadPool& pool);
std::string instruction_set();
Roofline measure_roofline(ThreadPool& pool);

}  // namespace tetrad::cpu
