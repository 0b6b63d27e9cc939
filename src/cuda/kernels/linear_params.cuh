#pragma once
// What the kernels of linear share: their parameters and the way segments add up.
#include <string>

#include "cuda/kernels/device_math.cuh"
#include "cuda/kernels/linear.h"
#include "cuda/kernels/linear_fragments.cuh"
#include "cuda/runtime/launch.cuh"

namespace tetrad::cuda {

struct LinearParams {
  int N, K, T;
  int n_fragments, k_fragments, segment;  // segment: fragments of 32 columns
  const std::byte* data;
  const float* scales;
  int scale_rows, scale_columns;
  const bf16* x;
  int ldx;
  bf16* y;
  int ldy;
  LinearGroups groups;
};

LinearParams linear_params(const DeviceLinear& w, const LinearArgs& a);
// How a launch shows in a profile, which tells the shapes apart: the weights once (of all groups that may have rows), x and y once.
struct LinearTag {
  std::string stem;
  double bytes = 0, flops = 0;
  operator LaunchTag() const { return {stem, bytes, flops}; }
};
LinearTag linear_tag(const char* name, const LinearParams& p, bool fp8, const Stream& stream);

void linear_few(const LinearParams& p, bool fp8, const Stream& stream);
void linear_many(const LinearParams& p, bool fp8, const Stream& stream);
// GPUs with clusters alone (linear_split.cu); false where it does not apply.
bool linear_split(const LinearParams& p, bool fp8, const Stream& stream);
// Hopper alone (linear_stream.cu, linear_wgmma.cu); false where they do not apply.
bool linear_stream(const LinearParams& p, bool fp8, const Stream& stream);
bool linear_wgmma(const LinearParams& p, bool fp8, const Stream& stream);

#if defined(__CUDACC__)

// A group's share of the work: its weights and rows of y.
struct LinearGroup {
  const std::byte* data;
  const float* scales;
  int begin, end;
};

__device__ __forceinline__ LinearGroup whole(const LinearParams& p) { return {p.data, p.scales, 0, p.T}; }
__device__ __forceinline__ LinearGroup of_group(const LinearParams& p, int e) {
  e = checked(e, p.groups.num_groups);
  const int begin = p.groups.first[e], end = p.groups.first[e + 1];
  if (begin < 0 || end < begin || end > p.T) __trap();
  return {p.data + e * p.groups.data_stride, p.scales + e * p.groups.scale_stride, begin, end};
}

__device__ __forceinline__ const bf16* x_row(const LinearParams& p, int row) {
  const int source = p.groups.x_rows == nullptr ? row : checked(p.groups.x_rows[row], p.groups.num_x_rows);
  return p.x + static_cast<std::ptrdiff_t>(source) * p.ldx;
}

// Column of a segment's scale.
__device__ __forceinline__ int scale_column(const LinearParams& p, int segment) {
  return mutant(Mutant::kScaleOfNextBlock) ? (segment + 1) % p.scale_columns : segment;
}

// total <- the next segment's sum, scaled; the first segment starts the total.
template <bool kFp8>
__device__ __forceinline__ float add_segment(bool first, float total, float sum, float scale) {
  if constexpr (kFp8) return first ? scale * sum : fmaf(scale, sum, total);
  return first ? sum : total + sum;
}

#endif

}  // namespace tetrad::cuda
