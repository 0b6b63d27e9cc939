#pragma once
// What the kernels of moe for few rows share: groups as moe_route_few notes them, and the scales of a strip of 16 outputs.
#include "cuda/kernels/linear_few.cuh"
#include "cuda/kernels/moe.h"

namespace tetrad::cuda {

// GPUs of compute capability 9 and up, FP8, up to 20 scale blocks of 128 columns, few rows: with more, experts have so different numbers of
// them that equal shares are not (moe_gate_up.cu). False where it does not apply.
inline constexpr int kMoeStreamRows = 8;
bool moe_gate_up_stream(const LinearParams& p, bool fp8, const MoeGrouping& g, bf16* act, int ld_act, const Stream& stream);
// The same for experts and a shared one of 640 columns (moe_down_stream.cu).
bool moe_down_stream(const LinearParams& p, bool fp8, const LinearParams& shared, const MoeGrouping& g, const Stream& stream);

// The group that a record stands for.
__device__ __forceinline__ LinearGroup noted_group(const LinearParams& p, const int4& record) {
  const int e = checked(record.x, p.groups.num_groups);
  if (record.y < 0 || record.z < record.y || record.z > p.T) __trap();
  return {p.data + e * p.groups.data_stride, p.scales + e * p.groups.scale_stride, record.y, record.z};
}

// Scales of 16 outputs: lane s has that of segment s where the outputs share them, else they are read where they are used.
template <bool kFp8>
struct StripScales {
  const float* rows = nullptr;
  float own = 1.0f;

  __device__ __forceinline__ void load(const LinearParams& p, const float* scales, int n0) {
    if constexpr (kFp8) {
      const int lane = threadIdx.x % 32;
      rows = scales + static_cast<std::size_t>(n0 / p.scale_rows) * p.scale_columns;
      if (p.scale_rows == kFragmentRows && lane < p.scale_columns) own = rows[lane];
    }
  }
  // Of row n0 + row; all lanes call it.
  __device__ __forceinline__ float at(const LinearParams& p, int row, int of_segment) const {
    if constexpr (!kFp8) return 1.0f;
    const int segment = scale_column(p, of_segment);
    const float shared = __shfl_sync(0xffffffffu, own, segment % 32);
    return p.scale_rows == kFragmentRows && p.scale_columns <= 32 ? shared : rows[row / p.scale_rows * p.scale_columns + segment];
  }
};

}  // namespace tetrad::cuda
