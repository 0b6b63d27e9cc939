#pragma once
// Timings of single kernels at shapes that matter, for `tetrad bench kernels`.
#include <string>
#include <vector>

#include "base/thread_pool.h"

namespace tetrad::cpu {

struct KernelFigure {
  std::string name;         // kernel and shape
  double microseconds = 0;  // one call, the best of several
  double bytes = 0;         // read and written at least once per call
  double flops = 0;         // multiply-adds times two
  double gb_per_s() const { return bytes / microseconds * 1e-3; }
  double gflop_per_s() const { return flops / microseconds * 1e-3; }
};

// About ten seconds and 1.2 GB of memory.
std::vector<KernelFigure> bench_kernels(ThreadPool& pool);

}  // namespace tetrad::cpu
