#include "cpu/roofline.h"

#include <gtest/gtest.h>

namespace tetrad::cpu::roofline_test {
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

}  // namespace
}  // namespace tetrad::cpu::roofline_test
