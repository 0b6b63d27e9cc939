#include "cpu/roofline.h"

#include <gtest/gtest.h>

#include <cstdio>

#include "cpu/kernel_bench.h"

namespace tetrad::cpu {
namespace {

TEST(roofline, figures_are_plausible) {
  ThreadPool pool(1);
  const double bandwidth = measure_read_bandwidth(pool, std::size_t{64} << 20);
  EXPECT_GT(bandwidth, 0.1);
  EXPECT_LT(bandwidth, 10000);
  const double peak = measure_f32_peak(pool);
  EXPECT_GT(peak, 0.1);
  EXPECT_LT(peak, 10000);
  EXPECT_FALSE(instruction_set().empty());
}

// Run by hand: --gtest_also_run_disabled_tests --gtest_filter='*kernel_speed*'
TEST(roofline, DISABLED_kernel_speed) {
  ThreadPool pool;
  const Roofline roof = measure_roofline(pool);
  std::printf("%s, %d threads: read %.1f GB/s, f32 %.1f GFLOP/s\n", roof.instruction_set.c_str(), roof.num_threads, roof.read_gb_per_s,
              roof.f32_gflop_per_s);
  for (const KernelFigure& f : bench_kernels(pool))
    std::printf("%-44s %10.2f us %7.1f GB/s %3.0f%% %8.1f GFLOP/s %3.0f%%\n", f.name.c_str(), f.microseconds, f.gb_per_s(),
                100 * f.gb_per_s() / roof.read_gb_per_s, f.gflop_per_s(), 100 * f.gflop_per_s() / roof.f32_gflop_per_s);
}

}  // namespace
}  // namespace tetrad::cpu
