#include "cuda/kernels/prefetch.h"

#include <algorithm>

#include "base/error.h"
#include "cuda/runtime/error.h"

namespace tetrad::cuda {
namespace {

constexpr std::size_t kPiece = 16 << 10;
constexpr int kMostWeights = 3, kLanes = 32;

struct Ranges {
  const std::byte* begin[kMostWeights];
  std::size_t bytes[kMostWeights];
};

__global__ void __launch_bounds__(kLanes) prefetch_kernel(const Ranges ranges) {
#if __CUDA_ARCH__ >= 900
#pragma unroll
  for (int w = 0; w < kMostWeights; ++w) {
    const std::size_t first = (static_cast<std::size_t>(blockIdx.x) * kLanes + threadIdx.x) * kPiece;
    if (first >= ranges.bytes[w]) continue;
    const auto size = static_cast<unsigned>(min(kPiece, ranges.bytes[w] - first));
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(ranges.begin[w] + first), "r"(size) : "memory");
  }
#endif
}

}  // namespace

WeightPrefetch::WeightPrefetch() {
  check(cudaStreamCreateWithFlags(&side_, cudaStreamNonBlocking), "creating a stream");
  check(cudaEventCreateWithFlags(&fork_, cudaEventDisableTiming), "creating an event");
  check(cudaEventCreateWithFlags(&join_, cudaEventDisableTiming), "creating an event");
}

WeightPrefetch::~WeightPrefetch() {
  if (fork_ != nullptr) (void)cudaEventDestroy(fork_);
  if (join_ != nullptr) (void)cudaEventDestroy(join_);
  if (side_ != nullptr) (void)cudaStreamDestroy(side_);
}

void WeightPrefetch::begin(std::initializer_list<const DeviceLinear*> weights, const Stream& stream) {
  TETRAD_CHECK(weights.size() <= kMostWeights, "prefetch of {} weights", weights.size());
  if (!stream.overlaps() || stream.profiler() != nullptr) return;
  Ranges ranges = {};
  std::size_t most = 0;
  int i = 0;
  for (const DeviceLinear* w : weights) {
    ranges.begin[i] = static_cast<const std::byte*>(w->data);
    ranges.bytes[i] = std::min(w->data_bytes(), kMostBytes) / 16 * 16;
    most = std::max(most, ranges.bytes[i++]);
  }
  const std::size_t per_block = kPiece * kLanes;
  check(cudaEventRecord(fork_, stream.get()), "recording an event");
  check(cudaStreamWaitEvent(side_, fork_, 0), "waiting for an event");
  prefetch_kernel<<<static_cast<unsigned>((most + per_block - 1) / per_block), kLanes, 0, side_>>>(ranges);
  check(cudaGetLastError(), "launching prefetch");
  begun_ = true;
}

void WeightPrefetch::end(const Stream& stream) {
  if (!begun_) return;
  begun_ = false;
  check(cudaEventRecord(join_, side_), "recording an event");
  check(cudaStreamWaitEvent(stream.get(), join_, 0), "waiting for an event");
}

}  // namespace tetrad::cuda
