// moe for few rows (contract in moe.h): routing with grouping, gate and up with the activation, down with the combination, so that a step
// takes three launches after the linear of router and shared expert.
#include <algorithm>

#include "base/error.h"
#include "cuda/kernels/linear_few.cuh"
#include "cuda/kernels/moe.cuh"
#include "cuda/runtime/launch.cuh"

namespace tetrad::cuda {
namespace {

constexpr int kRouteThreads = 512, kActivateThreads = 512;
constexpr int kGateUpWarps = 8, kTokens = 8;
constexpr int kDownWarps = 11, kExpertWarps = kDownWarps - 1;  // the last one has the shared expert

// Block 0 routes, a warp per row, and groups the pairs; the others activate the shared expert. Shared: probabilities of the warps' rows,
// then counts of the experts.
__global__ void __launch_bounds__(kRouteThreads)
    moe_route_few_kernel(const MoeShape s, const bf16* in, int T, int layer, int* ids, float* weights, bf16* shared_act, int ld_act,
                         const MoeGrouping g, int* faults) {
  extern __shared__ float memory[];
  wait_for_previous();
  if (blockIdx.x > 0) {
    const int i = (blockIdx.x - 1) * kActivateThreads + threadIdx.x, t = i / s.FS, f = i % s.FS;
    if (t >= T) return;
    const bf16* hidden = in + static_cast<std::size_t>(t) * s.in_ld + s.E;
    shared_act[static_cast<std::size_t>(t) * ld_act + f] = activated(hidden[f], hidden[s.FS + f]);
    return;
  }
  float* p = memory + threadIdx.x / 32 * s.E;
  for (int t = threadIdx.x / 32; t < T; t += kRouteThreads / 32) {
    route_row(s, in + static_cast<std::size_t>(t) * s.in_ld, p, layer, ids + t * s.EK, weights + t * s.EK,
              faults == nullptr ? nullptr : faults + t);
    __syncwarp();  // the probabilities have been read
  }
  __syncthreads();  // every pair has its expert
  group_pairs<kRouteThreads>(ids, T * s.EK, s.E, s.EK, reinterpret_cast<int*>(memory), g);
}

// acc[0], acc[1] <- sums of gate and up over fragments [begin, end), whose first ones are in the batches; leaves those of the next there.
template <bool kFp8, int kCount>
struct GateUp {
  Batch<kFp8, kCount> batch[2];

  __device__ __forceinline__ void load(const std::byte* const* strips, int begin, int end, int lane) {
    batch[0].load(strips[0], begin, end, lane);
    batch[1].load(strips[1], begin, end, lane);
  }
  __device__ __forceinline__ void sum(const bf16* row, int K, int begin, int end, const std::byte* const* strips,
                                      const std::byte* const* next_strips, int next, int next_end, float (*acc)[4]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int j = 0; j < 4; ++j) acc[h][j] = 0.0f;
    for (int f = begin; f < end; f += kCount) {
      const bool last = f + kCount >= end;
      const int from = last ? next : f + kCount, to = last ? next_end : end;
      const std::byte* const* source = last ? next_strips : strips;
#pragma unroll
      for (int b = 0; b < kCount; ++b) {
        if (f + b < end) {
          XFragment x;
          x.load(row, f + b, K, lane);
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            unsigned a[2][4];
            batch[h].w[b].expand(a);
            multiply_fragment<1>(a, &x, acc + h);
          }
        }
        if (from + b < to) {
          batch[0].load_one(source[0], from + b, b, lane);
          batch[1].load_one(source[1], from + b, b, lane);
        }
      }
    }
  }
};

// Grid (F/16/strips, groups): gate and up of 16 columns, strip after strip. Shared: [2][segments][8 tokens][16] sums.
template <bool kFp8>
__global__ void __launch_bounds__(32 * kGateUpWarps, 3) moe_gate_up_kernel(const LinearParams p, int F, int strips, bf16* act, int ld_act) {
  constexpr int kOutputs = kTokens * kFragmentRows;
  extern __shared__ float sums[];
  wait_and_hold_next();
  if (static_cast<int>(blockIdx.y) >= *p.groups.num_active) return;
  const LinearGroup g = of_group(p, p.groups.active[blockIdx.y]);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, num_warps = blockDim.x / 32;
  const int num_segments = (p.k_fragments + p.segment - 1) / p.segment, num_strips = F / kFragmentRows;
  const std::size_t strip_bytes = static_cast<std::size_t>(p.k_fragments) * WeightFragment<kFp8>::kBytes;
  const int first_strip = blockIdx.x * strips, last_strip = min(first_strip + strips, num_strips);
  const auto segment_end = [&](int s) { return min((s + 1) * p.segment, p.k_fragments); };
  const std::byte *now[2] = {g.data + first_strip * strip_bytes, g.data + (num_strips + first_strip) * strip_bytes}, *next[2];
  GateUp<kFp8, kFp8 ? 4 : 5> gate_up;
  gate_up.load(now, warp * p.segment, segment_end(warp), lane);
  for (int strip = first_strip; strip < last_strip; ++strip, now[0] += strip_bytes, now[1] += strip_bytes) {
    for (int t0 = g.begin; t0 < g.end; t0 += kTokens) {
      const bf16* row[1];
      token_rows<1>(p, t0, g.end, row);
      const bool more_rows = t0 + kTokens < g.end;
      for (int s = warp; s < num_segments; s += num_warps) {
        const bool same_strip = s + num_warps < num_segments || more_rows;
        const int after = s + num_warps < num_segments ? s + num_warps : warp;
        next[0] = same_strip ? now[0] : now[0] + strip_bytes, next[1] = same_strip ? now[1] : now[1] + strip_bytes;
        float acc[2][4];
        gate_up.sum(row[0], p.K, s * p.segment, segment_end(s), now, next, after * p.segment,
                    same_strip || strip + 1 < last_strip ? segment_end(after) : 0, acc);
        store_sums<1>(acc, sums + s * kOutputs);
        store_sums<1>(acc + 1, sums + (num_segments + s) * kOutputs);
      }
      __syncthreads();  // the sums are written
      for (int i = threadIdx.x; i < kOutputs; i += blockDim.x) {
        const int f = strip * kFragmentRows + i % kFragmentRows, t = t0 + i / kFragmentRows;
        if (t >= g.end) break;
        float total[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float* scales = g.scales + ((h * F + f) / p.scale_rows) * p.scale_columns;
          const float* sum = sums + h * num_segments * kOutputs + i;
#pragma unroll 5
          for (int s = 0; s < num_segments; ++s) total[h] = add_segment<kFp8>(s == 0, total[h], sum[s * kOutputs], kFp8 ? scales[s] : 1.0f);
        }
        act[static_cast<std::size_t>(t) * ld_act + f] = activated(to_b16(total[0]), to_b16(total[1]));
      }
      if (more_rows || strip + 1 < last_strip) __syncthreads();  // the sums have been read
    }
  }
}

// Totals over all of K of 16 outputs for the 8 tokens of `row`; the first fragments are in the batch, and those of `next` are left there.
template <bool kFp8, int kCount>
__device__ __forceinline__ void strip_totals(const LinearParams& p, const std::byte* strip, const std::byte* next, const float* scales,
                                             int n0, const bf16* row, Batch<kFp8, kCount>& batch, float (&total)[4]) {
  const int lane = threadIdx.x % 32;
  float acc[1][4] = {};
  int in_segment = 0, segment = 0;
  for (int f0 = 0; f0 < p.k_fragments; f0 += kCount) {
#pragma unroll
    for (int b = 0; b < kCount; ++b) {
      const int f = f0 + b;
      if (f >= p.k_fragments) break;
      XFragment x;
      x.load(row, f, p.K, lane);
      unsigned a[2][4];
      batch.w[b].expand(a);
      multiply_fragment<1>(a, &x, acc);
      if (f + kCount < p.k_fragments)
        batch.load_one(strip, f + kCount, b, lane);
      else if (next != nullptr)
        batch.load_one(next, b, b, lane);
      if (++in_segment < p.segment && f + 1 < p.k_fragments) continue;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int n = n0 + lane / 4 + j / 2 * 8;
        const float scale = kFp8 ? scales[(n / p.scale_rows) * p.scale_columns + segment] : 1.0f;
        total[j] = add_segment<kFp8>(segment == 0, total[j], acc[0][j], scale);
        acc[0][j] = 0.0f;
      }
      in_segment = 0;
      ++segment;
    }
  }
}

// bf16 of a warp's 16 outputs for tokens t0 .. of [tokens][16].
__device__ __forceinline__ void store_outputs(const float (&total)[4], int t0, int end, bf16* out) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int t = t0 + lane % 4 * 2 + j % 2;
    if (t < end) out[t * kFragmentRows + lane / 4 + j / 2 * 8] = to_b16(total[j]);
  }
}

struct DownArgs {
  const float* weights;  // [T, EK]
  const int* place;      // [T, EK]
  const bf16* gate;      // of row t at t * gate_ld
  int gate_ld, T, EK, D;
  bf16* y;
};

// Grid D/16. Shared: outputs of the pairs [T*EK][16], then of the shared expert [T][16], bf16.
template <bool kFp8>
__global__ void __launch_bounds__(32 * kDownWarps, 2) moe_down_kernel(const LinearParams p, const LinearParams shared, const DownArgs a) {
  extern __shared__ bf16 outputs[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n0 = blockIdx.x * kFragmentRows, pairs = a.T * a.EK;
  if (warp == kExpertWarps) {
    Batch<false, 5> batch;
    const std::byte* strip = shared.data + static_cast<std::size_t>(blockIdx.x) * shared.k_fragments * WeightFragment<false>::kBytes;
    batch.load(strip, 0, shared.k_fragments, lane);
    wait_for_previous();
    for (int t0 = 0; t0 < a.T; t0 += kTokens) {
      const bf16* row[1];
      token_rows<1>(shared, t0, a.T, row);
      float total[4];
      if (t0 > 0) batch.load(strip, 0, shared.k_fragments, lane);
      strip_totals<false, 5>(shared, strip, nullptr, nullptr, n0, row[0], batch, total);
      store_outputs(total, t0, a.T, outputs + pairs * kFragmentRows);
    }
  } else {
    constexpr int kCount = kFp8 ? 10 : 5;
    Batch<kFp8, kCount> batch;
    const std::size_t offset = static_cast<std::size_t>(blockIdx.x) * p.k_fragments * WeightFragment<kFp8>::kBytes;
    const bool in_turn = p.k_fragments % kCount == 0;  // so that the next strip finds its places free
    const int num_active = *p.groups.num_active;       // written before the kernel that comes before this one
    LinearGroup g;
    if (warp < num_active) {
      g = of_group(p, p.groups.active[warp]);
      batch.load(g.data + offset, 0, p.k_fragments, lane);
    }
    wait_for_previous();
    for (int i = warp; i < num_active; i += kExpertWarps) {
      LinearGroup after = g;
      if (i + kExpertWarps < num_active) after = of_group(p, p.groups.active[i + kExpertWarps]);
      for (int t0 = g.begin; t0 < g.end; t0 += kTokens) {
        const bf16* row[1];
        token_rows<1>(p, t0, g.end, row);
        float total[4];
        strip_totals<kFp8, kCount>(p, g.data + offset, in_turn ? (t0 + kTokens < g.end ? g.data : after.data) + offset : nullptr, g.scales,
                                   n0, row[0], batch, total);
        store_outputs(total, t0, g.end, outputs);
        if (!in_turn) batch.load((t0 + kTokens < g.end ? g.data : after.data) + offset, 0, p.k_fragments, lane);
      }
      g = after;
    }
  }
  __syncthreads();  // every pair's outputs are written
  for (int i = threadIdx.x; i < a.T * kFragmentRows; i += 32 * kDownWarps) {
    const int t = i / kFragmentRows, n = n0 + i % kFragmentRows;
    if (n >= a.D) continue;
    float routed = 0.0f;
    for (int k = 0; k < a.EK; ++k) {
      const int row = checked(a.place[t * a.EK + k], pairs);
      routed += round_b16(a.weights[t * a.EK + k] * to_f32(outputs[row * kFragmentRows + i % kFragmentRows]));
    }
    a.y[static_cast<std::size_t>(t) * a.D + n] =
        with_shared(to_b16(routed), outputs[pairs * kFragmentRows + i], a.gate[static_cast<std::size_t>(t) * a.gate_ld]);
  }
}

unsigned u(int x) { return static_cast<unsigned>(x); }

}  // namespace

bool moe_few_applies(const MoeShape& s, const DeviceLinear& gate_up, const DeviceLinear& shared_down, int T) {
  return T <= kMoeFewRows && s.F % kFragmentRows == 0 && !shared_down.fp8 && gate_up.column_fragments() <= 128;
}

void moe_route_few(const MoeShape& s, const bf16* in, int T, int layer, int* ids, float* weights, bf16* shared_act, int ld_act,
                   const MoeGrouping& g, int* faults, const Stream& stream) {
  const std::size_t shared = static_cast<std::size_t>(s.E) * sizeof(float) * std::min(T, kRouteThreads / 32);
  if (shared > 48 * 1024) allow_shared("moe_route_few", moe_route_few_kernel, shared);
  launch("moe_route_few", moe_route_few_kernel, {dim3(u(1 + ceil_div(T * s.FS, kActivateThreads))), dim3(kRouteThreads), shared}, stream, s,
         in, T, layer, ids, weights, shared_act, ld_act, g, faults);
}

void moe_gate_up_few(const DeviceLinear& gate_up, const LinearArgs& a, int ld_act, const Stream& stream) {
  constexpr int kManyGroups = 24, kStrips = 4;  // with many groups a block goes on to neighbouring columns: its loads never pause
  const LinearParams p = linear_params(gate_up, a);
  const int F = gate_up.N / 2, segments = ceil_div(p.k_fragments, p.segment), groups = a.groups->num_active_bound;
  const int strips = groups > kManyGroups ? kStrips : 1;
  const int warps = ceil_div(segments, ceil_div(segments, kGateUpWarps));
  const LaunchShape shape{dim3(u(ceil_div(F / kFragmentRows, strips)), u(groups)), dim3(u(32 * warps)),
                          2 * static_cast<std::size_t>(segments) * kTokens * kFragmentRows * sizeof(float)};
  const auto kernel = gate_up.fp8 ? moe_gate_up_kernel<true> : moe_gate_up_kernel<false>;
  if (shape.shared_bytes > 48 * 1024) allow_shared("moe_gate_up", kernel, shape.shared_bytes);
  launch("moe_gate_up", kernel, shape, stream, p, F, strips, a.y, ld_act);
}

void moe_down_few(const MoeShape& s, const DeviceLinear& down, const LinearArgs& routed, const DeviceLinear& shared_down,
                  const LinearArgs& shared, const float* weights, const int* place, const bf16* gate, bf16* y, const Stream& stream) {
  const DownArgs args{weights, place, gate, s.in_ld, shared.T, s.EK, down.N, y};
  const LaunchShape shape{dim3(u(down.row_fragments())), dim3(32 * kDownWarps),
                          static_cast<std::size_t>(shared.T) * (s.EK + 1) * kFragmentRows * sizeof(bf16)};
  const auto kernel = down.fp8 ? moe_down_kernel<true> : moe_down_kernel<false>;
  if (shape.shared_bytes > 48 * 1024) allow_shared("moe_down", kernel, shape.shared_bytes);
  launch("moe_down", kernel, shape, stream, linear_params(down, routed), linear_params(shared_down, shared), args);
}

}  // namespace tetrad::cuda
