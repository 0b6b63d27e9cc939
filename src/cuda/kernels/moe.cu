#include "cuda/kernels/moe.h"

#include <algorithm>

#include "cuda/kernels/device_math.cuh"
#include "cuda/runtime/launch.cuh"

namespace tetrad::cuda {
namespace {

constexpr int kThreads = 256, kRouteRows = 4, kGroupThreads = 1024;

// Shared: [kRouteRows, E] probabilities.
__global__ void moe_route_kernel(const bf16* logits, int ld, int T, int E, int EK, bool renormalise, int layer, int* ids, float* weights,
                                 int* faults) {
  wait_for_previous();
  extern __shared__ float memory[];
  const int t = blockIdx.x * kRouteRows + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (t >= T) return;
  float* p = memory + threadIdx.x / 32 * E;
  const bf16* row = logits + static_cast<std::size_t>(t) * ld;
  float best = -INFINITY;
  bool finite = true;
  for (int e = lane; e < E; e += 32) {
    p[e] = to_f32(row[e]);
    finite = finite && isfinite(p[e]);
    best = max_or_nan(p[e], best);
  }
  ids += t * EK, weights += t * EK;
  if (!__all_sync(0xffffffffu, finite)) {
    for (int k = lane; k < EK; k += 32) ids[k] = k, weights[k] = NAN;
    if (lane == 0 && faults != nullptr && faults[t] == 0) faults[t] = layer << 2 | static_cast<int>(FaultKind::kRouterLogits);
    return;
  }
  best = warp_max(best);
  float sum = 0.0f;
  for (int e = lane; e < E; e += 32) {
    p[e] = expf(p[e] - best);
    sum += p[e];
  }
  sum = warp_sum(sum);
  for (int e = lane; e < E; e += 32) p[e] = p[e] / sum;

  float chosen_sum = 0.0f;
  for (int k = 0; k < EK; ++k) {
    float value = -1.0f;  // below every probability
    int index = 0;
    for (int e = lane; e < E; e += 32)
      if (p[e] > value) value = p[e], index = e;  // ascending e: the lower index wins a tie
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
      const float other = __shfl_xor_sync(0xffffffffu, value, offset);
      const int other_index = __shfl_xor_sync(0xffffffffu, index, offset);
      if (other > value || (other == value && other_index < index)) value = other, index = other_index;
    }
    chosen_sum += value;
    if (lane == index % 32) p[index] = -2.0f;  // taken; only this lane reads it again
    if (lane == 0) ids[k] = index, weights[k] = value;
  }
  __syncwarp();  // lane 0 has written the weights
  for (int k = lane; k < EK; k += 32) weights[k] = round_b16(renormalise ? weights[k] / chosen_sum : weights[k]);
}

// Exclusive sum over the block; *total gets the sum of all.
__device__ int block_prefix(int value, int* warp_sums, int* total) {
  int sum = value;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const int below = __shfl_up_sync(0xffffffffu, sum, offset);
    if (threadIdx.x % 32 >= offset) sum += below;
  }
  if (threadIdx.x % 32 == 31) warp_sums[threadIdx.x / 32] = sum;
  __syncthreads();  // every warp's sum is written
  int before = sum - value, all = 0;
  for (int w = 0; w < kGroupThreads / 32; ++w) {
    if (w < static_cast<int>(threadIdx.x / 32)) before += warp_sums[w];
    all += warp_sums[w];
  }
  __syncthreads();  // everybody has read the sums
  *total = all;
  return before;
}

// Shared: [E] counts, then the next free place of each expert.
__global__ void __launch_bounds__(kGroupThreads) moe_group_kernel(const int* ids, int pairs, int E, int EK, const MoeGrouping g) {
  wait_for_previous();
  extern __shared__ int next[];
  __shared__ int warp_sums[kGroupThreads / 32];
  for (int e = threadIdx.x; e < E; e += kGroupThreads) next[e] = 0;
  __syncthreads();  // the counts are zero
  for (int i = threadIdx.x; i < pairs; i += kGroupThreads) atomicAdd(&next[checked(ids[i], E)], 1);
  __syncthreads();                       // the counts are complete
  int first = 0, active = 0, tiles = 0;  // before this round of experts
  for (int base = 0; base < E; base += kGroupThreads) {
    const int e = base + static_cast<int>(threadIdx.x), count = e < E ? next[e] : 0;
    int num_rows, num_active, num_tiles;
    const int row = first + block_prefix(count, warp_sums, &num_rows);
    const int place = active + block_prefix(count > 0 ? 1 : 0, warp_sums, &num_active);
    int tile = tiles + block_prefix((count + kLinearRows - 1) / kLinearRows, warp_sums, &num_tiles);
    if (e < E) g.first[e] = next[e] = row;
    if (count > 0) g.active[place] = e;
    for (int i = 0; i < count; i += kLinearRows) g.tiles[tile++] = make_int2(e, row + i);
    first += num_rows, active += num_active, tiles += num_tiles;
  }
  if (threadIdx.x == 0) {
    g.first[E] = first;
    *g.num_active = active;
    *g.num_tiles = tiles;
  }
  __syncthreads();  // every expert's first place is known
  for (int i = threadIdx.x; i < pairs; i += kGroupThreads) {
    const int place = atomicAdd(&next[ids[i]], 1);
    g.place[i] = place;
    g.token[place] = i / EK;
  }
}

__global__ void moe_activate_kernel(int rows, int F, const bf16* hidden, int ld, bf16* act, int ld_act) {
  wait_for_previous();
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= static_cast<std::size_t>(rows) * F) return;
  const std::size_t row = i / F, f = i % F;
  const bf16* h = hidden + row * ld;
  act[row * ld_act + f] = to_b16(round_b16(silu_f32(to_f32(h[f]))) * to_f32(h[F + f]));
}

__global__ void moe_combine_kernel(int T, int EK, int D, const float* weights, const int* place, const bf16* experts, bf16* routed) {
  wait_for_previous();
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= static_cast<std::size_t>(T) * D) return;
  const int t = static_cast<int>(i / D), d = static_cast<int>(i % D);
  float sum = 0.0f;
  for (int k = 0; k < EK; ++k) {
    const int row = checked(place[t * EK + k], T * EK);
    sum += round_b16(weights[t * EK + k] * to_f32(experts[static_cast<std::size_t>(row) * D + d]));
  }
  routed[i] = to_b16(sum);
}

__global__ void moe_add_shared_kernel(int T, int D, const bf16* routed, const bf16* shared, const bf16* gate, int ld, bf16* y) {
  wait_for_previous();
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= static_cast<std::size_t>(T) * D) return;
  const float g = round_b16(sigmoid_f32(to_f32(gate[i / D * ld])));
  y[i] = to_b16(to_f32(routed[i]) + round_b16(g * to_f32(shared[i])));
}

LaunchShape elements(std::size_t count) { return {dim3(static_cast<unsigned>((count + kThreads - 1) / kThreads)), dim3(kThreads)}; }

}  // namespace

void moe_route(const bf16* logits, int ld, int T, int E, int EK, bool renormalise, int layer, int* ids, float* weights, int* faults,
               const Stream& stream) {
  const std::size_t shared = static_cast<std::size_t>(kRouteRows) * E * sizeof(float);
  if (shared > 48 * 1024) allow_shared("moe_route", moe_route_kernel, shared);
  launch("moe_route", moe_route_kernel, {dim3(static_cast<unsigned>(ceil_div(T, kRouteRows))), dim3(32 * kRouteRows), shared}, stream,
         logits, ld, T, E, EK, renormalise, layer, ids, weights, faults);
}

void moe_group(const int* ids, int T, int E, int EK, const MoeGrouping& g, const Stream& stream) {
  const std::size_t shared = static_cast<std::size_t>(E) * sizeof(int);
  launch("moe_group", moe_group_kernel, {dim3(1), dim3(kGroupThreads), shared}, stream, ids, T * EK, E, EK, g);
}

void moe_activate(int rows, int F, const bf16* hidden, int ld, bf16* act, int ld_act, const Stream& stream) {
  launch("moe_activate", moe_activate_kernel, elements(static_cast<std::size_t>(rows) * F), stream, rows, F, hidden, ld, act, ld_act);
}

void moe_combine(int T, int EK, int D, const float* weights, const int* place, const bf16* experts, bf16* routed, const Stream& stream) {
  launch("moe_combine", moe_combine_kernel, elements(static_cast<std::size_t>(T) * D), stream, T, EK, D, weights, place, experts, routed);
}

void moe_add_shared(int T, int D, const bf16* routed, const bf16* shared, const bf16* gate, int ld, bf16* y, const Stream& stream) {
  launch("moe_add_shared", moe_add_shared_kernel, elements(static_cast<std::size_t>(T) * D), stream, T, D, routed, shared, gate, ld, y);
}

}  // namespace tetrad::cuda
