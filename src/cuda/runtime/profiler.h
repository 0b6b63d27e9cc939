#pragma once
// Times every launch of a stream by events and sums them by the kernel's stem. Off unless a stream is given one: it costs some
// microseconds a launch, so the sum of the stems is more than a step takes without it.
#include <cuda_runtime.h>

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace tetrad::cuda {

class Profiler {
 public:
  struct Stem {
    int launches = 0;
    double microseconds = 0;
  };

  Profiler() = default;
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;
  ~Profiler();

  void begin(std::string_view stem, cudaStream_t stream);
  void end(cudaStream_t stream);
  // Waits for the stream's work; the sums since the last call.
  std::map<std::string, Stem> take();

 private:
  cudaEvent_t event();
  std::vector<cudaEvent_t> events_;  // two per launch
  std::vector<std::string> stems_;
  std::size_t used_ = 0;
};

}  // namespace tetrad::cuda
