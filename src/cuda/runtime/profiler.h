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
    double bytes = 0, flops = 0;  // as far as the launches said
  };

  Profiler() = default;
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;
  ~Profiler();

  // bytes: that must move between memory and the GPU at least once; flops: 2 per multiply and add.
  void begin(std::string_view stem, double bytes, double flops, cudaStream_t stream);
  void end(cudaStream_t stream);
  // Waits for the stream's work; the sums since the last call.
  std::map<std::string, Stem> take();

 private:
  cudaEvent_t event();
  std::vector<cudaEvent_t> events_;  // two per launch
  struct Launch {
    std::string stem;
    double bytes, flops;
  };
  std::vector<Launch> launches_;
  std::size_t used_ = 0;
};

}  // namespace tetrad::cuda
