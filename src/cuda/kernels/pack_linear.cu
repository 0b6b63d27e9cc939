// pack_linear (contract in linear.h): row-major weights into fragments, once at load.
#include "base/error.h"
#include "cuda/kernels/device_math.cuh"
#include "cuda/kernels/linear.h"
#include "cuda/kernels/linear_fragments.cuh"
#include "cuda/runtime/launch.cuh"

namespace tetrad::cuda {
namespace {

constexpr int kThreads = 256;

template <SourceType kType>
__device__ bf16 element(const void* source, std::size_t i) {
  if constexpr (kType == SourceType::kBF16) return static_cast<const bf16*>(source)[i];
  if constexpr (kType == SourceType::kF16) return to_b16(__half2float(static_cast<const __half*>(source)[i]));
  return to_b16(static_cast<const float*>(source)[i]);
}

template <SourceType kType>
__global__ void pack(int K, int k_fragments, int first_row, std::size_t count, const void* source, void* data, unsigned long long* nan_at) {
  wait_for_previous();
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  const int n = first_row + static_cast<int>(i / K), k = static_cast<int>(i % K);
  const std::size_t fragment = static_cast<std::size_t>(n / kFragmentRows) * k_fragments + k / kFragmentColumns;
  const int row = n % kFragmentRows, column = k % kFragmentColumns;
  if constexpr (kType == SourceType::kF8E4M3) {
    const std::uint8_t code = static_cast<const std::uint8_t*>(source)[i];
    if ((code & 0x7f) == 0x7f) atomicMin(nan_at, static_cast<unsigned long long>(i));
    static_cast<std::uint8_t*>(data)[fragment * 512 + fragment_place_fp8(row, column)] = code;
  } else {
    static_cast<bf16*>(data)[fragment * 512 + fragment_place_bf16(row, column)] = element<kType>(source, i);
  }
}

}  // namespace

void pack_linear(const DeviceLinear& w, void* data, int first_row, int rows, const void* source, SourceType type,
                 unsigned long long* nan_at, const Stream& stream) {
  TETRAD_CHECK(first_row >= 0 && rows >= 0 && first_row + rows <= w.N, "rows {}+{} of {}", first_row, rows, w.N);
  TETRAD_CHECK(w.fp8 == (type == SourceType::kF8E4M3), "a weight of one kind from a source of another");
  const std::size_t count = static_cast<std::size_t>(rows) * w.K;
  const LaunchShape shape{dim3(static_cast<unsigned>((count + kThreads - 1) / kThreads)), dim3(kThreads)};
  const auto run = [&](auto kernel) {
    launch("pack_linear", kernel, shape, stream, w.K, w.column_fragments(), first_row, count, source, data, nan_at);
  };
  switch (type) {
    case SourceType::kBF16: return run(pack<SourceType::kBF16>);
    case SourceType::kF16: return run(pack<SourceType::kF16>);
    case SourceType::kF32: return run(pack<SourceType::kF32>);
    case SourceType::kF8E4M3: return run(pack<SourceType::kF8E4M3>);
  }
}

}  // namespace tetrad::cuda
