// moe_down_few (contract in moe.h): a block has all groups of 16 outputs, a warp a group and one the shared expert, so that they combine.
#include <algorithm>

#include "base/error.h"
#include "cuda/kernels/moe.cuh"
#include "cuda/kernels/moe_few.cuh"
#include "cuda/runtime/launch.cuh"

namespace tetrad::cuda {
namespace {

constexpr int kDownWarps = 11, kExpertWarps = kDownWarps - 1;  // the last one has the shared expert
constexpr int kSharedBytes = 112 << 10;                        // of a block, so that two fit on a multiprocessor
constexpr int kSharedSlots = 2;                                // of the ring of the shared expert
constexpr int kDownTokens = 4;                                 // at a time: groups are small here

// Sizes of a launch that the kernel needs, too.
struct DownShape {
  int slots, tokens;  // tokens: rows that there is room for
};

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
      const LinearGroup g = noted_group(p, __ldcg(records + group));
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
    moe_down_kernel(const LinearParams p, const LinearParams shared, const DownShape shape, const int4* records, const DownArgs a) {
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
    LinearGroup g = noted_group(p, __ldcg(records + min(warp, num_active - 1)));
    StripScales<kFp8> scales;
    scales.load(p, g.scales, n0);
    wait_for_previous();
    for (int i = warp; i < num_active; i += kExpertWarps) {
      const LinearGroup after = noted_group(p, __ldcg(records + min(i + kExpertWarps, num_active - 1)));
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
      routed = routed_sum(routed + round_b16(weights[weight_of(k, a.EK)] * to_f32(outputs[places[k] * kFragmentRows + i % kFragmentRows])));
    a.y[static_cast<std::size_t>(t) * a.D + n] = with_shared(to_b16(routed), outputs[pairs * kFragmentRows + i], gate);
  }
}

template <bool kFp8>
void launch_down(const LinearParams& p, const LinearParams& shared, const MoeGrouping& g, const DownArgs& a, const Stream& stream) {
  DownShape shape{.slots = 1, .tokens = std::min(a.T, kDownTokens)};
  const int rest = down_head_bytes(a.T, a.EK) + down_warp_bytes<false>(kSharedSlots, shape.tokens);
  const int needed = ceil_div(p.k_fragments, kSlotFragments<kFp8>);
  while (shape.slots < needed && rest + kExpertWarps * down_warp_bytes<kFp8>(shape.slots + 1, shape.tokens) <= kSharedBytes) ++shape.slots;
  const LaunchShape launch_shape{dim3(static_cast<unsigned>(p.n_fragments)), dim3(32 * kDownWarps),
                                 static_cast<std::size_t>(rest + kExpertWarps * down_warp_bytes<kFp8>(shape.slots, shape.tokens))};
  if (launch_shape.shared_bytes > 48 * 1024) allow_shared("moe_down", moe_down_kernel<kFp8>, launch_shape.shared_bytes);
  LinearTag tag = linear_tag("moe_down", p, kFp8, stream);
  const LinearTag tag_shared = linear_tag("moe_down", shared, false, stream);
  tag.bytes += tag_shared.bytes, tag.flops += tag_shared.flops;
  launch(tag, moe_down_kernel<kFp8>, launch_shape, stream, p, shared, shape, g.records, a);
}

}  // namespace

void moe_down_few(const MoeShape& s, const DeviceLinear& down, const LinearArgs& routed, const DeviceLinear& shared_down,
                  const LinearArgs& shared, const MoeGrouping& g, const float* weights, const bf16* gate, bf16* y, const Stream& stream) {
  const DownArgs args{weights, g.place, gate, s.in_ld, shared.T, s.EK, down.N, y};
  const LinearParams p = linear_params(down, routed), p_shared = linear_params(shared_down, shared);
  down.fp8 ? launch_down<true>(p, p_shared, g, args, stream) : launch_down<false>(p, p_shared, g, args, stream);
}

}  // namespace tetrad::cuda
