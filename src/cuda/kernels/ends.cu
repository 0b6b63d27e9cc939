#include "cuda/kernels/ends.h"

#include <cstdint>

#include "base/error.h"
#include "cuda/kernels/device_math.cuh"
#include "cuda/runtime/launch.cuh"

namespace tetrad::cuda {
namespace {

constexpr int kThreads = 256;

// Rows are multiples of 16 bytes.
__global__ void __launch_bounds__(kThreads) embed_kernel(const bf16* embedding, int D, int HC, bf16* streams, const StepRows r) {
  wait_for_previous();
  const std::size_t t = blockIdx.x;
  const auto* from = reinterpret_cast<const uint4*>(embedding + static_cast<std::size_t>(checked(r.token_ids[t], r.vocab_size)) * D);
  auto* to = reinterpret_cast<uint4*>(streams + t * HC * D);
  for (int p = threadIdx.x; p < D / 8; p += kThreads) {
    const uint4 piece = from[p];
    for (int s = 0; s < HC; ++s) to[s * (D / 8) + p] = mutant(Mutant::kEmbedFirstStreamOnly) && s > 0 ? uint4{0, 0, 0, 0} : piece;
  }
}

__global__ void take_rows_kernel(const bf16* x, int D, const int* logit_rows, bf16* wanted, const StepRows r) {
  wait_for_previous();
  const std::size_t i = blockIdx.x;
  const bf16* from = x + static_cast<std::size_t>(checked(logit_rows[i], r.T)) * D;
  for (int d = threadIdx.x; d < D; d += kThreads) wanted[i * D + d] = from[d];
}

// Blocks of one row each look at their part; any that finds a number that is not finite writes the same fault.
__global__ void widen_logits_kernel(const bf16* logits, int V, const int* logit_rows, int num_layers, float* out, const StepRows r) {
  wait_for_previous();
  const std::size_t i = blockIdx.y;
  bool finite = true;
  for (int v = blockIdx.x * kThreads + threadIdx.x; v < V; v += gridDim.x * kThreads) {
    const float logit = to_f32(logits[i * V + v]);
    finite = finite && isfinite(logit);
    out[i * V + v] = logit;
  }
  if (__syncthreads_and(finite) == 0 && threadIdx.x == 0) record_fault(r, checked(logit_rows[i], r.T), num_layers, FaultKind::kLogits);
}

__global__ void __launch_bounds__(kThreads) advance_lengths_kernel(std::size_t offset, const StepRows r) {
  wait_for_previous();
  const int b = blockIdx.x;
  const auto write = [&](int slot, int length) { *reinterpret_cast<std::int64_t*>(slot_memory(r, slot) + offset) = length; };
  for (int t = r.first_row[b] + static_cast<int>(threadIdx.x); t < r.first_row[b + 1]; t += kThreads)
    if (r.save_slot[t] >= 0) write(r.save_slot[t], r.position[t] + 1);
  if (threadIdx.x == 0) write(r.slot[b], r.start[b] + r.first_row[b + 1] - r.first_row[b]);
}

}  // namespace

void embed(const bf16* embedding, int D, int HC, bf16* streams, const StepRows& r, const Stream& stream) {
  TETRAD_CHECK(D % 8 == 0, "embed: D {}", D);
  launch("embed", embed_kernel, {dim3(static_cast<unsigned>(r.T)), dim3(kThreads)}, stream, embedding, D, HC, streams, r);
}

void take_rows(const bf16* x, int D, const int* logit_rows, int count, bf16* wanted, const StepRows& r, const Stream& stream) {
  launch("take_rows", take_rows_kernel, {dim3(static_cast<unsigned>(count)), dim3(kThreads)}, stream, x, D, logit_rows, wanted, r);
}

void widen_logits(const bf16* logits, int V, const int* logit_rows, int count, int num_layers, float* out, const StepRows& r,
                  const Stream& stream) {
  constexpr int kPerThread = 8;
  const auto blocks = static_cast<unsigned>(ceil_div(V, kThreads * kPerThread));
  launch("widen_logits", widen_logits_kernel, {dim3(blocks, static_cast<unsigned>(count)), dim3(kThreads)}, stream, logits, V, logit_rows,
         num_layers, out, r);
}

void advance_lengths(std::size_t length_offset, const StepRows& r, const Stream& stream) {
  launch("advance_lengths", advance_lengths_kernel, {dim3(static_cast<unsigned>(r.B)), dim3(kThreads)}, stream, length_offset, r);
}

}  // namespace tetrad::cuda
