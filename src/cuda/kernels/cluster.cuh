#pragma once
// Clusters of thread blocks (compute capability 9.0 and later): a barrier over the blocks of a cluster, reads and writes of their shared
// memory. Elsewhere a block is alone.

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define TETRAD_CLUSTER(blocks) __cluster_dims__(blocks, 1, 1)
#else
#define TETRAD_CLUSTER(blocks)
#endif

namespace tetrad::cuda {

inline constexpr int kClusterBlocks = 8;  // the largest size that every GPU with clusters has

// What the blocks wrote to shared memory before it, all of them may read after it.
__device__ __forceinline__ void cluster_sync() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release;\n barrier.cluster.wait.acquire;" ::: "memory");
#endif
}

// The two halves of a barrier that only says that every block of the cluster has started: before one, nobody writes to another.
__device__ __forceinline__ void cluster_started() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
#endif
}
__device__ __forceinline__ void cluster_wait_started() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait;" ::: "memory");
#endif
}

// Where block `rank` of the cluster has what this block has at `here`, as instructions for peers take it.
__device__ __forceinline__ unsigned peer_place(const void* here, int rank) {
  unsigned there = 0;
#if __CUDA_ARCH__ >= 900
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(there)
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(here))), "r"(rank));
#endif
  return there;
}

// A float to the same place in the shared memory of block `rank` of the cluster.
__device__ __forceinline__ void put_peer_value(float* here, int rank, float value) {
#if __CUDA_ARCH__ >= 900
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(peer_place(here, rank)), "f"(value) : "memory");
#else
  *here = value;
#endif
}

// Two floats to a peer, which count as 8 bytes of its barrier: it waits for what it needs instead of for the others.
__device__ __forceinline__ void send_pair(unsigned there, unsigned barrier, float first, float second) {
#if __CUDA_ARCH__ >= 900
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(there), "f"(first),
               "f"(second), "r"(barrier)
               : "memory");
#endif
}
// 16 bytes: for few, since each call costs the barrier some cycles.
__device__ __forceinline__ void send_four(unsigned there, unsigned barrier, float4 v) {
#if __CUDA_ARCH__ >= 900
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(there), "f"(v.x),
               "f"(v.y), "f"(v.z), "f"(v.w), "r"(barrier)
               : "memory");
#endif
}
// Returns once all bytes of the first phase of this block's barrier are there.
__device__ __forceinline__ void wait_for_peers(unsigned barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], 0;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(barrier)
      : "memory");
#endif
}

// A value of 32 or 64 bits at the same place in the shared memory of block `rank` of the cluster.
template <class T>
__device__ __forceinline__ T peer_value(const T* here, int rank) {
  static_assert(sizeof(T) == 4 || (sizeof(T) == 8 && !__is_same(T, double)));
#if __CUDA_ARCH__ >= 900
  const unsigned there = peer_place(here, rank);
  if constexpr (sizeof(T) == 8) {
    unsigned long long bits;
    asm volatile("ld.shared::cluster.b64 %0, [%1];" : "=l"(bits) : "r"(there));
    return static_cast<T>(bits);
  } else {
    unsigned bits;
    asm volatile("ld.shared::cluster.b32 %0, [%1];" : "=r"(bits) : "r"(there));
    if constexpr (__is_same(T, float)) return __uint_as_float(bits);
    return static_cast<T>(bits);
  }
#else
  return *here;
#endif
}

// The two for kernels that run with kPeers blocks to a row, or with one.
template <int kPeers, class T>
__device__ __forceinline__ T of_peer(const T* here, int peer) {
  if constexpr (kPeers > 1) return peer_value(here, peer);
  return *here;
}
template <int kPeers>
__device__ __forceinline__ void sync_row() {
  if constexpr (kPeers > 1)
    cluster_sync();
  else
    __syncthreads();
}

}  // namespace tetrad::cuda
