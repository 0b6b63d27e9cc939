#include "cuda/kernels/random_fill.h"

#include <algorithm>

#include "base/error.h"
#include "cuda/kernels/device_math.cuh"
#include "cuda/runtime/launch.cuh"

namespace tetrad::cuda {
namespace {

constexpr int kThreads = 256;
constexpr std::size_t kMostBlocks = std::size_t{1} << 20;

__device__ std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

template <SourceType kType>
__global__ void random_fill_kernel(void* to, std::size_t count, float half_width, std::uint64_t seed) {
  wait_for_previous();
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * kThreads;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x; i < count; i += stride) {
    const std::uint64_t bits = mix(seed + (i + 1) * 0x9e3779b97f4a7c15ull);
    const float u = static_cast<float>(bits >> 40) * 0x1p-24f;
    const float value = half_width * (2.0f * u - 1.0f);
    if constexpr (kType == SourceType::kF8E4M3) {
      const auto code = static_cast<unsigned>(bits >> 8 & 0xff);
      static_cast<std::uint8_t*>(to)[i] = static_cast<std::uint8_t>((code & 0x7f) == 0x7f ? code ^ 1u : code);
    } else if constexpr (kType == SourceType::kF32) {
      static_cast<float*>(to)[i] = value;
    } else {
      static_cast<bf16*>(to)[i] = to_b16(value);
    }
  }
}

}  // namespace

void random_fill(void* to, std::size_t count, SourceType type, float spread, std::uint64_t seed, const Stream& stream) {
  const auto blocks = static_cast<unsigned>(std::min((count + kThreads - 1) / kThreads, kMostBlocks));
  const float half_width = spread * 1.7320508f;
  const auto run = [&](auto kernel) { launch("random_fill", kernel, {dim3(blocks), dim3(kThreads)}, stream, to, count, half_width, seed); };
  switch (type) {
    case SourceType::kBF16: return run(random_fill_kernel<SourceType::kBF16>);
    case SourceType::kF32: return run(random_fill_kernel<SourceType::kF32>);
    case SourceType::kF8E4M3: return run(random_fill_kernel<SourceType::kF8E4M3>);
    case SourceType::kF16: break;
  }
  fail<InternalError>("random_fill: no halves");
}

}  // namespace tetrad::cuda
