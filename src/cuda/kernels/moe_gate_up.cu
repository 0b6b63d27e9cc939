// moe_gate_up_stream (contract in moe.h): gate and up of FP8 experts with the activation, weights streamed through all multiprocessors. A
// block has consecutive pieces in turn, 16 columns of gate and of up each; a warp multiplies one segment of every piece and keeps the
// segment's columns of x in registers while the group stays the same.
#include <algorithm>

#include "base/error.h"
#include "cuda/kernels/moe.cuh"
#include "cuda/kernels/moe_few.cuh"
#include "cuda/runtime/launch.cuh"

namespace tetrad::cuda {
namespace {

constexpr int kSegment = 4;      // fragments: scale blocks of 128 columns, a slot of the ring
constexpr int kMostWarps = 20;   // as many threads as registers allow for
constexpr int kPieceTokens = 8;  // rows of x at a time
constexpr int kSlots = 2;
constexpr int kLines = 2 * kFragmentRows;  // gate and up of a piece
using SegmentRing = WeightRing<true, 2, kSegment>;

// Where the warps of a block leave the sums of a piece for the one that adds them up: two of them, so that others can go on.
struct PieceSums {
  float* sums;    // [2][segments][kPieceTokens][kLines]
  float* scales;  // [2][segments][kLines]
  Barrier* full;  // [2]
  Barrier* empty;

  static __host__ __device__ int bytes(int segments) { return 2 * segments * (kPieceTokens + 1) * kLines * 4 + 4 * 8; }
  __device__ __forceinline__ PieceSums(std::byte* memory, int segments)
      : sums(reinterpret_cast<float*>(memory)),
        scales(sums + 2 * segments * kPieceTokens * kLines),
        full(reinterpret_cast<Barrier*>(scales + 2 * segments * kLines)),
        empty(full + 2) {}
};

#if __CUDA_ARCH__ >= 900
// A piece of the block: 16 columns of a group, up to kPieceTokens of its rows.
struct Cursor {
  const LinearParams& p;
  const int4* records;
  int strips, group, strip, t0;
  int4 next;  // record of the group after this one, on its way
  LinearGroup now;

  __device__ __forceinline__ Cursor(const LinearParams& p_, const int4* records_, int strips_, int piece)
      : p(p_), records(records_), strips(strips_), group(piece / strips_), strip(piece % strips_) {
    now = noted_group(p, record(group));
    next = record(group + 1);
    t0 = now.begin;
  }
  // Past the active ones: what a step before left there.
  __device__ __forceinline__ int4 record(int g) const { return __ldcg(records + min(g, p.groups.num_active_bound - 1)); }
  __device__ __forceinline__ int count() const { return min(kPieceTokens, now.end - t0); }
  // Whether the next piece is another one of those that the block counts, not more rows of the same.
  __device__ __forceinline__ bool advance(bool last) {
    t0 += kPieceTokens;
    if (t0 < now.end) return false;
    if (++strip == strips && !last) {
      strip = 0, ++group;
      now = noted_group(p, next);
      next = record(group + 1);
    }
    t0 = now.begin;
    return true;
  }
};

// Columns of up to kPieceTokens rows as multiply steps take them: lane 4 t + c holds columns 2c, 2c + 1 and those eight further of row t.
struct SegmentColumns {
  unsigned x[kSegment][4];

  __device__ __forceinline__ void load(const bf16* row, int first) {
    const bf16* from = row + first * kFragmentColumns + threadIdx.x % 4 * 2;
#pragma unroll
    for (int f = 0; f < kSegment; ++f)
#pragma unroll
      for (int j = 0; j < 4; ++j)
        x[f][j] = row == nullptr ? 0u : __ldcg(reinterpret_cast<const unsigned*>(from + f * kFragmentColumns + j * 8));
  }
};
#endif

// Grid: up to one block a multiprocessor, a warp a segment. Shared: per warp its ring of weights, then the sums.
__global__ void __launch_bounds__(32 * kMostWarps, 1)
    moe_gate_up_stream_kernel(const LinearParams p, const int4* records, int F, bf16* act, int ld_act) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) std::byte stream_memory[];
  const int segments = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32, strips = F / kFragmentRows;
  SegmentRing ring(stream_memory + warp * SegmentRing::bytes(kSlots), kSlots);
  PieceSums shared(stream_memory + segments * SegmentRing::bytes(kSlots), segments);
  if (threadIdx.x == 0) {
    for (int b = 0; b < 2; ++b) shared.full[b].init(segments), shared.empty[b].init(1);
    Barrier::publish_init();
  }
  __syncthreads();  // the barriers are set up
  SegmentColumns columns;
  const bool one_row = p.groups.num_x_rows == 1;
  // One row has as many groups as pairs. It was written before the kernel that comes before this one.
  if (one_row) columns.load(lane < 4 ? p.x : nullptr, warp * kSegment);
  const auto first_of = [&](int pieces, unsigned block) {
    return static_cast<int>(pieces / gridDim.x * block + min(block, pieces % gridDim.x));
  };
  int pieces = strips * p.groups.num_active_bound, begin = first_of(pieces, blockIdx.x), end = first_of(pieces, blockIdx.x + 1);
  wait_and_hold_next();
  if (!one_row) {
    pieces = strips * __ldcg(p.groups.num_active);
    begin = first_of(pieces, blockIdx.x), end = first_of(pieces, blockIdx.x + 1);
  }
  if (begin >= end) return;
  Cursor ahead(p, records, strips, begin);
  int pushed = begin;
  const std::size_t strip_bytes = static_cast<std::size_t>(p.k_fragments) * WeightFragment<true>::kBytes;
  const auto push = [&] {
    if (pushed >= end) return;
    const std::byte* from = ahead.now.data + ahead.strip * strip_bytes + warp * kSegment * WeightFragment<true>::kBytes;
    ring.push(from, strips * strip_bytes, kSegment);
    if (ahead.advance(pushed + 1 >= end)) ++pushed;
  };
  Cursor piece = ahead;
#pragma unroll
  for (int i = 0; i < kSlots; ++i) push();
  int group = -1, t0 = -1;  // whose rows the registers hold
#pragma unroll 1
  for (int done = begin, turn = 0; done < end; ++turn) {
    const int count = piece.count(), n0 = piece.strip * kFragmentRows;
    const int line = lane % kFragmentRows + (lane < kFragmentRows ? n0 : F + n0);
    const float scale = __ldg(piece.now.scales + line / p.scale_rows * p.scale_columns + scale_column(p, warp));
    if (!one_row && (piece.group != group || piece.t0 != t0)) {
      group = piece.group, t0 = piece.t0;
      columns.load(lane / 4 < count ? x_row(p, t0 + lane / 4) : nullptr, warp * kSegment);
    }
    const std::byte* slot = ring.front();
    float acc[2][4] = {};
#pragma unroll
    for (int f = 0; f < kSegment; ++f)
#pragma unroll
      for (int s = 0; s < 2; ++s) {
        WeightFragment<true> w;
        unsigned a[2][4];
        w.load(slot + s * SegmentRing::kStripBytes + f * WeightFragment<true>::kBytes, lane);
        w.expand(a);
        multiply_step(acc[s], a[0], columns.x[f][0], columns.x[f][1]);
        multiply_step(acc[s], a[1], columns.x[f][2], columns.x[f][3]);
      }
    ring.pop();
    push();
    const int half = turn % 2;
    const unsigned phase = turn / 2 % 2;
    if (turn >= 2) shared.empty[half].wait(phase ^ 1);  // the sums of the piece before the last have been read
    float* sums = shared.sums + half * segments * kPieceTokens * kLines;
#pragma unroll
    for (int s = 0; s < 2; ++s)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int t = lane % 4 * 2 + j % 2;
        if (t < count) sums[(warp * kPieceTokens + t) * kLines + s * kFragmentRows + lane / 4 + j / 2 * 8] = acc[s][j];
      }
    float* scales = shared.scales + half * segments * kLines;
    scales[warp * kLines + lane] = scale;
    __syncwarp();  // the warp's sums are written
    if (lane == 0) shared.full[half].arrive();
    if (turn % segments == warp) {
      shared.full[half].wait(phase);
#pragma unroll 1
      for (int t = 0; t < count; ++t) {
        float total = 0.0f;
#pragma unroll 10
        for (int s = 0; s < segments; ++s)
          total = add_segment<true>(s == 0, total, sums[(s * kPieceTokens + t) * kLines + lane], scales[s * kLines + lane]);
        const float up = __shfl_down_sync(0xffffffffu, total, kFragmentRows);
        if (lane < kFragmentRows) act[static_cast<std::size_t>(piece.t0 + t) * ld_act + n0 + lane] = activated(to_b16(total), to_b16(up));
      }
      __syncwarp();  // every lane has read the sums
      if (lane == 0) shared.empty[half].arrive();
    }
    if (piece.advance(done + 1 >= end)) ++done;
  }
#endif
}

}  // namespace

bool moe_gate_up_stream(const LinearParams& p, bool fp8, const MoeGrouping& g, bf16* act, int ld_act, const Stream& stream) {
  const int F = p.N / 2, segments = p.k_fragments / kSegment,
            shared_bytes = segments * SegmentRing::bytes(kSlots) + PieceSums::bytes(segments);
  if (!stream.overlaps() || !fp8 || p.groups.num_x_rows > kMoeStreamRows || p.segment != kSegment || p.k_fragments % kSegment != 0 ||
      p.K % kFragmentColumns != 0 || p.ldx % 2 != 0 || segments > kMostWarps || shared_bytes > stream.shared_limit())
    return false;
  const int blocks = std::min(F / kFragmentRows * p.groups.num_active_bound, stream.multiprocessors());
  const LaunchShape shape{dim3(static_cast<unsigned>(blocks)), dim3(static_cast<unsigned>(32 * segments)),
                          static_cast<std::size_t>(shared_bytes)};
  allow_shared("moe_gate_up", moe_gate_up_stream_kernel, shape.shared_bytes);
  launch(linear_tag("moe_gate_up", p, true, stream), moe_gate_up_stream_kernel, shape, stream, p, g.records, F, act, ld_act);
  return true;
}

}  // namespace tetrad::cuda
