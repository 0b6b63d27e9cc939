#pragma once
// A weight fragment of 16 rows by 32 columns in a lane's registers, the same columns of a row of x, and asynchronous copies.
#include <cuda_bf16.h>

#include <cstddef>
#include <cstdint>

#include "base/bf16.h"

namespace tetrad::cuda {

// Place of element (row of 16, column of 32) in a fragment: in bf16 elements, and in FP8 bytes. A fragment is two multiply steps of 16
// columns, in each the order of an mma or wgmma operand: lane 4 g + t holds rows g and g + 8, columns 2t, 2t + 1 and those eight further.
__host__ __device__ inline int fragment_lane(int row, int column) { return row % 8 * 4 + column % 8 / 2; }
__host__ __device__ inline int fragment_place_bf16(int row, int column) {
  const int step = column / 16, reg = row / 8 + column % 16 / 8 * 2;
  return step * 256 + fragment_lane(row, column) * 8 + reg * 2 + column % 2;
}
// Bytes of a word are ordered so that one mask and one shift give a register: bytes 1 and 3 the even one, bytes 0 and 2 the odd one.
__host__ __device__ inline int fragment_place_fp8(int row, int column) {
  const int step = column / 16, reg = row / 8 + column % 16 / 8 * 2;
  return fragment_lane(row, column) * 16 + step * 8 + reg / 2 * 4 + (reg % 2 == 0 ? 1 : 0) + column % 2 * 2;
}

template <bool kFp8>
struct WeightFragment;

template <>
struct WeightFragment<false> {
  static constexpr int kBytes = 1024;
  uint4 step[2];
  __device__ __forceinline__ void load(const std::byte* fragment, int lane) {
    const auto* from = reinterpret_cast<const uint4*>(fragment);
    step[0] = from[lane];
    step[1] = from[32 + lane];
  }
  __device__ __forceinline__ void expand(unsigned (*a)[4]) const {
#pragma unroll
    for (int s = 0; s < 2; ++s) a[s][0] = step[s].x, a[s][1] = step[s].y, a[s][2] = step[s].z, a[s][3] = step[s].w;
  }
};

template <>
struct WeightFragment<true> {
  static constexpr int kBytes = 512;
  uint4 codes;
  __device__ __forceinline__ void load(const std::byte* fragment, int lane) { codes = reinterpret_cast<const uint4*>(fragment)[lane]; }
  // S EEEE MMM in the upper byte of a half word, moved down by four with its sign in place, is the bf16 of the value times 2^-120.
  static __device__ __forceinline__ unsigned to_bf16x2(unsigned word) {
    unsigned bits = (word & 0x80008000u) | ((word & 0x7f007f00u) >> 4);
    const unsigned power = 0x7b807b80u;  // 2^120
    const __nv_bfloat162 product = __hmul2(reinterpret_cast<__nv_bfloat162&>(bits), reinterpret_cast<const __nv_bfloat162&>(power));
    return reinterpret_cast<const unsigned&>(product);
  }
  __device__ __forceinline__ void expand(unsigned (*a)[4]) const {
    a[0][0] = to_bf16x2(codes.x), a[0][1] = to_bf16x2(codes.x << 8);
    a[0][2] = to_bf16x2(codes.y), a[0][3] = to_bf16x2(codes.y << 8);
    a[1][0] = to_bf16x2(codes.z), a[1][1] = to_bf16x2(codes.z << 8);
    a[1][2] = to_bf16x2(codes.w), a[1][3] = to_bf16x2(codes.w << 8);
  }
};

// The same 32 columns of eight rows of x as the other operand: multiply step, then register.
struct XFragment {
  unsigned step[2][2];
  // `chunk`: where the lane's row of eight columns lies in shared memory, lanes 8 c .. 8 c + 7 those of columns 8 c ..
  __device__ __forceinline__ void load(const void* chunk) {
    const auto from = static_cast<unsigned>(__cvta_generic_to_shared(chunk));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(step[0][0]), "=r"(step[0][1]), "=r"(step[1][0]), "=r"(step[1][1])
                 : "r"(from)
                 : "memory");
  }
};

__device__ __forceinline__ void copy_async(void* shared, const void* global) {
  const auto to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(to), "l"(global));
}
// The first `bytes` of 16, zeros after them.
__device__ __forceinline__ void copy_async_some(void* shared, const void* global, int bytes) {
  const auto to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(global), "r"(bytes));
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;\n" ::); }
template <int kPending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending));
}

}  // namespace tetrad::cuda
