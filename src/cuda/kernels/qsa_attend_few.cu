// Attention of qsa for few rows (contract in qsa.h): the chunks of a row are spread over the blocks of a cluster, which exchange maxima,
// sums and weighted sums through shared memory.
#include <algorithm>

#include "cuda/kernels/cluster.cuh"
#include "cuda/kernels/qsa_attend.cuh"
#include "cuda/runtime/launch.cuh"

namespace tetrad::cuda {
namespace {

constexpr int kThreads = 512, kWarps = kThreads / 32;
constexpr int kColumnWarps = kValueColumns / kColumnTile;  // warps that share a chunk of values
constexpr std::size_t kSharedLimit = 220 * 1024;           // of a Hopper block
constexpr int kTilesPerChunk = kAttendChunk / 8;

// Block `rank` holds chunks rank, rank + 8, ...: its k-th is chunk rank + 8k.
struct ChunkMemory {
  int most;  // chunks of a block
  const bf16** keys;
  bf16 *scores, *values;
  float *partial, *best, *sums;
  int ld, partial_ld;
  std::size_t bytes;

  __host__ __device__ ChunkMemory(const QsaShape& s, int heads, unsigned char* memory) {
    most = ((s.attended + kAttendChunk - 1) / kAttendChunk + kClusterBlocks - 1) / kClusterBlocks;
    ld = most * kAttendChunk + 8;         // odd in units of 16 bytes
    partial_ld = (s.DH + 7) / 8 * 8 + 8;  // heads of a store meet different banks
    const auto n = static_cast<std::size_t>(most), h = static_cast<std::size_t>(heads);
    std::size_t used = 0;
    const auto take = [&](std::size_t count, std::size_t size) {
      unsigned char* at = memory + used;
      used += (count * size + 15) / 16 * 16;
      return at;
    };
    keys = reinterpret_cast<const bf16**>(take(n * kAttendChunk, sizeof(bf16*)));
    scores = reinterpret_cast<bf16*>(take(h * static_cast<std::size_t>(ld), sizeof(bf16)));
    // Of block 0, which holds most: its last chunk may be a short one.
    const int last_chunk = (s.attended - 1) / kAttendChunk,
              short_chunk = (s.attended - last_chunk * kAttendChunk + kStep - 1) / kStep * kStep;
    const int rows = last_chunk % kClusterBlocks == 0 ? (most - 1) * kAttendChunk + short_chunk : most * kAttendChunk;
    values = reinterpret_cast<bf16*>(take(static_cast<std::size_t>(rows) * kValueLd, sizeof(bf16)));
    partial = reinterpret_cast<float*>(take(n * h * static_cast<std::size_t>(partial_ld), sizeof(float)));
    best = reinterpret_cast<float*>(take(h, sizeof(float)));
    sums = reinterpret_cast<float*>(take(n * h, sizeof(float)));
    bytes = used;
  }
};

// Grid (8, units, rows), a cluster per unit and row.
template <int kWidth>
__global__ void TETRAD_CLUSTER(kClusterBlocks) __launch_bounds__(kThreads, 1)
    attend_few_kernel(const QsaShape s, const bf16* projected, const QsaGroup g, float scale, int tile_heads, bf16* y, const StepRows r) {
  wait_for_previous();
  extern __shared__ uint4 memory[];
  const AttendUnit u = attend_unit(s, g, r, static_cast<int>(blockIdx.z), static_cast<int>(blockIdx.y), tile_heads);
  const int* positions = g.positions + static_cast<std::size_t>(u.i) * s.attended;
  const ChunkMemory m(s, tile_heads, reinterpret_cast<unsigned char*>(memory));
  const int rank = static_cast<int>(blockIdx.x), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int chunks = (u.chunks - rank + kClusterBlocks - 1) / kClusterBlocks;  // of this block
  const auto chunk_count = [&](int k) { return min(kAttendChunk, u.count - (rank + k * kClusterBlocks) * kAttendChunk); };
  const auto padded_count = [&](int k) { return (chunk_count(k) + kStep - 1) / kStep * kStep; };
  const std::ptrdiff_t to_value = value_distance(s);
  const int rows = chunks > 0 ? (chunks - 1) * kAttendChunk + padded_count(chunks - 1) : 0;
  const Queries<kWidth> q = load_queries<kWidth>(s, u, projected);  // on their way while the rows are looked up
  const int b = sequence_of(r, u.t);
#pragma unroll 1
  for (int e = threadIdx.x; e < chunks * kAttendChunk; e += kThreads) {
    const int k = e / kAttendChunk, n = e % kAttendChunk, first = (rank + k * kClusterBlocks) * kAttendChunk;
    if (n < padded_count(k)) m.keys[e] = key_row(s, r, u, b, positions[first + n < u.count ? first + n : first]);
  }
  __syncthreads();  // the rows are known
#pragma unroll 1
  for (int tile = warp; tile < chunks * kTilesPerChunk; tile += kWarps) {
    const int k = tile / kTilesPerChunk, first = tile % kTilesPerChunk * 8;
    if (first < padded_count(k))
      score_positions<kWidth>(q, m.keys + k * kAttendChunk, first, u.heads, s.DH, scale, m.scores + k * kAttendChunk, m.ld);
  }
  // The values come while the softmax is under way.
  const auto stage = [&](int column) {
    for (int i = threadIdx.x; i < rows * (kValueColumns / 8); i += kThreads) {
      const int n = i / (kValueColumns / 8), piece = i % (kValueColumns / 8) * 8;
      stage_piece<kWidth>(m.keys[n] + to_value, column + piece, s.DH, m.values + n * kValueLd + piece);
    }
    commit_copies();
  };
  stage(0);
  __syncthreads();  // the scores are written
  static_assert(kWarps >= kHeadTile);
  const bool has_head = warp < u.heads;  // a warp per head
  bf16* head_scores = m.scores + min(warp, u.heads - 1) * m.ld;
  float best = -INFINITY;
  for (int k = 0; k < chunks; ++k) best = max_or_nan(best, lane_max(head_scores + k * kAttendChunk, chunk_count(k)));
  best = warp_max(best);
  if (has_head && lane == 0) m.best[warp] = best;
  cluster_sync();  // every block's maxima are written
  best = warp_max(has_head && lane < kClusterBlocks ? peer_value(m.best + warp, lane) : -INFINITY);
#pragma unroll 2
  for (int k = 0; k < chunks; ++k) {
    const float sum = warp_sum(lane_sum(head_scores + k * kAttendChunk, chunk_count(k), best));
    if (has_head && lane == 0) m.sums[k * tile_heads + warp] = sum;
  }
  cluster_sync();  // every block's sums are written
  if (has_head) {
    float sum = 0.0f;
    for (int first = 0; first < u.chunks; first += 32) {
      const int c = first + lane;
      const float mine = c < u.chunks ? peer_value(m.sums + c / kClusterBlocks * tile_heads + warp, c % kClusterBlocks) : 0.0f;
      const int some = min(32, u.chunks - first);
      for (int j = 0; j < some; ++j) sum += __shfl_sync(0xffffffffu, mine, j);
    }
    const float inverse = 1.0f / sum;
#pragma unroll 2
    for (int k = 0; k < chunks; ++k) chunk_probabilities(head_scores + k * kAttendChunk, chunk_count(k), best, sum, inverse);
  }
#pragma unroll 1
  for (int first = 0; first < s.DH; first += kValueColumns) {
    if (first > 0) {
      __syncthreads();  // the columns before have been read
      stage(first);
    }
    wait_for_copies<0>();
    __syncthreads();  // the values are in shared memory, and the probabilities are written
#pragma unroll 1
    for (int k = warp / kColumnWarps; k < chunks; k += kWarps / kColumnWarps) {
      const int column = warp % kColumnWarps * kColumnTile;
      float acc[kColumnTile / 8][4] = {};
#pragma unroll 2
      for (int n = 0; n < chunk_count(k); n += kStep) {
        weighted_step(m.scores + k * kAttendChunk + n, m.ld, u.heads, m.values + (k * kAttendChunk + n) * kValueLd, column, acc);
      }
#pragma unroll
      for (int j = 0; j < kColumnTile / 8; ++j)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int head = lane / 4 + half * 8, d = first + column + j * 8 + lane % 4 * 2;
          if (head < u.heads && d < s.DH)
            *reinterpret_cast<float2*>(m.partial + (k * tile_heads + head) * m.partial_ld + d) = {acc[j][2 * half], acc[j][2 * half + 1]};
        }
    }
  }
  const auto gate_of = [&](int e) {
    const std::size_t hd = static_cast<std::size_t>(u.first_head + e / s.DH);
    return projected[static_cast<std::size_t>(u.t) * s.row + hd * 2 * s.DH + s.DH + e % s.DH];
  };
  const int elements = u.heads * s.DH, first_element = rank * kThreads + static_cast<int>(threadIdx.x);
  bf16 gate = first_element < elements ? gate_of(first_element) : bf16{};
  cluster_sync();  // every block's weighted sums are written
#pragma unroll 1
  for (int e = first_element; e < elements; e += kClusterBlocks * kThreads) {
    if (e != first_element) gate = gate_of(e);
    const float* mine = m.partial + e / s.DH * m.partial_ld + e % s.DH;
    float total = 0.0f;
#pragma unroll 2
    for (int k = 0; k * kClusterBlocks < u.chunks; ++k) {
      float part[kClusterBlocks];  // all on their way before the first is added
#pragma unroll
      for (int j = 0; j < kClusterBlocks; ++j)
        part[j] = k * kClusterBlocks + j < u.chunks ? peer_value(mine + k * tile_heads * m.partial_ld, j) : 0.0f;
#pragma unroll
      for (int j = 0; j < kClusterBlocks; ++j)
        if (k * kClusterBlocks + j < u.chunks) total = k + j == 0 ? part[j] : total + part[j];
    }
    y[static_cast<std::size_t>(u.t) * s.HQ * s.DH + static_cast<std::size_t>(u.first_head) * s.DH + static_cast<std::size_t>(e)] =
        gated(total, gate);
  }
  cluster_sync();  // nobody reads this block's memory any more
}

}  // namespace

bool attend_few_fits(const QsaShape& s) { return ChunkMemory(s, std::min(kHeadTile, s.HQ / s.HKV), nullptr).bytes <= kSharedLimit; }

void attend_few(const QsaShape& s, const bf16* projected, const QsaGroup& g, float scale, bf16* y, const StepRows& r,
                const Stream& stream) {
  const int group = s.HQ / s.HKV, tile_heads = std::min(kHeadTile, group);
  const ChunkMemory m(s, tile_heads, nullptr);
  const auto kernel = s.DH == kPublishedDim && s.row % 8 == 0 ? attend_few_kernel<kPublishedDim> : attend_few_kernel<0>;
  if (m.bytes > 48 * 1024) allow_shared("qsa_attend", kernel, m.bytes);
  const dim3 grid(kClusterBlocks, static_cast<unsigned>(s.HKV * ceil_div(group, tile_heads)), static_cast<unsigned>(g.count));
  launch("qsa_attend", kernel, {grid, dim3(kThreads), m.bytes}, stream, s, projected, g, scale, tile_heads, y, r);
}

}  // namespace tetrad::cuda
