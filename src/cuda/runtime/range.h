#pragma once
// A named range on the time line of a profiler that follows the process (NVTX); without one it costs a call through a null pointer.
#include <nvtx3/nvToolsExt.h>

#include <array>
#include <cstddef>
#include <cstdio>

namespace tetrad::cuda {

class ProfilerRange {
 public:
  // "step: 33 rows of 2 sequences".
  ProfilerRange(std::size_t rows, std::size_t sequences) {
    std::array<char, 64> name{};
    (void)std::snprintf(name.data(), name.size(), "step: %zu rows of %zu sequences", rows, sequences);
    nvtxRangePushA(name.data());
  }
  ~ProfilerRange() { nvtxRangePop(); }
  ProfilerRange(const ProfilerRange&) = delete;
  ProfilerRange& operator=(const ProfilerRange&) = delete;
};

}  // namespace tetrad::cuda
