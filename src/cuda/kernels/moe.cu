#include "cuda/kernels/moe.h"

#include "cuda/kernels/moe.cuh"
#include "cuda/runtime/launch.cuh"

namespace tetrad::cuda {
namespace {

constexpr int kThreads = 256, kRouteRows = 4, kGroupThreads = 1024;

// Shared: [kRouteRows, E] probabilities.
__global__ void moe_route_kernel(const MoeShape s, const bf16* in, int T, int layer, int* ids, float* weights, int* faults) {
  extern __shared__ float memory[];
  wait_for_previous();
  const int t = blockIdx.x * kRouteRows + threadIdx.x / 32;
  if (t >= T) return;
  route_row(s, in + static_cast<std::size_t>(t) * s.in_ld, memory + threadIdx.x / 32 * s.E, layer, ids + t * s.EK, weights + t * s.EK,
            faults == nullptr ? nullptr : faults + t);
}

__global__ void __launch_bounds__(kGroupThreads) moe_group_kernel(const int* ids, int pairs, int E, int EK, const MoeGrouping g) {
  extern __shared__ int next[];
  wait_for_previous();
  group_pairs<kGroupThreads>(ids, pairs, E, EK, next, g);
}

__global__ void moe_activate_kernel(int rows, int F, const bf16* hidden, int ld, bf16* act, int ld_act) {
  wait_for_previous();
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= static_cast<std::size_t>(rows) * F) return;
  const std::size_t row = i / F, f = i % F;
  const bf16* h = hidden + row * ld;
  act[row * ld_act + f] = activated(h[f], h[F + f]);
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
  y[i] = with_shared(routed[i], shared[i], gate[i / D * ld]);
}

LaunchShape elements(std::size_t count) { return {dim3(static_cast<unsigned>((count + kThreads - 1) / kThreads)), dim3(kThreads)}; }

}  // namespace

void moe_route(const MoeShape& s, const bf16* in, int T, int layer, int* ids, float* weights, int* faults, const Stream& stream) {
  const std::size_t shared = static_cast<std::size_t>(kRouteRows) * s.E * sizeof(float);
  if (shared > 48 * 1024) allow_shared("moe_route", moe_route_kernel, shared);
  launch("moe_route", moe_route_kernel, {dim3(static_cast<unsigned>(ceil_div(T, kRouteRows))), dim3(32 * kRouteRows), shared}, stream, s,
         in, T, layer, ids, weights, faults);
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
