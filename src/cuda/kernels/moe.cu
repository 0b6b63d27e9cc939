#include "cuda/kernels/moe.h"

#include "base/error.h"

#include "cuda/kernels/moe.cuh"
#include "cuda/kernels/pieces.cuh"
#include "cuda/runtime/launch.cuh"

namespace tetrad::cuda {
namespace {

constexpr int kThreads = 256, kRouteRows = 4, kGroupThreads = 1024, kFinishPairs = 10, kFinishThreads = 128;

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

// Eight columns to a thread.
__global__ void __launch_bounds__(kThreads) moe_activate_pieces_kernel(int rows, int F, const bf16* hidden, int ld, bf16* act, int ld_act) {
  wait_for_previous();
  const int i = blockIdx.x * kThreads + threadIdx.x, pieces = F / 8;
  if (i >= rows * pieces) return;
  const int row = i / pieces, p = i % pieces;
  const bf16* h = hidden + static_cast<std::size_t>(row) * ld;
  const bool swapped = mutant(Mutant::kExpertGateUpSwapped);
  Eight gate = expand(piece(swapped ? h + F : h, p));
  const Eight up = expand(piece(swapped ? h : h + F, p));
  silu_all(gate.x);
#pragma unroll
  for (int e = 0; e < 8; ++e) gate.x[e] = silu_of_gate(gate.x[e]) * up.x[e];
  reinterpret_cast<uint4*>(act + static_cast<std::size_t>(row) * ld_act)[p] = round_eight(gate);
}

// moe_combine and moe_add_shared, two columns to a thread: little code, which a step of one row has to fetch first.
__global__ void __launch_bounds__(kFinishThreads)
    moe_finish_kernel(int T, int EK, int D, const float* weights, const int* place, const bf16* experts, const bf16* shared,
                      const bf16* gate, int ld, bf16* y) {
  wait_for_previous();
  const int i = blockIdx.x * kFinishThreads + threadIdx.x, pairs = D / 2;
  if (i >= T * pairs) return;
  const int t = i / pairs, p = i % pairs;
  const auto columns = [&](const bf16* rows, int row) {
    return reinterpret_cast<const unsigned*>(rows + static_cast<std::size_t>(row) * D)[p];
  };
  const unsigned other = columns(shared, t);
  const float share = shared_share(gate[static_cast<std::size_t>(t) * ld]);
  float low = 0.0f, high = 0.0f;
#pragma unroll 1
  for (int first = 0; first < EK; first += kFinishPairs) {  // rows of several pairs are on their way together
    int row[kFinishPairs];
    float weight[kFinishPairs];
    unsigned e[kFinishPairs];
    bool in_range = true;
#pragma unroll
    for (int k = 0; k < kFinishPairs; ++k) {
      const int pair = t * EK + min(first + k, EK - 1);
      row[k] = place[pair];
      weight[k] = weights[weight_of(pair, EK)];
    }
#pragma unroll
    for (int k = 0; k < kFinishPairs; ++k) in_range = in_range && row[k] >= 0 && row[k] < T * EK;
    if (!in_range) __trap();
#pragma unroll
    for (int k = 0; k < kFinishPairs; ++k) e[k] = columns(experts, row[k]);
#pragma unroll
    for (int k = 0; k < kFinishPairs; ++k) {
      if (first + k >= EK) break;
      low = routed_sum(low + round_b16(weight[k] * low_half(e[k])));
      high = routed_sum(high + round_b16(weight[k] * high_half(e[k])));
    }
  }
  low = round_b16(low) + round_b16(share * low_half(other));
  high = round_b16(high) + round_b16(share * high_half(other));
  reinterpret_cast<unsigned*>(y)[i] = to_b16(low).bits | static_cast<unsigned>(to_b16(high).bits) << 16;
}

__global__ void moe_combine_kernel(int T, int EK, int D, const float* weights, const int* place, const bf16* experts, bf16* routed) {
  wait_for_previous();
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= static_cast<std::size_t>(T) * D) return;
  const int t = static_cast<int>(i / D), d = static_cast<int>(i % D);
  float sum = 0.0f;
  for (int k = 0; k < EK; ++k) {
    const int row = checked(place[t * EK + k], T * EK);
    sum = routed_sum(sum + round_b16(weights[weight_of(t * EK + k, EK)] * to_f32(experts[static_cast<std::size_t>(row) * D + d])));
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
  const bool aligned = reinterpret_cast<std::uintptr_t>(hidden) % 16 == 0 && reinterpret_cast<std::uintptr_t>(act) % 16 == 0;
  if (F % 8 == 0 && ld % 8 == 0 && ld_act % 8 == 0 && aligned)
    return launch("moe_activate", moe_activate_pieces_kernel, elements(static_cast<std::size_t>(rows) * F / 8), stream, rows, F, hidden, ld,
                  act, ld_act);
  launch("moe_activate", moe_activate_kernel, elements(static_cast<std::size_t>(rows) * F), stream, rows, F, hidden, ld, act, ld_act);
}

void moe_combine(int T, int EK, int D, const float* weights, const int* place, const bf16* experts, bf16* routed, const Stream& stream) {
  launch("moe_combine", moe_combine_kernel, elements(static_cast<std::size_t>(T) * D), stream, T, EK, D, weights, place, experts, routed);
}

void moe_add_shared(int T, int D, const bf16* routed, const bf16* shared, const bf16* gate, int ld, bf16* y, const Stream& stream) {
  launch("moe_add_shared", moe_add_shared_kernel, elements(static_cast<std::size_t>(T) * D), stream, T, D, routed, shared, gate, ld, y);
}

void moe_finish(int T, int EK, int D, const float* weights, const int* place, const bf16* experts, const bf16* shared, const bf16* gate,
                int ld, bf16* y, const Stream& stream) {
  TETRAD_CHECK(D % 2 == 0, "moe_finish: D {}", D);
  launch("moe_finish", moe_finish_kernel, {dim3(static_cast<unsigned>(ceil_div(T * (D / 2), kFinishThreads))), dim3(kFinishThreads)},
         stream, T, EK, D, weights, place, experts, shared, gate, ld, y);
}

}  // namespace tetrad::cuda
