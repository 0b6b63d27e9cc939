#pragma once
// Barriers in shared memory between warps that load and warps that compute.
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
  // Arrives once the copies that this thread has started with copy_async are there.
  __device__ __forceinline__ void arrive_when_copied() {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(address()) : "memory");
  }
  // After init, before any copy.
  static __device__ __forceinline__ void publish_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
#endif
};

}  // namespace tetrad::cuda
