#pragma once
// Streams, and copies on them. The default stream is never used.
#include <cstddef>
#include <utility>

#include "cuda/runtime/error.h"
#include "cuda/runtime/profiler.h"

namespace tetrad::cuda {

class Stream {
 public:
  Stream() {
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "creating a stream");
    int device = 0;
    check(cudaGetDevice(&device), "asking for the current device");
    check(cudaDeviceGetAttribute(&capability_, cudaDevAttrComputeCapabilityMajor, device), "asking for what device {} can do", device);
    check(cudaDeviceGetAttribute(&multiprocessors_, cudaDevAttrMultiProcessorCount, device), "asking for the size of device {}", device);
    check(cudaDeviceGetAttribute(&shared_limit_, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
          "asking for the shared memory of device {}", device);
  }
  ~Stream() {
    if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);
  }
  Stream(Stream&& other) noexcept
      : stream_(std::exchange(other.stream_, nullptr)),
        profiler_(other.profiler_),
        capability_(other.capability_),
        multiprocessors_(other.multiprocessors_),
        shared_limit_(other.shared_limit_) {}
  Stream& operator=(Stream&&) = delete;

  cudaStream_t get() const { return stream_; }
  // Whether a kernel may begin before the one before it has ended (programmatic dependent launch).
  bool overlaps() const { return capability_ >= 9; }
  bool hopper() const { return capability_ == 9; }
  int multiprocessors() const { return multiprocessors_; }
  int shared_limit() const { return shared_limit_; }  // bytes of a block
  // Launches on this stream are timed while it has one; null: no longer.
  void set_profiler(Profiler* profiler) { profiler_ = profiler; }
  Profiler* profiler() const { return profiler_; }

  void synchronize() const { check(cudaStreamSynchronize(stream_), "waiting for the device"); }

  void copy(void* to, const void* from, std::size_t bytes) const {
    if (bytes > 0) check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_), "copying {} bytes", bytes);
  }
  void fill(void* to, int value, std::size_t bytes) const {
    if (bytes > 0) check(cudaMemsetAsync(to, value, bytes, stream_), "filling {} bytes", bytes);
  }

 private:
  cudaStream_t stream_ = nullptr;
  Profiler* profiler_ = nullptr;
  int capability_ = 0, multiprocessors_ = 0, shared_limit_ = 0;
};

}  // namespace tetrad::cuda
