// moe_down_few (contract in moe.h): the blocks of a cluster share 16 outputs. Their warps divide the groups, each keeps its rows of the
// hidden layer whole in shared memory, and what a warp computes it puts where the token's block adds up. Small blocks spread evenly over
// the multiprocessors, which 160 strips of outputs alone do not.
#include <algorithm>

#include "base/error.h"
#include "cuda/kernels/cluster.cuh"
#include "cuda/kernels/moe.cuh"
#include "cuda/kernels/moe_few.cuh"
#include "cuda/runtime/launch.cuh"

namespace tetrad::cuda {
namespace {

constexpr int kRanks = 4, kExpertWarps = 3;  // of a cluster; of a block, beside the warp of the shared expert
constexpr int kAloneExpertWarps = 10;        // where there are no clusters
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
constexpr int kMostThreads = 32 * (kExpertWarps + 1), kLeastBlocks = 5;
#else
constexpr int kMostThreads = 32 * (kAloneExpertWarps + 1), kLeastBlocks = 1;
#endif
constexpr int kSharedSlots = 2;       // of the ring of the shared expert
constexpr int kLeastSlots = 4;        // of the ring of an expert, unless it needs fewer
constexpr int kSharedBytes = 45'600;  // of a block, so that five fit on a multiprocessor
constexpr int kAloneSharedBytes = 90 << 10;

// Sizes of a launch that the kernel needs, too. tokens: of a group at a time; records: of a warp.
struct DownShape {
  int ranks, expert_warps, slots, tokens, records;
};

struct DownArgs {
  const float* weights;  // [T, EK]
  const int* place;      // [T, EK]
  const int* token;      // [T*EK] of a place
  const bf16* gate;      // of row t at t * gate_ld
  int gate_ld, T, EK, D;
  bf16* y;
};

// Whole rows of a warp's own: run_sums asks for them slot by slot, but they are there.
struct WholeColumns : XColumns<1> {
  int shift = 0;  // fragments before those of the current slot
  using XColumns<1>::XColumns;
  template <class Row>
  __device__ __forceinline__ void fetch(const Row&, int, int begin, int) {
    shift = begin;
  }
  __device__ __forceinline__ void wait() const {}
  __device__ __forceinline__ void load(int f, XFragment (&x)[1]) const { XColumns<1>::load(shift + f, x); }
};

// The totals of 16 outputs over all of K for the rows at `memory`.
template <bool kFp8, class Run>
__device__ __forceinline__ void strip_totals(const LinearParams& p, bf16* memory, int count, WeightRing<kFp8>& ring, Run& run,
                                             const StripScales<kFp8>& scales, float (&total)[4]) {
  const int lane = threadIdx.x % 32;
  const int stride = XColumns<1>::stride_of(p.k_fragments);
  WholeColumns x[2] = {{memory, stride, count, 0}, {memory, stride, count, 0}};
  __syncwarp();  // the chunk of zeros is written
  run_sums<kFp8, 1, 1>(0, p.K, p.segment, 0, p.k_fragments, x, ring, run, [&](int s, const auto& acc) {
    const float scale[2] = {scales.at(p, lane / 4, s), scales.at(p, lane / 4 + 8, s)};
#pragma unroll
    for (int j = 0; j < 4; ++j) total[j] = add_segment<kFp8>(s == 0, total[j], acc[0][0][j], scale[j / 2]);
  });
}

// Starts the copy of rows t0 .. of x.
__device__ __forceinline__ void fetch_rows(const LinearParams& p, bf16* memory, int t0, int count) {
  XColumns<1>(memory, p.k_fragments, count).fetch([&](int t) { return x_row(p, t0 + t); }, p.K, 0, p.k_fragments);
}

// Output n of `row` to block `rank` of the cluster.
__device__ __forceinline__ void put_output(bf16* outputs, int row, int n, int rank, float value) {
  put_peer_value(reinterpret_cast<unsigned short*>(outputs + row * kFragmentRows + n), rank, to_b16(value).bits);
}

// The weights of a warp's groups, one strip of 16 outputs each, in the order of its records.
template <bool kFp8>
struct StripRun {
  const LinearParams& p;
  const int4* records;
  int count, tokens;
  std::size_t offset;  // of the strip in a group's weights
  int record = 0, next = 0, passes = 0;
  const std::byte* fragments = nullptr;

  __device__ __forceinline__ void push(WeightRing<kFp8>& ring) {
    if (passes == 0) {
      if (record >= count) return;
      const int4 r = records[record++];
      fragments = p.data + r.x * p.groups.data_stride + offset;
      passes = (r.z - r.y + tokens - 1) / tokens;
    }
    ring.push(fragments + static_cast<std::size_t>(next) * WeightFragment<kFp8>::kBytes, 0,
              min(kSlotFragments<kFp8>, p.k_fragments - next));
    next += kSlotFragments<kFp8>;
    if (next >= p.k_fragments) next = 0, --passes;
  }
};

// Bytes of shared memory before those of the warps; of an expert's warp; of the shared expert's.
__host__ __device__ inline int head_bytes(int T, int EK) { return (T * (EK + 1) * kFragmentRows * 2 + T * EK * 8 + 127) / 128 * 128; }
template <bool kFp8>
__host__ __device__ int expert_warp_bytes(const DownShape& s, int k_fragments) {
  return (s.records * 16 + WeightRing<kFp8>::bytes(s.slots) + 2 * XColumns<1>::size_of(k_fragments, s.tokens) * 2 + 127) / 128 * 128;
}
__host__ __device__ inline int shared_warp_bytes(const DownShape& s, int k_fragments) {
  return (WeightRing<false>::bytes(kSharedSlots) + XColumns<1>::size_of(k_fragments, s.tokens) * 2 + 127) / 128 * 128;
}

// The groups of this warp: the rank-th of every `ranks`, of these every expert_warps-th.
template <bool kFp8>
__device__ __forceinline__ void add_experts(const LinearParams& p, const DownShape& shape, const int4* records, const DownArgs& a, int rank,
                                            int strip, std::byte* memory, bf16* outputs) {
  const int lane = threadIdx.x % 32, first = rank + shape.ranks * static_cast<int>(threadIdx.x / 32),
            step = shape.ranks * shape.expert_warps;
  auto* own = reinterpret_cast<int4*>(memory);
  WeightRing<kFp8> ring(memory + shape.records * 16, shape.slots);
  bf16* rows = reinterpret_cast<bf16*>(memory + shape.records * 16 + WeightRing<kFp8>::bytes(shape.slots));
  const auto rows_of = [&](int turn) { return rows + turn * XColumns<1>::size_of(p.k_fragments, shape.tokens); };
  int4 record[2];
#pragma unroll
  for (int j = 0; j < 2; ++j) {  // with the count on its way; past the active ones it is what a step before left there
    const int i = first + (lane + 32 * j) * step;
    record[j] = i < p.groups.num_active_bound ? __ldcg(records + i) : int4{};
  }
  const int num_active = __ldcg(p.groups.num_active), count = num_active > first ? (num_active - first + step - 1) / step : 0;
#pragma unroll
  for (int j = 0; j < 2; ++j)
    if (lane + 32 * j < count) (void)noted_group(p, record[j]), own[lane + 32 * j] = record[j];
  for (int j = lane + 64; j < count; j += 32) {
    const int4 more = __ldcg(records + first + j * step);
    (void)noted_group(p, more);
    own[j] = more;
  }
  __syncwarp();  // the records are there
  StripRun<kFp8> run{p, own, count, shape.tokens, static_cast<std::size_t>(strip) * p.k_fragments * WeightFragment<kFp8>::kBytes};
  fill_ring(run, ring);
  StripScales<kFp8> scales;
  if (count > 0) scales.load(p, p.scales + own[0].x * p.groups.scale_stride, strip * kFragmentRows);
  cluster_wait_started();
  wait_for_previous();
  // The tokens of this lane's outputs, rows 2 * (lane % 4) and the next of a pass, come with the rows.
  int token[2], token_after[2] = {};
  const auto start = [&](int t0, int rows_count, int turn, int(&of)[2]) {
    fetch_rows(p, rows_of(turn), t0, rows_count);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int t = lane % 4 * 2 + j;
      of[j] = t < rows_count ? checked(__ldcg(a.token + t0 + t), a.T) : 0;
    }
  };
  if (count > 0) start(own[0].y, min(shape.tokens, own[0].z - own[0].y), 0, token_after);
  int turn = 0;
  for (int j = 0; j < count; ++j) {
    const int4 group = own[j], after = own[min(j + 1, count - 1)];
    StripScales<kFp8> scales_after;
    scales_after.load(p, p.scales + after.x * p.groups.scale_stride, strip * kFragmentRows);
    for (int t0 = group.y; t0 < group.z; t0 += shape.tokens, turn ^= 1) {
      const int rows_count = min(shape.tokens, group.z - t0);
      token[0] = token_after[0], token[1] = token_after[1];
      wait_copies<0>();
      __syncwarp();  // every lane's chunks of the rows are there
      if (t0 + shape.tokens < group.z)
        start(t0 + shape.tokens, min(shape.tokens, group.z - t0 - shape.tokens), turn ^ 1, token_after);
      else if (j + 1 < count)
        start(after.y, min(shape.tokens, after.z - after.y), turn ^ 1, token_after);
      float total[4];
      strip_totals<kFp8>(p, rows_of(turn), rows_count, ring, run, scales, total);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (lane % 4 * 2 + i % 2 < rows_count)
          put_output(outputs, t0 + lane % 4 * 2 + i % 2, lane / 4 + i / 2 * 8, token[i % 2] % shape.ranks, total[i]);
    }
    scales = scales_after;
  }
}

// The shared expert's rows of this block: every ranks-th pass, the last rank first, which has the fewest groups. Its hidden rows were
// written before the kernel that comes before this one, like places, weights and gates.
__device__ __forceinline__ void add_shared(const LinearParams& shared, const DownShape& shape, const DownArgs& a, int rank, int strip,
                                           std::byte* memory, bf16* outputs, int* places, float* weights) {
  const int lane = threadIdx.x % 32, pairs = a.T * a.EK, passes = (a.T + shape.tokens - 1) / shape.tokens;
  const int first = shape.ranks - 1 - rank, count = passes > first ? (passes - first + shape.ranks - 1) / shape.ranks : 0;
  WeightRing<false> ring(memory, kSharedSlots);
  bf16* rows = reinterpret_cast<bf16*>(memory + WeightRing<false>::bytes(kSharedSlots));
  WeightRun run{shared.data + static_cast<std::size_t>(strip) * shared.k_fragments * WeightFragment<false>::kBytes, 0, shared.k_fragments,
                count};
  fill_ring(run, ring);
  for (int i = lane; i < pairs; i += 32) places[i] = checked(__ldcg(a.place + i), pairs), weights[i] = __ldcg(a.weights + i);
  cluster_wait_started();
  for (int pass = first; pass < passes; pass += shape.ranks) {
    const int t0 = pass * shape.tokens, rows_count = min(shape.tokens, a.T - t0);
    fetch_rows(shared, rows, t0, rows_count);
    wait_copies<0>();
    __syncwarp();  // every lane's chunks of the rows are there
    float total[4];
    strip_totals<false>(shared, rows, rows_count, ring, run, {}, total);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int t = t0 + lane % 4 * 2 + i % 2;
      if (t < t0 + rows_count) put_output(outputs, pairs + t, lane / 4 + i / 2 * 8, t % shape.ranks, total[i]);
    }
  }
  wait_for_previous();
}

// Grid ranks * D/16, in clusters of `ranks`. Shared: outputs of the pairs [T*EK][16] and of the shared expert [T][16], of the tokens that
// are added up here; places and weights of the pairs; then the memory of each warp.
template <bool kFp8>
__global__ void TETRAD_CLUSTER(kRanks) __launch_bounds__(kMostThreads, kLeastBlocks)
    moe_down_kernel(const LinearParams p, const LinearParams shared, const DownShape shape, const int4* records, const DownArgs a) {
  extern __shared__ __align__(128) bf16 outputs[];
  cluster_started();
  const int warp = threadIdx.x / 32, rank = static_cast<int>(blockIdx.x) % shape.ranks, strip = static_cast<int>(blockIdx.x) / shape.ranks;
  const int pairs = a.T * a.EK;
  int* places = reinterpret_cast<int*>(outputs + (pairs + a.T) * kFragmentRows);
  float* weights = reinterpret_cast<float*>(places + pairs);
  auto* memory = reinterpret_cast<std::byte*>(outputs) + head_bytes(a.T, a.EK) + warp * expert_warp_bytes<kFp8>(shape, p.k_fragments);
  const auto token_of = [&](int i) { return rank + i / kFragmentRows * shape.ranks; };
  const auto gate_of = [&](int i) { return a.gate[static_cast<std::size_t>(token_of(i)) * a.gate_ld]; };
  if (warp == shape.expert_warps)
    add_shared(shared, shape, a, rank, strip, memory, outputs, places, weights);
  else
    add_experts<kFp8>(p, shape, records, a, rank, strip, memory, outputs);
  const int count = (a.T - rank + shape.ranks - 1) / shape.ranks * kFragmentRows;  // outputs to add up here; none is 0 or less
  const bf16 first_gate = static_cast<int>(threadIdx.x) < count ? gate_of(threadIdx.x) : bf16{};
  cluster_sync();
  if (shape.ranks == 1) __syncthreads();  // every pair's outputs are written
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    const int t = token_of(i), n = strip * kFragmentRows + i % kFragmentRows;
    if (n >= a.D) continue;
    const bf16 gate = i == static_cast<int>(threadIdx.x) ? first_gate : gate_of(i);
    float routed = 0.0f;
#pragma unroll 10
    for (int k = t * a.EK; k < (t + 1) * a.EK; ++k)
      routed = routed_sum(routed + round_b16(weights[weight_of(k, a.EK)] * to_f32(outputs[places[k] * kFragmentRows + i % kFragmentRows])));
    a.y[static_cast<std::size_t>(t) * a.D + n] =
        with_shared(to_b16(routed), outputs[(pairs + t) * kFragmentRows + i % kFragmentRows], gate);
  }
}

template <bool kFp8>
void launch_down(const LinearParams& p, const LinearParams& shared, const MoeGrouping& g, const DownArgs& a, const Stream& stream) {
  const bool clusters = stream.overlaps();  // both came with compute capability 9.0
  DownShape shape{.ranks = clusters ? kRanks : 1,
                  .expert_warps = clusters ? kExpertWarps : kAloneExpertWarps,
                  .slots = 0,
                  .tokens = few_group_tokens(p),
                  .records = 0};
  shape.records = ceil_div(p.groups.num_active_bound, shape.ranks * shape.expert_warps);
  const auto bytes = [&] {
    return head_bytes(a.T, a.EK) + shape.expert_warps * expert_warp_bytes<kFp8>(shape, p.k_fragments) +
           shared_warp_bytes(shape, shared.k_fragments);
  };
  // All of a group's weights on their way where that fits, kLeastSlots of them in any case.
  const int budget = clusters ? kSharedBytes : kAloneSharedBytes;
  for (shape.slots = ceil_div(p.k_fragments, kSlotFragments<kFp8>); shape.slots > kLeastSlots && bytes() > budget;) --shape.slots;
  const LaunchShape launch_shape{dim3(static_cast<unsigned>(shape.ranks * p.n_fragments)),
                                 dim3(static_cast<unsigned>(32 * (shape.expert_warps + 1))), static_cast<std::size_t>(bytes())};
  if (launch_shape.shared_bytes > 48 * 1024) allow_shared("moe_down", moe_down_kernel<kFp8>, launch_shape.shared_bytes);
  LinearTag tag = linear_tag("moe_down", p, kFp8, stream);
  const LinearTag tag_shared = linear_tag("moe_down", shared, false, stream);
  tag.bytes += tag_shared.bytes, tag.flops += tag_shared.flops;
  launch(tag, moe_down_kernel<kFp8>, launch_shape, stream, p, shared, shape, g.records, a);
}

}  // namespace

void moe_down_few(const MoeShape& s, const DeviceLinear& down, const LinearArgs& routed, const DeviceLinear& shared_down,
                  const LinearArgs& shared, const MoeGrouping& g, const float* weights, const bf16* gate, bf16* y, const Stream& stream) {
  const DownArgs args{weights, g.place, g.token, gate, s.in_ld, shared.T, s.EK, down.N, y};
  const LinearParams p = linear_params(down, routed), p_shared = linear_params(shared_down, shared);
  down.fp8 ? launch_down<true>(p, p_shared, g, args, stream) : launch_down<false>(p, p_shared, g, args, stream);
}

}  // namespace tetrad::cuda
