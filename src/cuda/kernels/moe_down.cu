// moe_down_few (contract in moe.h): a warp multiplies 16 outputs of an expert, or of the shared one, at a time, with the weights of the
// next on their way; then moe_finish adds up the pairs.
#include <algorithm>

#include "base/error.h"
#include "cuda/kernels/moe.cuh"
#include "cuda/kernels/moe_few.cuh"
#include "cuda/runtime/launch.cuh"

namespace tetrad::cuda {
namespace {

constexpr int kDownWarps = 4, kDownThreads = 32 * kDownWarps, kBlocksPerMultiprocessor = 2;
constexpr int kPieceRows = 8;  // of x at a time: an expert has few
constexpr int kMostSlots = 2;  // one where shared memory is small
// A slot holds 20 fragments of FP8, a strip of 16 outputs of the published experts, or 10 of bf16.
using PieceRing = WeightRing<true, 1, 20>;

// Sizes of a launch that the kernel needs, too.
struct DownShape {
  int blocks;                    // pieces of the shared expert, or of a group, for eight rows
  int step_groups, step_blocks;  // from a block's piece to its next one
  int x_size;                    // elements of x of a piece
  int slots;                     // of a ring
};

// Rows of x in shared memory that the warps of a block share; elements between rows: eight rows of a column fall into different banks.
__host__ __device__ int stride_of(const LinearParams& p) { return p.k_fragments * kFragmentColumns + 8; }

// Starts the copy of rows t0 ..; zeros past K.
__device__ __forceinline__ void fetch_rows(const LinearParams& p, int t0, int count, bf16* rows) {
  const int chunks = p.k_fragments * (kFragmentColumns / 8);
#pragma unroll 1
  for (int i = threadIdx.x; i < count * chunks; i += kDownThreads) {
    const int t = i / chunks, k = i % chunks * 8, bytes = max(0, min(16, 2 * (p.K - k)));
    const bf16* from = x_row(p, t0 + t);
    copy_async_some(rows + t * stride_of(p) + k, bytes > 0 ? from + k : from, bytes);
  }
  commit_copies();
}

// What the warps of a block multiply at a time: 16 outputs each, of up to kPieceRows rows. Blocks have pieces in turn: those of the shared
// expert, kDownWarps strips each, then those of each group.
struct Piece {
  int group, block;                 // -1: the shared expert; which of its pieces
  const std::byte* data = nullptr;  // of this warp's strip; null: there are no more pieces
  const float* scales = nullptr;
  int t0 = 0, end = 0;

  __device__ __forceinline__ int count() const { return min(kPieceRows, end - t0); }
  __device__ __forceinline__ int strip() const { return block * kDownWarps + static_cast<int>(threadIdx.x) / 32; }
};

template <bool kFp8>
struct Pieces {
  const LinearParams &p, &shared;
  const int4* records;
  DownShape shape;
  int num_groups;

  // The one before this block's first.
  __device__ __forceinline__ Piece before() const { return {-1 - shape.step_groups, static_cast<int>(blockIdx.x) - shape.step_blocks}; }
  __device__ __forceinline__ void advance(Piece& piece) const {
    piece.t0 += kPieceRows;
    if (piece.t0 < piece.end) return;
    piece.block += shape.step_blocks, piece.group += shape.step_groups;
    while (piece.block >= shape.blocks) piece.block -= shape.blocks, ++piece.group;
    piece.data = nullptr;
    if (piece.group >= num_groups) return;
    const std::size_t strip = min(piece.strip(), p.n_fragments - 1);
    if (piece.group < 0) {
      piece.data = shared.data + strip * shared.k_fragments * WeightFragment<false>::kBytes;
      piece.t0 = 0, piece.end = shared.T;
    } else {
      const LinearGroup g = noted_group(p, __ldcg(records + piece.group));
      piece.data = g.data + strip * p.k_fragments * WeightFragment<kFp8>::kBytes;
      piece.scales = g.scales;
      piece.t0 = g.begin, piece.end = g.end;
    }
  }
};

// The weights of a warp's pieces, slot by slot.
template <bool kFp8>
struct PieceRun {
  const Pieces<kFp8>& pieces;
  Piece piece;
  int next = 0;  // fragment

  __device__ __forceinline__ void push(PieceRing& ring) {
    if (piece.data == nullptr) return;
    const bool shared = piece.group < 0;
    const int fragment_bytes = kFp8 && !shared ? WeightFragment<true>::kBytes : WeightFragment<false>::kBytes,
              k_fragments = shared ? pieces.shared.k_fragments : pieces.p.k_fragments,
              count = min(PieceRing::kSlotBytes / fragment_bytes, k_fragments - next);
    ring.push(piece.data + next * fragment_bytes, 0, count * (fragment_bytes / PieceRing::kFragmentBytes));
    next += count;
    if (next < k_fragments) return;
    next = 0;
    pieces.advance(piece);
  }
};

// The sums of a warp's 16 outputs, as far as they have come.
struct Sums {
  float acc[4], total[4];
  int done, segment, in_segment;  // fragments of K, whole segments, fragments of the one that is begun

  template <bool kFp8>
  __device__ __forceinline__ void fold(const float (&sum)[4], const float (&scale)[2]) {
#pragma unroll
    for (int j = 0; j < 4; ++j) total[j] = add_segment<kFp8>(segment == 0, total[j], sum[j], scale[j / 2]);
    ++segment;
  }
};

// What a lane multiplies with: its row of x, from column 0 on, or zeros; the scales of its outputs.
struct LaneOperands {
  const std::byte* x;
  int x_step;              // bytes from fragment to fragment
  const float* scales[2];  // of outputs lane / 4 and those plus 8

  template <bool kFp8>
  __device__ __forceinline__ void multiply(const std::byte* fragment, int f, float (&acc)[4]) const {
    XFragment columns;
    WeightFragment<kFp8> w;
    unsigned a[2][4];
    columns.load(x + f * x_step);
    w.load(fragment, threadIdx.x % 32);
    w.expand(a);
    multiply_fragment<1>(a, &columns, &acc);
  }
  template <bool kFp8>
  __device__ __forceinline__ void load_scales(const LinearParams& p, int segment, float (&scale)[2]) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) scale[h] = kFp8 ? scales[h][scale_column(p, segment)] : 1.0f;
  }
};

// A slot of whole segments: their chains of multiply steps go side by side, since each step of one waits for the step before.
constexpr int kSideSegments = 5, kSideFragments = 4;
__device__ __forceinline__ void multiply_side_by_side(const LinearParams& p, const LaneOperands& lane, const std::byte* slot, Sums& sums) {
  float acc[kSideSegments][4] = {}, scale[kSideSegments][2];
#pragma unroll
  for (int s = 0; s < kSideSegments; ++s) lane.load_scales<true>(p, sums.segment + s, scale[s]);
#pragma unroll 1
  for (int f = 0; f < kSideFragments; ++f)
#pragma unroll
    for (int s = 0; s < kSideSegments; ++s) {
      const int i = s * kSideFragments + f;
      lane.multiply<true>(slot + i * WeightFragment<true>::kBytes, sums.done + i, acc[s]);
    }
#pragma unroll
  for (int s = 0; s < kSideSegments; ++s) sums.fold<true>(acc[s], scale[s]);
  sums.done += kSideSegments * kSideFragments;
}

// Any slot, one step after another.
template <bool kFp8>
__device__ __forceinline__ void multiply_slot(const LinearParams& p, const LaneOperands& lane, const std::byte* slot, Sums& sums) {
  const int end = min(PieceRing::kSlotBytes / WeightFragment<kFp8>::kBytes, p.k_fragments - sums.done);
#pragma unroll 1
  for (int i = 0; i < end; ++i) {
    lane.multiply<kFp8>(slot + i * WeightFragment<kFp8>::kBytes, sums.done + i, sums.acc);
    if (++sums.in_segment < p.segment && sums.done + i + 1 < p.k_fragments) continue;
    float scale[2];
    lane.load_scales<kFp8>(p, sums.segment, scale);
    sums.fold<kFp8>(sums.acc, scale);
#pragma unroll
    for (int j = 0; j < 4; ++j) sums.acc[j] = 0.0f;
    sums.in_segment = 0;
  }
  sums.done += end;
}

// Shared: per warp its ring of weights, then x of two pieces.
template <bool kFp8>
__global__ void __launch_bounds__(kDownThreads, kBlocksPerMultiprocessor)
    moe_down_kernel(const LinearParams p, const LinearParams shared, const DownShape shape, const int4* records) {
  extern __shared__ __align__(128) std::byte memory[];
  __shared__ uint4 zeros;
  if (threadIdx.x == 0) zeros = {0, 0, 0, 0};
  const int lane = threadIdx.x % 32;
  auto* x = reinterpret_cast<bf16*>(memory + kDownWarps * PieceRing::bytes(shape.slots));
  PieceRing ring(memory + threadIdx.x / 32 * PieceRing::bytes(shape.slots), shape.slots);
  // The groups were written before the kernel that comes before this one.
  const Pieces<kFp8> pieces{p, shared, records, shape, __ldcg(p.groups.num_active)};
  Piece after = pieces.before();
  pieces.advance(after);
  PieceRun<kFp8> run{pieces, after};
  fill_ring(run, ring);
  wait_for_previous();
  Piece piece = after;
  piece.data = nullptr;
#pragma unroll 1
  for (int half = 0; after.data != nullptr || piece.data != nullptr; half ^= 1) {
    if (after.data != nullptr) fetch_rows(after.group < 0 ? shared : p, after.t0, after.count(), x + half * shape.x_size);
    if (piece.data != nullptr) {
      const LinearParams& w = piece.group < 0 ? shared : p;
      LaneOperands operands{reinterpret_cast<const std::byte*>(&zeros), 0, {}};
      if (lane % 8 < piece.count()) {
        operands.x = reinterpret_cast<const std::byte*>(x + (half ^ 1) * shape.x_size + lane % 8 * stride_of(w) + lane / 8 * 8);
        operands.x_step = kFragmentColumns * 2;
      }
      if (kFp8 && piece.group >= 0) {
        const int n = min(piece.strip(), p.n_fragments - 1) * kFragmentRows + lane / 4;
#pragma unroll
        for (int h = 0; h < 2; ++h) operands.scales[h] = piece.scales + (n + 8 * h) / p.scale_rows * p.scale_columns;
      }
      Sums sums = {};
#pragma unroll 1
      while (sums.done < w.k_fragments) {
        const std::byte* slot = ring.front();
        if (piece.group < 0)
          multiply_slot<false>(shared, operands, slot, sums);
        else if (kFp8 && p.segment == kSideFragments && p.k_fragments - sums.done >= kSideSegments * kSideFragments)
          multiply_side_by_side(p, operands, slot, sums);
        else
          multiply_slot<kFp8>(p, operands, slot, sums);
        ring.pop();
        run.push(ring);
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int t = lane % 4 * 2 + j % 2, n = piece.strip() * kFragmentRows + lane / 4 + j / 2 * 8;
        if (t < piece.count() && n < w.N) w.y[static_cast<std::ptrdiff_t>(piece.t0 + t) * w.ldy + n] = to_b16(sums.total[j]);
      }
    }
    piece = after;
    if (after.data != nullptr) pieces.advance(after);
    wait_copies<0>();
    __syncthreads();  // the rows of the next piece are there, those of this one have been read
  }
}

template <bool kFp8>
void launch_down(const LinearParams& p, const LinearParams& shared, const MoeGrouping& g, const Stream& stream) {
  const int blocks = ceil_div(p.n_fragments, kDownWarps),
            grid = std::min(blocks * (1 + p.groups.num_active_bound), kBlocksPerMultiprocessor * stream.multiprocessors());
  const int x_size = kPieceRows * std::max(stride_of(p), stride_of(shared)), x_bytes = 2 * x_size * 2;
  const int slots = kDownWarps * PieceRing::bytes(kMostSlots) + x_bytes <= stream.shared_limit() ? kMostSlots : 1;
  const DownShape down{blocks, grid / blocks, grid % blocks, x_size, slots};
  const LaunchShape shape{dim3(static_cast<unsigned>(grid)), dim3(kDownThreads),
                          static_cast<std::size_t>(kDownWarps * PieceRing::bytes(slots) + x_bytes)};
  allow_shared("moe_down", moe_down_kernel<kFp8>, shape.shared_bytes);
  LinearTag tag = linear_tag("moe_down", p, kFp8, stream);
  const LinearTag tag_shared = linear_tag("moe_down", shared, false, stream);
  tag.bytes += tag_shared.bytes, tag.flops += tag_shared.flops;
  launch(tag, moe_down_kernel<kFp8>, shape, stream, p, shared, down, g.records);
}

}  // namespace

void moe_down_few(const MoeShape& s, const DeviceLinear& down, const LinearArgs& routed, const DeviceLinear& shared_down,
                  const LinearArgs& shared, const MoeGrouping& g, const float* weights, const bf16* gate, bf16* y, const Stream& stream) {
  TETRAD_CHECK(routed.ldy == down.N && shared.ldy == down.N, "moe_down_few: rows of {} and {} for {} outputs", routed.ldy, shared.ldy,
               down.N);
  const LinearParams p = linear_params(down, routed), p_shared = linear_params(shared_down, shared);
  if (!moe_down_stream(p, down.fp8, p_shared, g, stream))
    down.fp8 ? launch_down<true>(p, p_shared, g, stream) : launch_down<false>(p, p_shared, g, stream);
  moe_finish(shared.T, s.EK, down.N, weights, g.place, routed.y, shared.y, gate, s.in_ld, y, stream);
}

}  // namespace tetrad::cuda
