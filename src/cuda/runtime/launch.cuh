#pragma once
// The one way a kernel is launched: every launch is checked, and carries its name to the error message.
#include <cuda_runtime.h>

#include <string_view>

#include "cuda/runtime/error.h"
#include "cuda/runtime/stream.h"

namespace tetrad::cuda {

struct LaunchShape {
  dim3 grid, block;
  std::size_t shared_bytes = 0;
};

// A launch as a profile shows it: the kernel's stem, and what it must move and multiply where somebody says.
struct LaunchTag {
  std::string_view stem;
  double bytes = 0, flops = 0;

  LaunchTag(const char* stem_) : stem(stem_) {}
  LaunchTag(std::string_view stem_, double bytes_, double flops_) : stem(stem_), bytes(bytes_), flops(flops_) {}
};

// An empty grid is a no-op. Dynamic shared memory above the default limit must have been allowed with
// allow_shared first. The kernel may begin while the one before it ends, up to its wait_for_previous (device_math.cuh), unless a profiler
// wants to see them apart.
template <class... Parameters, class... Args>
void launch(const LaunchTag& tag, void (*kernel)(Parameters...), const LaunchShape& shape, const Stream& stream, Args&&... args) {
  if (shape.grid.x == 0 || shape.grid.y == 0 || shape.grid.z == 0) return;
  if (stream.profiler() != nullptr) stream.profiler()->begin(tag.stem, tag.bytes, tag.flops, stream.get());
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream.get();
  cudaLaunchAttribute overlap = {};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &overlap;
  config.numAttrs = stream.overlaps() && stream.profiler() == nullptr ? 1 : 0;
  check(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(args)...), "{}: grid {}x{}x{}, block {}, {} bytes of shared memory",
        tag.stem, shape.grid.x, shape.grid.y, shape.grid.z, shape.block.x * shape.block.y * shape.block.z, shape.shared_bytes);
  if (stream.profiler() != nullptr) stream.profiler()->end(stream.get());
}

// Raises a kernel's limit of dynamic shared memory; throws LoadError when the device has less.
template <class... Parameters>
void allow_shared(std::string_view name, void (*kernel)(Parameters...), std::size_t bytes) {
  if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)) != cudaSuccess) {
    (void)cudaGetLastError();
    fail<LoadError>("{} needs {} bytes of shared memory per block, more than this GPU has", name, bytes);
  }
}

inline int ceil_div(int a, int b) { return (a + b - 1) / b; }

}  // namespace tetrad::cuda
