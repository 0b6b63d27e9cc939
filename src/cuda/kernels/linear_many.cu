// linear for many rows where there is no wgmma (contract in linear.h): 128 outputs by 128 tokens, warps 4 by 2, each 32 outputs by 64
// tokens.
#include "cuda/kernels/linear_params.cuh"
#include "cuda/kernels/tensor_step.cuh"
#include "cuda/runtime/launch.cuh"

namespace tetrad::cuda {
namespace {

constexpr int kTileN = 128, kTileT = 128, kStages = 4, kThreads = 256;
constexpr int kGroupParts = (kGroupTileRows + kTileT - 1) / kTileT;  // tiles of this kernel in a tile of a group

template <bool kFp8>
struct Stage {
  uint4 x[kTileT * 4];                                                 // [128 tokens][32 columns], chunk c of row r at c ^ (r / 2 % 4)
  std::byte w[kTileN / kFragmentRows * WeightFragment<kFp8>::kBytes];  // [8 fragments of 16 outputs]
};

template <bool kFp8>
__device__ __forceinline__ void load_stage(const LinearParams& p, const LinearGroup& g, Stage<kFp8>& stage, int n0, int t0, int f) {
  constexpr int kWeightChunks = sizeof(stage.w) / 16;
  for (int i = threadIdx.x; i < kTileT * 4; i += kThreads) {
    const int row = i / 4, t = t0 + row, k = f * kFragmentColumns + i % 4 * 8;
    const int bytes = t < g.end ? max(0, min(16, 2 * (p.K - k))) : 0;
    copy_async_some(&stage.x[row * 4 + (i % 4 ^ row / 2 % 4)], bytes > 0 ? x_row(p, t) + k : p.x, bytes);
  }
  for (int i = threadIdx.x; i < kWeightChunks; i += kThreads) {
    constexpr int kChunks = WeightFragment<kFp8>::kBytes / 16;
    const int n = n0 / kFragmentRows + i / kChunks;
    std::byte* to = stage.w + i * 16;
    if (n < p.n_fragments)
      copy_async(to, g.data + (static_cast<std::size_t>(n) * p.k_fragments + f) * WeightFragment<kFp8>::kBytes + i % kChunks * 16);
    else
      *reinterpret_cast<uint4*>(to) = uint4{0, 0, 0, 0};
  }
  commit_copies();
}

template <bool kFp8>
__global__ void __launch_bounds__(kThreads, 1) linear_many_kernel(const LinearParams p) {
  wait_for_previous();
  extern __shared__ uint4 memory[];
  auto* stages = reinterpret_cast<Stage<kFp8>*>(memory);
  const bool grouped = p.groups.first != nullptr;
  LinearGroup g;
  int t0;
  if (grouped) {
    const int index = blockIdx.y / kGroupParts, part = blockIdx.y % kGroupParts;
    if (index >= *p.groups.num_tiles) return;
    const int2 tile = p.groups.tiles[index];
    g = of_group(p, tile.x);
    if (tile.y < g.begin || tile.y >= g.end) __trap();
    g.end = min(g.end, tile.y + kGroupTileRows);
    t0 = tile.y + part * kTileT;
    if (t0 >= g.end) return;
  } else {
    g = whole(p);
    t0 = blockIdx.y * kTileT;
  }
  const int n0 = blockIdx.x * kTileN;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int warp_n = warp % 4 * 32, warp_t = warp / 4 * 64;

  float acc[2][8][4] = {}, total[2][8][4];
  for (int s = 0; s < kStages - 1; ++s) {
    if (s < p.k_fragments)
      load_stage<kFp8>(p, g, stages[s], n0, t0, s);
    else
      commit_copies();
  }
  int in_segment = 0, segment = 0;
  for (int f = 0; f < p.k_fragments; ++f) {
    wait_copies<kStages - 2>();
    __syncthreads();  // stage f is in shared memory for everybody, and stage f - 1 has been read by everybody
    if (f + kStages - 1 < p.k_fragments)
      load_stage<kFp8>(p, g, stages[(f + kStages - 1) % kStages], n0, t0, f + kStages - 1);
    else
      commit_copies();
    const Stage<kFp8>& stage = stages[f % kStages];
    unsigned a[2][2][4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      WeightFragment<kFp8> w;
      w.load(stage.w + (warp_n / kFragmentRows + i) * WeightFragment<kFp8>::kBytes, lane);
      w.expand(a[i]);
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int row = warp_t + 8 * j + lane / 4;
      unsigned x[4];
#pragma unroll
      for (int c = 0; c < 4; ++c) x[c] = reinterpret_cast<const unsigned*>(&stage.x[row * 4 + (c ^ row / 2 % 4)])[lane % 4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        multiply_step(acc[i][j], a[i][0], x[0], x[1]);
        multiply_step(acc[i][j], a[i][1], x[2], x[3]);
      }
    }
    if (++in_segment < p.segment && f + 1 < p.k_fragments) continue;
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int n = min(n0 + warp_n + 16 * i + 8 * h + lane / 4, p.n_fragments * kFragmentRows - 1);
        const float scale = kFp8 ? g.scales[(n / p.scale_rows) * p.scale_columns + scale_column(p, segment)] : 1.0f;
#pragma unroll
        for (int j = 0; j < 8; ++j)
#pragma unroll
          for (int c = 2 * h; c < 2 * h + 2; ++c) {
            total[i][j][c] = add_segment<kFp8>(segment == 0, total[i][j][c], acc[i][j][c], scale);
            acc[i][j][c] = 0.0f;
          }
      }
    in_segment = 0;
    ++segment;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i)
#pragma unroll
    for (int j = 0; j < 8; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int n = n0 + warp_n + 16 * i + lane / 4 + c / 2 * 8, t = t0 + warp_t + 8 * j + lane % 4 * 2 + c % 2;
        if (n < p.N && t < g.end) p.y[static_cast<std::ptrdiff_t>(t) * p.ldy + n] = to_b16(total[i][j][c]);
      }
}

template <bool kFp8>
void launch_many(const LinearParams& p, const Stream& stream) {
  constexpr std::size_t kShared = kStages * sizeof(Stage<kFp8>);
  allow_shared("linear_many", linear_many_kernel<kFp8>, kShared);
  const int tiles = p.groups.first != nullptr ? kGroupParts * p.groups.num_tiles_bound : ceil_div(p.T, kTileT);
  launch(linear_tag("linear_many", p, kFp8, stream), linear_many_kernel<kFp8>,
         {dim3(static_cast<unsigned>(ceil_div(p.N, kTileN)), static_cast<unsigned>(tiles)), dim3(kThreads), kShared}, stream, p);
}

}  // namespace

void linear_many(const LinearParams& p, bool fp8, const Stream& stream) {
  fp8 ? launch_many<true>(p, stream) : launch_many<false>(p, stream);
}

}  // namespace tetrad::cuda
