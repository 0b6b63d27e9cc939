// moe for few rows (contract in moe.h): routing with grouping, then gate and up with the activation; moe_down.cu has what follows.
#include <algorithm>

#include "base/error.h"
#include "cuda/kernels/moe.cuh"
#include "cuda/kernels/moe_few.cuh"
#include "cuda/runtime/launch.cuh"

namespace tetrad::cuda {
namespace {

constexpr int kRouteThreads = 512, kActivateThreads = 512;
constexpr int kGateUpWarps = 5, kGateUpSlots = 2;  // small, so that a multiprocessor holds several blocks

// Block 0 routes, a warp per row, and groups the pairs; the others activate the shared expert. Shared: ids and weights of the pairs, then
// probabilities of the warps' rows, whose place the counts of the experts take.
__global__ void __launch_bounds__(kRouteThreads) moe_route_few_kernel(const MoeShape s, const bf16* in, int T, int layer, float* weights,
                                                                      bf16* shared_act, int ld_act, const MoeGrouping g, int* faults) {
  extern __shared__ float memory[];
  wait_and_hold_next();  // gate and up fetch x before their own wait
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

// Tokens of a group at a time, for which there is room in shared memory: few where most groups have one or two.
int few_group_tokens(const LinearParams& p) {
  const int T = p.groups.num_x_rows, most = p.T <= p.groups.num_groups ? 2 : 4;
  return T < most ? T : most;
}

// Sizes of a launch that the kernels need, too.
struct GroupShape {
  int segments_per_warp, slots, tokens;  // tokens: rows that there is room for
};

__host__ __device__ int gate_up_row_bytes(const LinearParams& p, int tokens) {
  return (2 * (tokens * (p.k_fragments * kFragmentColumns + 8) + 8) + 127) / 128 * 128;
}

// Grid (F/16, groups): gate and up of 16 columns; a warp has consecutive segments of both. Shared: [2][segments][tokens][16] sums, the rows
// of x, a chunk of zeros, then per warp its ring of weights.
template <bool kFp8>
__global__ void __launch_bounds__(32 * kGateUpWarps)
    moe_gate_up_kernel(const LinearParams p, const GroupShape shape, const int4* records, int F, bf16* act, int ld_act) {
  extern __shared__ __align__(128) float sums[];
  const int warp = threadIdx.x / 32, num_segments = (p.k_fragments + p.segment - 1) / p.segment, outputs = shape.tokens * kFragmentRows;
  const int first = min(warp * shape.segments_per_warp * p.segment, p.k_fragments);
  const int end = min(first + shape.segments_per_warp * p.segment, p.k_fragments);
  const std::size_t strip_bytes = static_cast<std::size_t>(p.k_fragments) * WeightFragment<kFp8>::kBytes;
  auto* rows = reinterpret_cast<bf16*>(sums + (2 * num_segments * outputs + 31) / 32 * 32);
  const int stride = p.k_fragments * kFragmentColumns + 8;  // eight rows of a column fall into different banks
  bf16* zeros = rows + shape.tokens * stride;
  if (threadIdx.x == 0) *reinterpret_cast<uint4*>(zeros) = uint4{0, 0, 0, 0};
  WeightRing<kFp8, 2> ring(
      reinterpret_cast<std::byte*>(rows) + gate_up_row_bytes(p, shape.tokens) + warp * WeightRing<kFp8, 2>::bytes(shape.slots),
      shape.slots);
  wait_and_hold_next();
  const int4 record = __ldcg(records + blockIdx.y);  // past the active ones it is what a step before left there
  if (static_cast<int>(blockIdx.y) >= __ldcg(p.groups.num_active)) return;
  const LinearGroup g = noted_group(p, record);
  const std::byte* start = g.data + blockIdx.x * strip_bytes + static_cast<std::size_t>(first) * WeightFragment<kFp8>::kBytes;
  WeightRun run{start, F / kFragmentRows * strip_bytes, end - first, (g.end - g.begin + shape.tokens - 1) / shape.tokens};
  fill_ring(run, ring);
  StripScales<kFp8> scales[2];
  scales[0].load(p, g.scales, blockIdx.x * kFragmentRows);
  scales[1].load(p, g.scales, F + blockIdx.x * kFragmentRows);
  for (int t0 = g.begin; t0 < g.end; t0 += shape.tokens) {
    const int count = min(shape.tokens, g.end - t0);
    for (int t = 0; t < count; ++t) {
      const bf16* from = x_row(p, t0 + t);
#pragma unroll 1
      for (int k = threadIdx.x * 8; k < p.k_fragments * kFragmentColumns; k += blockDim.x * 8)
        copy_async_some(rows + t * stride + k, k < p.K ? from + k : from, max(0, min(16, 2 * (p.K - k))));
    }
    commit_copies();
    wait_copies<0>();
    __syncthreads();  // the rows are there
    const SharedColumns columns(rows, stride, count, zeros, first);
    SharedColumns x[2] = {columns, columns};
    run_sums<kFp8, 2, 1>(0, p.K, p.segment, first, end, x, ring, run, [&](int s, const auto& acc) {
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
    if (t0 + shape.tokens < g.end) __syncthreads();  // the sums and rows have been read
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
  shape.tokens = few_group_tokens(p);
  const int sum_bytes = (sum_bytes_per_token * shape.tokens + 127) / 128 * 128;
  shape.slots = std::min(kGateUpSlots, needed);
  const LaunchShape launch_shape{
      dim3(u(F / kFragmentRows), u(p.groups.num_active_bound)), dim3(u(32 * warps)),
      static_cast<std::size_t>(sum_bytes + gate_up_row_bytes(p, shape.tokens) + warps * WeightRing<kFp8, 2>::bytes(shape.slots))};
  if (launch_shape.shared_bytes > 48 * 1024) allow_shared("moe_gate_up", moe_gate_up_kernel<kFp8>, launch_shape.shared_bytes);
  launch(linear_tag("moe_gate_up", p, kFp8, stream), moe_gate_up_kernel<kFp8>, launch_shape, stream, p, shape, g.records, F, act, ld_act);
}

}  // namespace

bool moe_few_applies(const MoeShape& s, const DeviceLinear& gate_up, const DeviceLinear& shared_down, int T) {
  return T <= kMoeFewRows && s.F % kFragmentRows == 0 && std::max(s.F, s.FS) <= kMoeFewWidth && !shared_down.fp8 &&
         gate_up.column_fragments() <= 128;
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
  if (moe_gate_up_stream(p, gate_up.fp8, g, a.y, ld_act, stream)) return;
  gate_up.fp8 ? launch_gate_up<true>(p, g, a.y, ld_act, stream) : launch_gate_up<false>(p, g, a.y, ld_act, stream);
}

}  // namespace tetrad::cuda
