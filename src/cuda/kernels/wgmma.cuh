#pragma once
// Hopper's asynchronous multiply (sm_90a): a warpgroup of 128 threads, weights in its registers, rows of x in shared memory.
#include <cstdint>

namespace tetrad::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// What copies have written to shared memory becomes visible to wgmma.
__device__ __forceinline__ void publish_to_wgmma() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// A tile of rows of 64 bf16, 128 bytes each, whose 16-byte chunk c of row r lies at chunk c ^ (r % 8): 8 rows are 1024 bytes.
__device__ __forceinline__ std::uint64_t swizzled_tile(const void* shared) {
  constexpr std::uint64_t kSwizzle128 = std::uint64_t{1} << 62, kGroupBytes = 1024;
  return kSwizzle128 | (kGroupBytes >> 4) << 32 | std::uint64_t{1} << 16 | (__cvta_generic_to_shared(shared) & 0x3ffff) >> 4;
}

__device__ __forceinline__ void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Keeps the compiler from computing operands of wgmma after wgmma_begin, where that would make it wait after every step.
__device__ __forceinline__ void settle(std::uint64_t& b) { asm volatile("" : "+l"(b)::"memory"); }
__device__ __forceinline__ void settle(unsigned (&a)[4]) { asm volatile("" : "+r"(a[0]), "+r"(a[1]), "+r"(a[2]), "+r"(a[3])::"memory"); }
// And sums of wgmma from being read before wgmma_wait.
template <int kCount>
__device__ __forceinline__ void settle(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

#define TETRAD_F8(d, i) \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define TETRAD_F16(d, i) TETRAD_F8(d, i), TETRAD_F8(d, i + 8)
#define TETRAD_F32(d, i) TETRAD_F16(d, i), TETRAD_F16(d, i + 16)
#define TETRAD_F64(d, i) TETRAD_F32(d, i), TETRAD_F32(d, i + 32)

#define TETRAD_R16                 \
  "%0, %1, %2, %3, %4, %5, %6, %7" \
  ", %8, %9, %10, %11, %12, %13, %14, %15"
#define TETRAD_R32                           \
  TETRAD_R16                                 \
  ", %16, %17, %18, %19, %20, %21, %22, %23" \
  ", %24, %25, %26, %27, %28, %29, %30, %31"
#define TETRAD_R48                           \
  TETRAD_R32                                 \
  ", %32, %33, %34, %35, %36, %37, %38, %39" \
  ", %40, %41, %42, %43, %44, %45, %46, %47"
#define TETRAD_R64                           \
  TETRAD_R48                                 \
  ", %48, %49, %50, %51, %52, %53, %54, %55" \
  ", %56, %57, %58, %59, %60, %61, %62, %63"
#define TETRAD_R72 TETRAD_R64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define TETRAD_R80 TETRAD_R72 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define TETRAD_R88 TETRAD_R80 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define TETRAD_R96 TETRAD_R88 ", %88, %89, %90, %91, %92, %93, %94, %95"

// d [64, kColumns] = or += a [64, 16] * b [kColumns, 16] of the warpgroup: a in registers, b a tile in shared memory.
template <int kColumns>
__device__ __forceinline__ void wgmma_step(float (&d)[kColumns / 2], const unsigned (&a)[4], std::uint64_t b, int add);

// Operands of the assembly: the sums, then a, b and add.
#define TETRAD_WGMMA(kColumns, sums, registers, a0, a1, a2, a3, b_, add_)                                                          \
  template <>                                                                                                                      \
  __device__ __forceinline__ void wgmma_step<kColumns>(float(&d)[kColumns / 2], const unsigned(&a)[4], std::uint64_t b, int add) { \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, " add_ ", 0;\nwgmma.mma_async.sync.aligned.m64n" #kColumns                  \
                 "k16.f32.bf16.bf16 {" registers "}, {" a0 ", " a1 ", " a2 ", " a3 "}, " b_ ", add, 1, 1, 0;\n}\n"                 \
                 : sums                                                                                                            \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));                                                  \
  }
#define TETRAD_SUMS(...) __VA_ARGS__

TETRAD_WGMMA(32, TETRAD_SUMS(TETRAD_F16(d, 0)), TETRAD_R16, "%16", "%17", "%18", "%19", "%20", "%21")
TETRAD_WGMMA(64, TETRAD_SUMS(TETRAD_F32(d, 0)), TETRAD_R32, "%32", "%33", "%34", "%35", "%36", "%37")
TETRAD_WGMMA(96, TETRAD_SUMS(TETRAD_F32(d, 0), TETRAD_F16(d, 32)), TETRAD_R48, "%48", "%49", "%50", "%51", "%52", "%53")
TETRAD_WGMMA(128, TETRAD_SUMS(TETRAD_F64(d, 0)), TETRAD_R64, "%64", "%65", "%66", "%67", "%68", "%69")
TETRAD_WGMMA(144, TETRAD_SUMS(TETRAD_F64(d, 0), TETRAD_F8(d, 64)), TETRAD_R72, "%72", "%73", "%74", "%75", "%76", "%77")
TETRAD_WGMMA(160, TETRAD_SUMS(TETRAD_F64(d, 0), TETRAD_F16(d, 64)), TETRAD_R80, "%80", "%81", "%82", "%83", "%84", "%85")
TETRAD_WGMMA(176, TETRAD_SUMS(TETRAD_F64(d, 0), TETRAD_F16(d, 64), TETRAD_F8(d, 80)), TETRAD_R88, "%88", "%89", "%90", "%91", "%92", "%93")
TETRAD_WGMMA(192, TETRAD_SUMS(TETRAD_F64(d, 0), TETRAD_F32(d, 64)), TETRAD_R96, "%96", "%97", "%98", "%99", "%100", "%101")

#undef TETRAD_F8
#undef TETRAD_F16
#undef TETRAD_F32
#undef TETRAD_F64
#undef TETRAD_R16
#undef TETRAD_R32
#undef TETRAD_R48
#undef TETRAD_R64
#undef TETRAD_R72
#undef TETRAD_R80
#undef TETRAD_R88
#undef TETRAD_R96
#undef TETRAD_SUMS
#undef TETRAD_WGMMA

#endif

}  // namespace tetrad::cuda
