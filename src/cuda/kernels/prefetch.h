#pragma once
// prefetch: weights on their way to L2, beside the kernels of a step. A step of few rows leaves memory idle while it waits for itself; what
// the next linears read first comes meanwhile.
//   Math      none
//   Inputs    weights as linear takes them; the first kMostBytes of each
//   Output    none: no value depends on it
//   Order     beside the step: begins when what the stream holds is done, ends before the step does
//   Launch    blocks of one warp on a stream of its own, a lane 16 kB; nothing before compute capability 9.0, nor while kernels are timed
//   Tests     gpu/backend_test (a step replays as launched)
#include <cstddef>
#include <initializer_list>

#include "cuda/kernels/linear.h"
#include "cuda/runtime/stream.h"

namespace tetrad::cuda {

class WeightPrefetch {
 public:
  static constexpr std::size_t kMostBytes = std::size_t{24} << 20;  // about half of the L2 of an H100

  WeightPrefetch();
  ~WeightPrefetch();
  WeightPrefetch(const WeightPrefetch&) = delete;
  WeightPrefetch& operator=(const WeightPrefetch&) = delete;

  // Starts when what `stream` holds now is done. At most three weights.
  void begin(std::initializer_list<const DeviceLinear*> weights, const Stream& stream);
  // `stream` goes on when everything begun is done: at the end of a step, so that a recording of it is whole.
  void end(const Stream& stream);

 private:
  cudaStream_t side_ = nullptr;
  cudaEvent_t fork_ = nullptr, join_ = nullptr;
  bool begun_ = false;
};

}  // namespace tetrad::cuda
