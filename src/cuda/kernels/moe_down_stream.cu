// moe_down_stream (contract in moe.h): down of FP8 experts of 640 columns and of the shared one, weights streamed through all
// multiprocessors. A block has consecutive strips of 16 outputs, those of the shared expert first; its warps take them in turn, each on its
// own, with the weights of the next on their way.
#include "base/error.h"
#include "cuda/kernels/moe.cuh"
#include "cuda/kernels/moe_few.cuh"
#include "cuda/runtime/launch.cuh"

namespace tetrad::cuda {
namespace {

constexpr int kWarps = 16, kFragments = 20;  // a strip of an expert; the shared one's has as many of twice the size
constexpr int kTokens = 3;                   // rows of x at a time, for which a warp has room
constexpr int kStride = kFragments * kFragmentColumns + 8;
// A strip comes in two parts, so that the first of the next can come while the second is in use; one of the shared expert in two rounds.
constexpr int kRoundBytes = kFragments * WeightFragment<true>::kBytes;

struct WarpMemory {
  std::byte weights[kRoundBytes];
  bf16 x[kTokens * kStride];
  Barrier full[2];
};
struct BlockMemory {
  WarpMemory warps[kWarps];
  bf16 zeros[kStride];
};

#if __CUDA_ARCH__ >= 900

// What a warp multiplies in a round.
struct Round {
  const std::byte* data = nullptr;  // null: there are no more
  const float* scales = nullptr;
  int strip = 0, half = 0, t0 = 0, end = 0, x_group = 0;  // half: of a strip of the shared expert
  bool routed = false;

  __device__ __forceinline__ int count() const { return min(kTokens, end - t0); }
};

struct Strips {
  const LinearParams &p, &shared;
  const int4* records;
  int shared_first, shared_count, routed_first, routed_count;  // the block's
  int i, group;                                                // the warp's place among them; whose record this is
  LinearGroup now;
  int4 next;

  __device__ __forceinline__ int4 record(int g) const { return __ldcg(records + min(g, p.groups.num_active_bound - 1)); }
  // Shares of the work by what it costs: a strip of a group one, of the shared expert two for each time that its rows fill the room.
  __device__ __forceinline__ Strips(const LinearParams& p_, const LinearParams& shared_, const int4* records_, int num_groups)
      : p(p_), shared(shared_), records(records_) {
    const int cost = 2 * ((shared.T + kTokens - 1) / kTokens), all = p.n_fragments * (cost + num_groups), of_shared = p.n_fragments * cost;
    const auto share = [&](unsigned b) { return static_cast<int>(all / gridDim.x * b + min(b, all % gridDim.x)); };
    const int begin = share(blockIdx.x), end = share(blockIdx.x + 1);
    const auto strips_before = [&](int unit) { return (min(unit, of_shared) + cost - 1) / cost; };
    shared_first = strips_before(begin), shared_count = strips_before(end) - shared_first;
    routed_first = max(begin - of_shared, 0), routed_count = max(end - of_shared, 0) - routed_first;
    i = static_cast<int>(threadIdx.x) / 32 - kWarps;
    group = routed_first / p.n_fragments;
    if (routed_count > 0) now = noted_group(p, record(group)), next = record(group + 1);
  }
  __device__ __forceinline__ void advance(Round& r) {
    if (r.data != nullptr && !r.routed && r.half == 0) {
      r.half = 1, r.data += kRoundBytes;
      return;
    }
    if (r.data != nullptr && r.t0 + kTokens < r.end) {
      r.t0 += kTokens;
      if (!r.routed) r.half = 0, r.data -= kRoundBytes;
      return;
    }
    i += kWarps;
    r.data = nullptr, r.half = 0;
    if (i < shared_count) {
      r.strip = shared_first + i, r.t0 = 0, r.end = shared.T, r.x_group = -1;
      r.data = shared.data + static_cast<std::size_t>(r.strip) * 2 * kRoundBytes;
    } else if (i < shared_count + routed_count) {
      const int at = routed_first + i - shared_count;
      while (at >= (group + 1) * p.n_fragments) {
        now = noted_group(p, next);
        next = record(++group + 1);
      }
      r.routed = true, r.strip = at - group * p.n_fragments, r.t0 = now.begin, r.end = now.end, r.x_group = group;
      r.data = now.data + static_cast<std::size_t>(r.strip) * kRoundBytes;
      r.scales = now.scales + static_cast<std::size_t>(r.strip) * p.scale_columns;
    }
  }
};

constexpr int kFirstBytes = kRoundBytes / 5 * 3;  // the first part

__device__ __forceinline__ void fetch_part(WarpMemory& m, const Round& r, int part) {
  if (r.data == nullptr || threadIdx.x % 32 != 0) return;
  const int at = part == 0 ? 0 : kFirstBytes, bytes = part == 0 ? kFirstBytes : kRoundBytes - kFirstBytes;
  m.full[part].expect(bytes);
  m.full[part].copy(m.weights + at, r.data + at, bytes);
}

// acc += kCount fragments, all of them read before any is multiplied.
template <bool kFp8, int kCount>
__device__ __forceinline__ void multiply(const std::byte* weights, const bf16* x, float (&acc)[4]) {
  XFragment columns[kCount];
  WeightFragment<kFp8> w[kCount];
#pragma unroll
  for (int f = 0; f < kCount; ++f) {
    w[f].load(weights + f * WeightFragment<kFp8>::kBytes, threadIdx.x % 32);
    columns[f].load(x + f * kFragmentColumns);
  }
#pragma unroll
  for (int f = 0; f < kCount; ++f) {
    unsigned a[2][4];
    w[f].expand(a);
    multiply_fragment<1>(a, &columns[f], &acc);
  }
}
#endif

__global__ void __launch_bounds__(32 * kWarps, 1)
    moe_down_stream_kernel(const LinearParams p, const LinearParams shared, const int4* records) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) std::byte down_memory[];
  auto& memory = *reinterpret_cast<BlockMemory*>(down_memory);
  const int lane = threadIdx.x % 32;
  WarpMemory& own = memory.warps[threadIdx.x / 32];
  if (lane == 0) {
    own.full[0].init(1), own.full[1].init(1);
    Barrier::publish_init();
  }
  for (int i = threadIdx.x; i < kStride; i += blockDim.x) memory.zeros[i] = bf16{0};
  __syncthreads();  // the zeros are there, and the barriers are set up
  // The groups were written before the kernel that comes before this one.
  Strips strips(p, shared, records, shared.T == 1 ? p.groups.num_active_bound : __ldcg(p.groups.num_active));
  Round now;
  strips.advance(now);
  fetch_part(own, now, 0);
  fetch_part(own, now, 1);
  wait_for_previous();
  int x_group = -2, x_t0 = 0;
  float total[4] = {};
  unsigned phase = 0;
#pragma unroll 1
  while (now.data != nullptr) {
    Round after = now;
    strips.advance(after);
    const int count = now.count();
    if (now.x_group != x_group || now.t0 != x_t0) {
      x_group = now.x_group, x_t0 = now.t0;
      const LinearParams& from = now.routed ? p : shared;
#pragma unroll 1
      for (int i = lane; i < count * (kFragments * 4); i += 32) {
        const int t = i / (kFragments * 4), c = i % (kFragments * 4) * 8;
        copy_async(own.x + t * kStride + c, from.x + static_cast<std::ptrdiff_t>(x_t0 + t) * from.ldx + c);
      }
      commit_copies();
      wait_copies<0>();
      __syncwarp();  // every lane's part of the rows is there
    }
    const bf16* x = (lane % 8 < count ? own.x + lane % 8 * kStride : memory.zeros) + lane / 8 * 8;
    if (now.routed) {
      const float own_scale = lane < p.scale_columns ? __ldg(now.scales + lane) : 1.0f;
#pragma unroll 1
      for (int s = 0; s < 5; ++s) {
        if (s == 0) own.full[0].wait(phase);
        if (s == 3) {
          __syncwarp();  // every lane has read the first part
          fetch_part(own, after, 0);
          own.full[1].wait(phase);
        }
        float acc[4] = {};
        multiply<true, 4>(own.weights + s * 4 * WeightFragment<true>::kBytes, x + s * 4 * kFragmentColumns, acc);
        const float scale = __shfl_sync(0xffffffffu, own_scale, scale_column(p, s));
#pragma unroll
        for (int j = 0; j < 4; ++j) total[j] = add_segment<true>(s == 0, total[j], acc[j], scale);
      }
    } else {
      float acc[4] = {};
      const bf16* from = x + now.half * (kFragments / 2) * kFragmentColumns;
      own.full[0].wait(phase);
#pragma unroll 1
      for (int f = 0; f < 6; f += 2) multiply<false, 2>(own.weights + f * WeightFragment<false>::kBytes, from + f * kFragmentColumns, acc);
      __syncwarp();  // every lane has read the first part
      fetch_part(own, after, 0);
      own.full[1].wait(phase);
#pragma unroll 1
      for (int f = 6; f < 10; f += 2) multiply<false, 2>(own.weights + f * WeightFragment<false>::kBytes, from + f * kFragmentColumns, acc);
#pragma unroll
      for (int j = 0; j < 4; ++j) total[j] = add_segment<false>(now.half == 0, total[j], acc[j], 1.0f);
    }
    __syncwarp();  // every lane has read the second part
    fetch_part(own, after, 1);
    phase ^= 1;
    if (now.routed || now.half == 1) {
      bf16* y = now.routed ? p.y : shared.y;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int t = lane % 4 * 2 + j % 2, n = now.strip * kFragmentRows + lane / 4 + j / 2 * 8;
        if (t < count) y[static_cast<std::ptrdiff_t>(now.t0 + t) * p.ldy + n] = to_b16(total[j]);
      }
    }
    now = after;
  }
#endif
}

}  // namespace

bool moe_down_stream(const LinearParams& p, bool fp8, const LinearParams& shared, const MoeGrouping& g, const Stream& stream) {
  const auto fits = [](const LinearParams& w, int segment) {
    return w.k_fragments == kFragments && w.K == kFragments * kFragmentColumns && w.segment == segment && w.ldx % 8 == 0;
  };
  if (!stream.overlaps() || !fp8 || shared.T > kMoeStreamRows || !fits(p, 4) || !fits(shared, kFragments / 2) ||
      p.scale_rows != kFragmentRows || p.N % kFragmentRows != 0 || p.ldy != shared.ldy ||
      static_cast<int>(sizeof(BlockMemory)) > stream.shared_limit())
    return false;
  allow_shared("moe_down", moe_down_stream_kernel, sizeof(BlockMemory));
  LinearTag tag = linear_tag("moe_down", p, true, stream);
  const LinearTag tag_shared = linear_tag("moe_down", shared, false, stream);
  tag.bytes += tag_shared.bytes, tag.flops += tag_shared.flops;
  launch(tag, moe_down_stream_kernel, {dim3(static_cast<unsigned>(stream.multiprocessors())), dim3(32 * kWarps), sizeof(BlockMemory)},
         stream, p, shared, g.records);
  return true;
}

}  // namespace tetrad::cuda
