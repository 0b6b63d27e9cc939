#include "cuda/runtime/memory.h"

#include <atomic>
#include <cstring>

namespace tetrad::cuda {
namespace {

std::atomic<std::size_t> allocations{0};

}  // namespace

std::byte* allocate_device(std::size_t bytes, std::string_view what) {
  if (bytes == 0) return nullptr;
  allocations.fetch_add(1, std::memory_order_relaxed);
  void* data = nullptr;
  const cudaError_t code = cudaMalloc(&data, bytes);
  if (code == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();  // this error is not sticky: clear it, so that the next check does not report it again
    std::size_t free_bytes = 0, total = 0;
    check(cudaMemGetInfo(&free_bytes, &total), "asking for free device memory");
    fail<LoadError>("{}: {} bytes of device memory asked for, {} of {} are free", what, bytes, free_bytes, total);
  }
  check(code, "{}: allocating {} bytes", what, bytes);
  check(cudaMemset(data, 0, bytes), "{}: clearing {} bytes", what, bytes);
  check(cudaStreamSynchronize(nullptr), "{}: clearing {} bytes", what, bytes);  // streams of ours do not wait for the default one
  return static_cast<std::byte*>(data);
}

void free_device(std::byte* data) noexcept {
  if (data != nullptr) (void)cudaFree(data);
}

std::byte* allocate_pinned(std::size_t bytes, std::string_view what) {
  if (bytes == 0) return nullptr;
  allocations.fetch_add(1, std::memory_order_relaxed);
  void* data = nullptr;
  check(cudaHostAlloc(&data, bytes, cudaHostAllocMapped | cudaHostAllocPortable), "{}: pinning {} bytes of host memory", what, bytes);
  std::memset(data, 0, bytes);
  return static_cast<std::byte*>(data);
}

void free_pinned(std::byte* data) noexcept {
  if (data != nullptr) (void)cudaFreeHost(data);
}

std::size_t allocation_count() { return allocations.load(std::memory_order_relaxed); }

}  // namespace tetrad::cuda
