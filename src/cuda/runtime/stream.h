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
    int device = 0, major = 0;
    check(cudaGetDevice(&device), "asking for the current device");
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "asking for what device {} can do", device);
    overlaps_ = major >= 9;
  }
  ~Stream() {
    if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);
  }
  Stream(Stream&& other) noexcept
      : stream_(std::exchange(other.stream_, nullptr)), overlaps_(other.overlaps_), profiler_(other.profiler_) {}
  Stream& operator=(Stream&&) = delete;

  cudaStream_t get() const { return stream_; }
  // Whether a kernel may begin before the one before it has ended (programmatic dependent launch).
  bool overlaps() const { return overlaps_; }
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
  bool overlaps_ = false;
  Profiler* profiler_ = nullptr;
};

}  // namespace tetrad::cuda
