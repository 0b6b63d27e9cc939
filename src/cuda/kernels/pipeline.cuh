#pragma once
// Barriers in shared memory between warps that load and warps that compute, and Hopper's asynchronous multiply (sm_90a).
#include <cstdint>

namespace tetrad::cuda {

struct Barrier {
  std::uint64_t state;

#if __CUDA_ARCH__ >= 900

  __device__ __forceinline__ unsigned address() const { return static_cast<unsigned>(__cvta_generic_to_shared(this)); }
  __device__ __forceinline__ void init(int arrivals) { asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(address()), "r"(arrivals)); }
  __device__ __forceinline__ void arrive() { asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(address()) : "memory"); }
  // Returns once the phase of this parity is over.
  __device__ __forceinline__ void wait(unsigned parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
        "@!done bra again;\n"
        "}\n" ::"r"(address()),
        "r"(parity)
        : "memory");
  }
  // One thread says how many bytes will come, then starts their copies from global to shared memory; the phase is over when they are
  // there. All 16-byte aligned.
  __device__ __forceinline__ void expect(int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(address()), "r"(bytes) : "memory");
  }
  __device__ __forceinline__ void copy(void* shared, const void* global, int bytes) {
    const auto to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(global),
                 "r"(bytes), "r"(address())
                 : "memory");
  }
  // After init, before any copy.
  static __device__ __forceinline__ void publish_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
#endif
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Ordinary writes to shared memory become visible to wgmma.
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

// d [64, kColumns] = or += a [64, 16] * b [kColumns, 16] of the warpgroup: a in registers, b a tile in shared memory.
template <int kColumns>
__device__ __forceinline__ void wgmma_step(float (&d)[kColumns / 2], const unsigned (&a)[4], std::uint64_t b, int add);

template <>
__device__ __forceinline__ void wgmma_step<32>(float (&d)[16], const unsigned (&a)[4], std::uint64_t b, int add) {
  asm volatile(
      "{\n"
      ".reg .pred add;\n"
      "setp.ne.b32 add, %21, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
      "{%16, %17, %18, %19}, %20, add, 1, 1, 0;\n"
      "}\n"
      : TETRAD_F8(d, 0), TETRAD_F8(d, 8)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

template <>
__device__ __forceinline__ void wgmma_step<64>(float (&d)[32], const unsigned (&a)[4], std::uint64_t b, int add) {
  asm volatile(
      "{\n"
      ".reg .pred add;\n"
      "setp.ne.b32 add, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, %36, add, 1, 1, 0;\n"
      "}\n"
      : TETRAD_F8(d, 0), TETRAD_F8(d, 8), TETRAD_F8(d, 16), TETRAD_F8(d, 24)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

template <>
__device__ __forceinline__ void wgmma_step<96>(float (&d)[48], const unsigned (&a)[4], std::uint64_t b, int add) {
  asm volatile(
      "{\n"
      ".reg .pred add;\n"
      "setp.ne.b32 add, %53, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47}, "
      "{%48, %49, %50, %51}, %52, add, 1, 1, 0;\n"
      "}\n"
      : TETRAD_F8(d, 0), TETRAD_F8(d, 8), TETRAD_F8(d, 16), TETRAD_F8(d, 24), TETRAD_F8(d, 32), TETRAD_F8(d, 40)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

template <>
__device__ __forceinline__ void wgmma_step<128>(float (&d)[64], const unsigned (&a)[4], std::uint64_t b, int add) {
  asm volatile(
      "{\n"
      ".reg .pred add;\n"
      "setp.ne.b32 add, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "{%64, %65, %66, %67}, %68, add, 1, 1, 0;\n"
      "}\n"
      : TETRAD_F8(d, 0), TETRAD_F8(d, 8), TETRAD_F8(d, 16), TETRAD_F8(d, 24), TETRAD_F8(d, 32), TETRAD_F8(d, 40), TETRAD_F8(d, 48),
        TETRAD_F8(d, 56)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

#undef TETRAD_F8

#endif

}  // namespace tetrad::cuda
