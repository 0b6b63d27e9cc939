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
constexpr int kGateUpWarps = 5, kGateUpSlots = 2, kTokens = 4;  // small, so that a multiprocessor holds several blocks
constexpr int kDownWarps = 11, kExpertWarps = kDownWarps - 1;   // the last one has the shared expert
constexpr int kSharedBytes = 112 << 10;                         // of a block, so that two fit on a multiprocessor
constexpr int kSharedSlots = 2;                                 // of the ring of the shared expert
constexpr int kDownTokens = 4;                                  // at a time: groups are small here

// Block 0 routes, a warp per row, and groups the pairs; the others activate the shared expert. Shared: ids and weights of the pairs, then
// probabilities of the warps' rows, whose place the counts of the experts take.
__global__ void __launch_bounds__(kRouteThreads) moe_route_few_kernel(const MoeShape s, const bf16* in, int T, int layer, float* weights,
                                                                      bf16* shared_act, int ld_act, const MoeGrouping g, int* faults) {
  extern __shared__ float memory[];
  wait_for_previous();
  if (blockIdx.x > 0) {
    const int i = (blockIdx.x - 1) * kActivateThreads + threadIdx.x, t = i / s.FS, f = i % s.FS;
    if (t >= T) return;
    const bf16* hidden = in + static_cast<std::size_t>(t) * s.in_ld + s.E;
    shared_act[static_cast<std::size_t>(t) * ld_act + f] = activated(hidden[f], hidden[s.FS + f]);
    return;
  }
  const int pairs = T * s.EK, warp = threadIdx.x / 32;
  float* pair_weights = memory;
  int* ids = reinterpret_cast<int*>(memory + pairs);
  float* p = memory + 2 * pairs + warp * s.E;
  for (int t = warp; t < T; t += kRouteThreads / 32) {
    route_row(s, in + static_cast<std::size_t>(t) * s.in_ld, p, layer, ids + t * s.EK, pair_weights + t * s.EK,
              faults == nullptr ? nullptr : faults + t);
    __syncwarp();  // the probabilities have been read
  }
  if (T > 1) {
    __syncthreads();  // every pair has its expert
    group_pairs<kRouteThreads>(ids, pairs, s.E, s.EK, reinterpret_cast<int*>(memory + 2 * pairs), g);
  } else if (warp == 0) {  // every pair is a group
    for (int k = threadIdx.x; k < s.EK; k += 32) {
      g.records[k] = make_int4(ids[k], k, k + 1, 0);
      g.place[k] = k;
      g.token[k] = 0;
    }
    if (threadIdx.x == 0) *g.num_active = s.EK;
  }
  if (T > 1 || warp == 0)
    for (int i = threadIdx.x; i<pairs; i += T> 1 ? kRouteThreads : 32) weights[i] = pair_weights[i];
}

// The group of a place among the active ones: what moe_route_few noted, in one read.
__device__ __forceinline__ LinearGroup noted_group(const LinearParams& p, const int4* records, int i) {
  const int4 record = __ldcg(records + i);
  const int e = checked(record.x, p.groups.num_groups);
  if (record.y < 0 || record.z < record.y || record.z > p.T) __trap();
  return {p.data + e * p.groups.data_stride, p.scales + e * p.groups.scale_stride, record.y, record.z};
}

// Sizes of a launch that the kernels need, too.
struct GroupShape {
  int segments_per_warp, slots, tokens;  // tokens: rows that there is room for
};

// Scales of 16 outputs: lane s has that of segment s where the outputs share them, else they are read where they are used.
template <bool kFp8>
struct StripScales {
  const float* rows = nullptr;
  float own = 1.0f;

  __device__ __forceinline__ void load(const LinearParams& p, const float* scales, int n0) {
    if constexpr (kFp8) {
      const int lane = threadIdx.x % 32;
      rows = scales + static_cast<std::size_t>(n0 / p.scale_rows) * p.scale_columns;
      if (p.scale_rows == kFragmentRows && lane < p.scale_columns) own = rows[lane];
    }
  }
  // Of row n0 + row; all lanes call it.
  __device__ __forceinline__ float at(const LinearParams& p, int row, int of_segment) const {
    if constexpr (!kFp8) return 1.0f;
    const int segment = scale_column(p, of_segment);
    const float shared = __shfl_sync(0xffffffffu, own, segment % 32);
    return p.scale_rows == kFragmentRows && p.scale_columns <= 32 ? shared : rows[row / p.scale_rows * p.scale_columns + segment];
  }
};

// Grid (F/16, groups): gate and up of 16 columns; a warp has consecutive segments of both. Shared: [2][segments][tokens][16] sums, then
// per warp its ring of weights and its columns of x.
template <bool kFp8>
__global__ void __launch_bounds__(32 * kGateUpWarps)
    moe_gate_up_kernel(const LinearParams p, const GroupShape shape, const int4* records, int F, bf16* act, int ld_act) {
  extern __shared__ __align__(128) float sums[];
  const int warp = threadIdx.x / 32, num_segments = (p.k_fragments + p.segment - 1) / p.segment, outputs = shape.tokens * kFragmentRows;
  const int first = min(warp * shape.segments_per_warp * p.segment, p.k_fragments);
  const int end = min(first + shape.segments_per_warp * p.segment, p.k_fragments);
  const std::size_t strip_bytes = static_cast<std::size_t>(p.k_fragments) * WeightFragment<kFp8>::kBytes;
  auto* memory = reinterpret_cast<std::byte*>(sums + 2 * num_segments * outputs) +
                 warp * (WeightRing<kFp8, 2>::bytes(shape.slots) + ColumnBuffers<kFp8, 1>::elements(shape.tokens) * 2);
  WeightRing<kFp8, 2> ring(memory, shape.slots);
  wait_and_hold_next();
  const int num_active = *p.groups.num_active;
  const LinearGroup g = noted_group(p, records, min(static_cast<int>(blockIdx.y), num_active - 1));
  if (static_cast<int>(blockIdx.y) >= num_active) return;
  const std::byte* start = g.data + blockIdx.x * strip_bytes + static_cast<std::size_t>(first) * WeightFragment<kFp8>::kBytes;
  WeightRun run{start, F / kFragmentRows * strip_bytes, end - first, (g.end - g.begin + kTokens - 1) / kTokens};
  fill_ring(run, ring);
  StripScales<kFp8> scales[2];
  scales[0].load(p, g.scales, blockIdx.x * kFragmentRows);
  scales[1].load(p, g.scales, F + blockIdx.x * kFragmentRows);
  for (int t0 = g.begin; t0 < g.end; t0 += kTokens) {
    const int count = min(kTokens, g.end - t0);
    const auto row = [&](int t) { return x_row(p, t0 + t); };
    ColumnBuffers<kFp8, 1> buffers(reinterpret_cast<bf16*>(memory + WeightRing<kFp8, 2>::bytes(shape.slots)), shape.tokens, count);
    buffers.fetch_first(row, p.K, first, end);
    run_sums<kFp8, 2, 1>(row, p.K, p.segment, first, end, buffers.x, ring, run, [&](int s, const auto& acc) {
      store_sums<1>(acc[0], count, sums + s * outputs);
      store_sums<1>(acc[1], count, sums + (num_segments + s) * outputs);
    });
    __syncthreads();                                                                            // the sums are written
    for (int base = threadIdx.x / 32 * 32; base < count * kFragmentRows; base += blockDim.x) {  // whole warps: scales go by shuffles
      const int i = base + static_cast<int>(threadIdx.x) % 32, f = blockIdx.x * kFragmentRows + i % kFragmentRows,
                t = t0 + i / kFragmentRows;
      float total[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float* sum = sums + h * num_segments * outputs + i;
#pragma unroll 5
        for (int s = 0; s < num_segments; ++s) {
          const float scale = scales[h].at(p, i % kFragmentRows, s);
          total[h] = add_segment<kFp8>(s == 0, total[h], sum[s * outputs], scale);
        }
      }
      if (t < t0 + count) act[static_cast<std::size_t>(t) * ld_act + f] = activated(to_b16(total[0]), to_b16(total[1]));
    }
    if (t0 + kTokens < g.end) __syncthreads();  // the sums have been read
  }
}

// The weights of a warp's groups, one strip of 16 outputs each: groups warp, warp + kExpertWarps, ...
template <bool kFp8>
struct StripRun {
  const LinearParams& p;
  const int4* records;
  std::size_t offset;  // of the strip in a group's weights
  int group, num_active, next = 0, passes = 0;
  const std::byte* fragments = nullptr;

  __device__ __forceinline__ void push(WeightRing<kFp8>& ring) {
    if (passes == 0) {
      if (group >= num_active) return;
      const LinearGroup g = noted_group(p, records, group);
      fragments = g.data + offset;
      passes = (g.end - g.begin + kDownTokens - 1) / kDownTokens;
      group += kExpertWarps;
    }
    ring.push(fragments + static_cast<std::size_t>(next) * WeightFragment<kFp8>::kBytes, 0,
              min(kSlotFragments<kFp8>, p.k_fragments - next));
    next += kSlotFragments<kFp8>;
    if (next >= p.k_fragments) next = 0, --passes;
  }
};

// The totals of 16 outputs over all of K for up to four tokens.
template <bool kFp8, class Row, class Run>
__device__ __forceinline__ void strip_totals(const LinearParams& p, const Row& row, ColumnBuffers<kFp8, 1>& buffers, WeightRing<kFp8>& ring,
                                             Run& run, const StripScales<kFp8>& scales, float (&total)[4]) {
  const int lane = threadIdx.x % 32;
  buffers.fetch_first(row, p.K, 0, p.k_fragments);
  run_sums<kFp8, 1, 1>(row, p.K, p.segment, 0, p.k_fragments, buffers.x, ring, run, [&](int s, const auto& acc) {
    const float scale[2] = {scales.at(p, lane / 4, s), scales.at(p, lane / 4 + 8, s)};
#pragma unroll
    for (int j = 0; j < 4; ++j) total[j] = add_segment<kFp8>(s == 0, total[j], acc[0][0][j], scale[j / 2]);
  });
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

// Bytes of moe_down's shared memory before those of the warps, and of each warp.
__host__ __device__ inline int down_head_bytes(int T, int EK) { return (T * (EK + 1) * kFragmentRows * 2 + T * EK * 8 + 127) / 128 * 128; }
template <bool kFp8>
__host__ __device__ int down_warp_bytes(int slots, int tokens) {
  return (WeightRing<kFp8>::bytes(slots) + ColumnBuffers<kFp8, 1>::elements(tokens) * 2 + 127) / 128 * 128;
}

struct DownArgs {
  const float* weights;  // [T, EK]
  const int* place;      // [T, EK]
  const bf16* gate;      // of row t at t * gate_ld
  int gate_ld, T, EK, D;
  bf16* y;
};

// Grid D/16: all groups of 16 outputs, so that they combine. Shared: outputs of the pairs [T*EK][16], of the shared expert [T][16], places
// and weights of the pairs, then per warp its ring of weights and its columns of x.
template <bool kFp8>
__global__ void __launch_bounds__(32 * kDownWarps)
    moe_down_kernel(const LinearParams p, const LinearParams shared, const GroupShape shape, const int4* records, const DownArgs a) {
  extern __shared__ __align__(128) bf16 outputs[];
  const int warp = threadIdx.x / 32, n0 = blockIdx.x * kFragmentRows, pairs = a.T * a.EK;
  // What the sum at the end needs was written before the kernel that comes before this one, like the groups.
  int* places = reinterpret_cast<int*>(outputs + (pairs + a.T) * kFragmentRows);
  float* weights = reinterpret_cast<float*>(places + pairs);
  auto* memory =
      reinterpret_cast<std::byte*>(outputs) + down_head_bytes(a.T, a.EK) + warp * down_warp_bytes<kFp8>(shape.slots, shape.tokens);
  const auto gate_of = [&](int i) { return a.gate[static_cast<std::size_t>(i / kFragmentRows) * a.gate_ld]; };
  if (warp == kExpertWarps) {
    WeightRing<false> ring(memory, kSharedSlots);
    WeightRun run{shared.data + static_cast<std::size_t>(blockIdx.x) * shared.k_fragments * WeightFragment<false>::kBytes, 0,
                  shared.k_fragments, (a.T + kDownTokens - 1) / kDownTokens};
    fill_ring(run, ring);
    for (int i = threadIdx.x % 32; i < pairs; i += 32) places[i] = checked(__ldcg(a.place + i), pairs), weights[i] = __ldcg(a.weights + i);
    wait_for_previous();
    for (int t0 = 0; t0 < a.T; t0 += kDownTokens) {
      const int count = min(kDownTokens, a.T - t0);
      ColumnBuffers<false, 1> buffers(reinterpret_cast<bf16*>(memory + WeightRing<false>::bytes(kSharedSlots)), shape.tokens, count);
      float total[4];
      strip_totals<false>(
          shared, [&](int t) { return x_row(shared, t0 + t); }, buffers, ring, run, {}, total);
      store_outputs(total, t0, t0 + count, outputs + pairs * kFragmentRows);
    }
  } else {
    WeightRing<kFp8> ring(memory, shape.slots);
    const int num_active = __ldcg(p.groups.num_active);
    StripRun<kFp8> run{p, records, static_cast<std::size_t>(blockIdx.x) * p.k_fragments * WeightFragment<kFp8>::kBytes, warp, num_active};
    fill_ring(run, ring);
    LinearGroup g = noted_group(p, records, min(warp, num_active - 1));
    StripScales<kFp8> scales;
    scales.load(p, g.scales, n0);
    wait_for_previous();
    for (int i = warp; i < num_active; i += kExpertWarps) {
      const LinearGroup after = noted_group(p, records, min(i + kExpertWarps, num_active - 1));
      StripScales<kFp8> scales_after;
      scales_after.load(p, after.scales, n0);
      for (int t0 = g.begin; t0 < g.end; t0 += kDownTokens) {
        const int count = min(kDownTokens, g.end - t0);
        ColumnBuffers<kFp8, 1> buffers(reinterpret_cast<bf16*>(memory + WeightRing<kFp8>::bytes(shape.slots)), shape.tokens, count);
        float total[4];
        strip_totals<kFp8>(
            p, [&](int t) { return x_row(p, t0 + t); }, buffers, ring, run, scales, total);
        store_outputs(total, t0, t0 + count, outputs);
      }
      g = after;
      scales = scales_after;
    }
  }
  const bf16 first_gate = threadIdx.x < static_cast<unsigned>(a.T * kFragmentRows) ? gate_of(threadIdx.x) : bf16{};
  __syncthreads();  // every pair's outputs are written
  for (int i = threadIdx.x; i < a.T * kFragmentRows; i += 32 * kDownWarps) {
    const int t = i / kFragmentRows, n = n0 + i % kFragmentRows;
    if (n >= a.D) continue;
    const bf16 gate = i == static_cast<int>(threadIdx.x) ? first_gate : gate_of(i);
    float routed = 0.0f;
#pragma unroll 10
    for (int k = t * a.EK; k < (t + 1) * a.EK; ++k)
      routed += round_b16(weights[weight_of(k, a.EK)] * to_f32(outputs[places[k] * kFragmentRows + i % kFragmentRows]));
    a.y[static_cast<std::size_t>(t) * a.D + n] = with_shared(to_b16(routed), outputs[pairs * kFragmentRows + i], gate);
  }
}

unsigned u(int x) { return static_cast<unsigned>(x); }

template <bool kFp8>
void launch_gate_up(const LinearParams& p, const MoeGrouping& g, bf16* act, int ld_act, const Stream& stream) {
  const int F = p.N / 2, segments = ceil_div(p.k_fragments, p.segment), sum_bytes_per_token = 2 * segments * kFragmentRows * 4;
  GroupShape shape;
  shape.segments_per_warp = ceil_div(segments, kGateUpWarps);
  const int warps = ceil_div(segments, shape.segments_per_warp),
            needed = ceil_div(shape.segments_per_warp * p.segment, kSlotFragments<kFp8>);
  shape.tokens = std::min(kTokens, p.groups.num_x_rows);
  const int column_bytes = ColumnBuffers<kFp8, 1>::elements(shape.tokens) * 2, sum_bytes = sum_bytes_per_token * shape.tokens;
  shape.slots = std::min(kGateUpSlots, needed);
  const LaunchShape launch_shape{dim3(u(F / kFragmentRows), u(p.groups.num_active_bound)), dim3(u(32 * warps)),
                                 static_cast<std::size_t>(sum_bytes + warps * (WeightRing<kFp8, 2>::bytes(shape.slots) + column_bytes))};
  if (launch_shape.shared_bytes > 48 * 1024) allow_shared("moe_gate_up", moe_gate_up_kernel<kFp8>, launch_shape.shared_bytes);
  launch(linear_tag("moe_gate_up", p, kFp8, stream), moe_gate_up_kernel<kFp8>, launch_shape, stream, p, shape, g.records, F, act, ld_act);
}

template <bool kFp8>
void launch_down(const LinearParams& p, const LinearParams& shared, const MoeGrouping& g, const DownArgs& a, const Stream& stream) {
  GroupShape shape{.segments_per_warp = 0, .slots = 1, .tokens = std::min(a.T, kDownTokens)};
  const int rest = down_head_bytes(a.T, a.EK) + down_warp_bytes<false>(kSharedSlots, shape.tokens);
  const int needed = ceil_div(p.k_fragments, kSlotFragments<kFp8>);
  while (shape.slots < needed && rest + kExpertWarps * down_warp_bytes<kFp8>(shape.slots + 1, shape.tokens) <= kSharedBytes) ++shape.slots;
  const LaunchShape launch_shape{dim3(u(p.n_fragments)), dim3(32 * kDownWarps),
                                 static_cast<std::size_t>(rest + kExpertWarps * down_warp_bytes<kFp8>(shape.slots, shape.tokens))};
  if (launch_shape.shared_bytes > 48 * 1024) allow_shared("moe_down", moe_down_kernel<kFp8>, launch_shape.shared_bytes);
  LinearTag tag = linear_tag("moe_down", p, kFp8, stream);
  const LinearTag tag_shared = linear_tag("moe_down", shared, false, stream);
  tag.bytes += tag_shared.bytes, tag.flops += tag_shared.flops;
  launch(tag, moe_down_kernel<kFp8>, launch_shape, stream, p, shared, shape, g.records, a);
}

}  // namespace

bool moe_few_applies(const MoeShape& s, const DeviceLinear& gate_up, const DeviceLinear& shared_down, int T) {
  return T <= kMoeFewRows && s.F % kFragmentRows == 0 && !shared_down.fp8 && gate_up.column_fragments() <= 128;
}

void moe_route_few(const MoeShape& s, const bf16* in, int T, int layer, float* weights, bf16* shared_act, int ld_act, const MoeGrouping& g,
                   int* faults, const Stream& stream) {
  const std::size_t shared = sizeof(float) * static_cast<std::size_t>(2 * T * s.EK + s.E * std::min(T, kRouteThreads / 32));
  if (shared > 48 * 1024) allow_shared("moe_route_few", moe_route_few_kernel, shared);
  launch("moe_route_few", moe_route_few_kernel, {dim3(u(1 + ceil_div(T * s.FS, kActivateThreads))), dim3(kRouteThreads), shared}, stream, s,
         in, T, layer, weights, shared_act, ld_act, g, faults);
}

void moe_gate_up_few(const DeviceLinear& gate_up, const LinearArgs& a, const MoeGrouping& g, int ld_act, const Stream& stream) {
  const LinearParams p = linear_params(gate_up, a);
  gate_up.fp8 ? launch_gate_up<true>(p, g, a.y, ld_act, stream) : launch_gate_up<false>(p, g, a.y, ld_act, stream);
}

void moe_down_few(const MoeShape& s, const DeviceLinear& down, const LinearArgs& routed, const DeviceLinear& shared_down,
                  const LinearArgs& shared, const MoeGrouping& g, const float* weights, const bf16* gate, bf16* y, const Stream& stream) {
  const DownArgs args{weights, g.place, gate, s.in_ld, shared.T, s.EK, down.N, y};
  const LinearParams p = linear_params(down, routed), p_shared = linear_params(shared_down, shared);
  down.fp8 ? launch_down<true>(p, p_shared, g, args, stream) : launch_down<false>(p, p_shared, g, args, stream);
}

}  // namespace tetrad::cuda
