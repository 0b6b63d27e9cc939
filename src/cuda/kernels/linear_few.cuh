#pragma once
// The pieces of a linear for few rows: a warp multiplies 16 outputs of one segment, with the weights of the next on their way.
#include "cuda/kernels/linear_params.cuh"
#include "cuda/kernels/pipeline.cuh"
#include "cuda/kernels/tensor_step.cuh"

namespace tetrad::cuda {

// Fragments of a slot of a weight ring: half a segment of bf16, one scale block of 128 columns of FP8.
template <bool kFp8>
inline constexpr int kSlotFragments = kFp8 ? 4 : kSegmentFragments / 2;

// A warp's stream of weights through shared memory: slots are filled ahead, by the copy engine where there is one, and used in order. A
// slot holds the same fragments of kStrips strips of outputs, strip after strip.
template <bool kFp8, int kStrips = 1, int kFragments = kSlotFragments<kFp8>>
class WeightRing {
 public:
  static constexpr int kFragmentBytes = WeightFragment<kFp8>::kBytes, kStripBytes = kFragments * kFragmentBytes;
  static constexpr int kSlotBytes = kStrips * kStripBytes;
  static __host__ __device__ int bytes(int slots) {
    return slots * kSlotBytes + (slots * static_cast<int>(sizeof(Barrier)) + 15) / 16 * 16;
  }

  // All lanes, before anything else.
  __device__ __forceinline__ WeightRing(std::byte* memory, int slots)
      : memory_(memory), barriers_(reinterpret_cast<Barrier*>(memory + slots * kSlotBytes)), slots_(slots) {
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x % 32 == 0) {
      for (int i = 0; i < slots; ++i) barriers_[i].init(1);
      Barrier::publish_init();
    }
    __syncwarp();  // the barriers are set up
#endif
  }
  // Starts the copy of up to a slot of fragments of each strip into the next slot, which must be free.
  __device__ __forceinline__ void push(const std::byte* fragments, std::size_t strip_stride, int count) {
    std::byte* to = memory_ + head_ * kSlotBytes;
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x % 32 == 0) {
      barriers_[head_].expect(kStrips * count * kFragmentBytes);
#pragma unroll
      for (int s = 0; s < kStrips; ++s) barriers_[head_].copy(to + s * kStripBytes, fragments + s * strip_stride, count * kFragmentBytes);
    }
#else
    for (int s = 0; s < kStrips; ++s)
      for (int i = threadIdx.x % 32 * 16; i < count * kFragmentBytes; i += 32 * 16)
        copy_async(to + s * kStripBytes + i, fragments + s * strip_stride + i);
    commit_copies();
#endif
    head_ = head_ + 1 == slots_ ? 0 : head_ + 1;
  }
  // Waits for the oldest slot and returns it; it stays in use until pop().
  __device__ __forceinline__ const std::byte* front() {
#if __CUDA_ARCH__ >= 900
    barriers_[tail_].wait(phase_);
#else
    wait_copies<0>();
    __syncwarp();  // every lane's part is there
#endif
    return memory_ + tail_ * kSlotBytes;
  }
  __device__ __forceinline__ void pop() {
    __syncwarp();  // every lane has read the slot
    if (++tail_ == slots_) tail_ = 0, phase_ ^= 1;
  }
  __device__ __forceinline__ int slots() const { return slots_; }

 private:
  std::byte* memory_;
  Barrier* barriers_;
  int slots_, head_ = 0, tail_ = 0;
  unsigned phase_ = 0;
};

// A warp's run of consecutive fragments, slot by slot, as often as there are passes over it.
struct WeightRun {
  const std::byte* fragments;
  std::size_t strip_stride;  // bytes from one strip of a slot to the next
  int count, passes;         // fragments of a pass; passes that are still to be started
  int next = 0;

  template <bool kFp8, int kStrips>
  __device__ __forceinline__ void push(WeightRing<kFp8, kStrips>& ring) {
    if (passes <= 0 || count <= 0) return;
    ring.push(fragments + static_cast<std::size_t>(next) * WeightFragment<kFp8>::kBytes, strip_stride,
              min(kSlotFragments<kFp8>, count - next));
    next += kSlotFragments<kFp8>;
    if (next >= count) next = 0, --passes;
  }
};

template <class Run, class Ring>
__device__ __forceinline__ void fill_ring(Run& run, Ring& ring) {
#pragma unroll 1
  for (int i = 0; i < ring.slots(); ++i) run.push(ring);
}

// A warp's own copy of some columns of a few rows of x in shared memory: rows of `stride` elements, a chunk of zeros behind them.
template <int kTokenTiles>
struct XColumns {
  static constexpr int kTokens = 8 * kTokenTiles;
  bf16* rows;
  int stride, count;

  // Elements between rows of `fragments` fragments: eight rows of a column fall into different banks.
  static __host__ __device__ int stride_of(int fragments) { return fragments * kFragmentColumns + 8; }
  static __host__ __device__ int size_of(int fragments, int tokens) { return tokens * stride_of(fragments) + 8; }

  __device__ __forceinline__ XColumns(bf16* memory, int fragments, int tokens) : rows(memory), stride(stride_of(fragments)), count(tokens) {
    if (threadIdx.x % 32 == 0) *reinterpret_cast<uint4*>(rows + count * stride) = uint4{0, 0, 0, 0};
  }
  // Starts the copy of fragments [begin, end) of rows t0 ..; zeros past K. To be waited for with wait().
  template <class Row>
  __device__ __forceinline__ void fetch(Row row, int K, int begin, int end) {
    for (int t = 0; t < count; ++t) {
      const bf16* from = row(t);
      for (int c = threadIdx.x % 32; c < (end - begin) * 4; c += 32) {
        const int k = begin * kFragmentColumns + c * 8, bytes = max(0, min(16, 2 * (K - k)));
        copy_async_some(rows + t * stride + c * 8, bytes > 0 ? from + k : from, bytes);
      }
    }
    commit_copies();
  }
  __device__ __forceinline__ void wait() const {
    wait_copies<0>();
    __syncwarp();  // every lane's chunks are there
  }
  // Fragment f counted from the first one fetched; rows past the count are zero.
  __device__ __forceinline__ void load(int f, XFragment (&x)[kTokenTiles]) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < kTokenTiles; ++i) {
      const int t = 8 * i + lane % 8;
      x[i].load(t < count ? rows + t * stride + f * kFragmentColumns + lane / 8 * 8 : rows + count * stride);
    }
  }
};

// Whole rows that the block has put into shared memory; a slot's columns are those from its first fragment on.
struct SharedColumns {
  const bf16* first;  // this lane's row from its place in a fragment on, or zeros
  int step;           // elements from fragment to fragment: 0 of zeros
  const bf16* now;

  __device__ __forceinline__ SharedColumns(const bf16* rows, int stride, int count, const bf16* zeros, int fragment) {
    const int lane = threadIdx.x % 32;
    const bool real = lane % 8 < count;
    first = real ? rows + lane % 8 * stride + lane / 8 * 8 : zeros;
    step = real ? kFragmentColumns : 0;
    now = first + fragment * step;
  }
  template <class Row>
  __device__ __forceinline__ void fetch(const Row&, int, int begin, int) {
    now = first + begin * step;
  }
  __device__ __forceinline__ void wait() const {}
  __device__ __forceinline__ void load(int f, XFragment (&x)[1]) const { x[0].load(now + f * step); }
};

// acc += a fragment of 16 outputs times the same columns of the tokens.
template <int kTokenTiles>
__device__ __forceinline__ void multiply_fragment(const unsigned (*a)[4], const XFragment* x, float (*acc)[4]) {
#pragma unroll
  for (int i = 0; i < kTokenTiles; ++i) {
    multiply_step(acc[i], a[0], x[i].step[0][0], x[i].step[0][1]);
    multiply_step(acc[i], a[1], x[i].step[1][0], x[i].step[1][1]);
  }
}

// acc[strip] += kCount fragments of a slot from f on. All are read before any is multiplied: one after the other, each would wait for its
// own.
template <int kCount, bool kFp8, int kStrips, int kTokenTiles, class Columns>
__device__ __forceinline__ void multiply_fragments(const std::byte* slot, const Columns& x, int f, float (*acc)[kTokenTiles][4]) {
  XFragment columns[kCount][kTokenTiles];
  WeightFragment<kFp8> w[kCount][kStrips];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    x.load(f + i, columns[i]);
#pragma unroll
    for (int s = 0; s < kStrips; ++s)
      w[i][s].load(slot + s * WeightRing<kFp8>::kStripBytes + (f + i) * WeightFragment<kFp8>::kBytes, threadIdx.x % 32);
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i)
#pragma unroll
    for (int s = 0; s < kStrips; ++s) {
      unsigned a[2][4];
      w[i][s].expand(a);
      multiply_fragment<kTokenTiles>(a, columns[i], acc[s]);
    }
}

// acc[strip] += fragments [begin, end) of a slot.
template <bool kFp8, int kStrips, int kTokenTiles, class Columns>
__device__ __forceinline__ void multiply_slot(const std::byte* slot, const Columns& x, int begin, int end, float (*acc)[kTokenTiles][4]) {
  constexpr int kBatch = kStrips > 1 ? 2 : kTokenTiles > 1 ? 3 : kSlotFragments<kFp8>;  // as many as registers hold
  int f = begin;
#pragma unroll 1
  for (; f + kBatch <= end; f += kBatch) multiply_fragments<kBatch, kFp8, kStrips, kTokenTiles>(slot, x, f, acc);
#pragma unroll 1
  for (; f < end; ++f) multiply_fragments<1, kFp8, kStrips, kTokenTiles>(slot, x, f, acc);
}

// The sums of a warp's segments, which are the consecutive fragments [first, end) of its strips: store(segment, acc) gets each. Weights
// come slot by slot from the ring, x by the same columns into two buffers in turn; the first columns have been asked for.
template <bool kFp8, int kStrips, int kTokenTiles, class Columns, class Row, class Run, class Store>
__device__ __forceinline__ void run_sums(const Row& row, int K, int segment, int first, int end, Columns (&x)[2],
                                         WeightRing<kFp8, kStrips>& ring, Run& run, const Store& store) {
  constexpr int kSlot = kSlotFragments<kFp8>;
  float acc[kStrips][kTokenTiles][4] = {};
  int in_segment = 0;
  Columns now = x[0], after = x[1];  // copies: what is indexed by the turn would lie in memory
  for (int f = first; f < end; f += kSlot) {
    const int slot_end = min(f + kSlot, end);
    now.wait();
    if (slot_end < end) after.fetch(row, K, slot_end, min(slot_end + kSlot, end));
    const std::byte* slot = ring.front();
    for (int done = f; done < slot_end;) {
      const int until = min(done + segment - in_segment, slot_end);
      multiply_slot<kFp8, kStrips, kTokenTiles>(slot, now, done - f, until - f, acc);
      in_segment += until - done;
      done = until;
      if (in_segment < segment && done < end) continue;
      store((done - 1) / segment, acc);
#pragma unroll
      for (int s = 0; s < kStrips; ++s)
#pragma unroll
        for (int i = 0; i < kTokenTiles; ++i)
#pragma unroll
          for (int j = 0; j < 4; ++j) acc[s][i][j] = 0.0f;
      in_segment = 0;
    }
    ring.pop();
    run.push(ring);
    const Columns used = now;
    now = after, after = used;
  }
}

// The two buffers of run_sums, one after the other in a warp's memory.
template <bool kFp8, int kTokenTiles>
struct ColumnBuffers {
  XColumns<kTokenTiles> x[2];
  static __host__ __device__ int elements(int tokens) { return 2 * XColumns<kTokenTiles>::size_of(kSlotFragments<kFp8>, tokens); }
  // `count` of the `tokens` that there is room for.
  __device__ __forceinline__ ColumnBuffers(bf16* memory, int tokens, int count)
      : x{{memory, kSlotFragments<kFp8>, count}, {memory + elements(tokens) / 2, kSlotFragments<kFp8>, count}} {}
  template <class Row>
  __device__ __forceinline__ void fetch_first(const Row& row, int K, int first, int end) {
    if (first < end) x[0].fetch(row, K, first, min(first + kSlotFragments<kFp8>, end));
  }
};

// acc of the first `tokens` tokens to [tokens][16 outputs].
template <int kTokenTiles>
__device__ __forceinline__ void store_sums(const float (*acc)[4], int tokens, float* out) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < kTokenTiles; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int t = 8 * i + lane % 4 * 2 + j % 2;
      if (t < tokens) out[t * kFragmentRows + lane / 4 + j / 2 * 8] = acc[i][j];
    }
}

}  // namespace tetrad::cuda
