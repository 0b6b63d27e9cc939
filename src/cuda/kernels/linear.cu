#include "cuda/kernels/linear.h"

#include <string>

#include "base/error.h"
#include "cuda/kernels/linear_params.cuh"
#include "cuda/runtime/launch.cuh"

namespace tetrad::cuda {
namespace {

constexpr int kFewRows = kFewLinearRows;  // up to here a weight is streamed once and the multiply steps hide behind it
constexpr int kFewPasses = 3;             // over a weight that is in the caches after the first
constexpr int kWideOutputs = 100 * 128;   // enough tiles of outputs for wgmma to keep the GPU busy without that

}  // namespace

LinearTag linear_tag(const char* name, const LinearParams& p, bool fp8, const Stream& stream) {
  if (stream.profiler() == nullptr) return {name};
  const bool grouped = p.groups.first != nullptr;
  const double N = p.N, K = p.K, rows = p.T, x_rows = grouped && p.groups.x_rows != nullptr ? p.groups.num_x_rows : p.T;
  const double weight_bytes = N * K * (fp8 ? 1 : 2) * (grouped ? p.groups.num_active_bound : 1);
  return {fmt::format("{} {}x{}{}", name, p.N, p.K, grouped ? " grouped" : ""), weight_bytes + 2 * (x_rows * K + rows * N),
          2 * N * K * rows};
}

LinearParams linear_params(const DeviceLinear& w, const LinearArgs& a) {
  TETRAD_CHECK(reinterpret_cast<std::uintptr_t>(a.x) % 16 == 0 && a.ldx % 8 == 0, "linear: x at {} with rows of {} is not aligned",
               static_cast<const void*>(a.x), a.ldx);
  LinearParams p{.N = w.N,
                 .K = w.K,
                 .T = a.T,
                 .n_fragments = w.row_fragments(),
                 .k_fragments = w.column_fragments(),
                 .segment = w.fp8 ? w.block_columns / kFragmentColumns : kSegmentFragments,
                 .data = static_cast<const std::byte*>(w.data),
                 .scales = w.scales,
                 .scale_rows = w.scale_rows,
                 .scale_columns = w.scale_columns(),
                 .x = a.x,
                 .ldx = a.ldx,
                 .y = a.y,
                 .ldy = a.ldy,
                 .groups = {}};
  if (a.groups != nullptr) p.groups = *a.groups;
  return p;
}

void linear(const DeviceLinear& w, const LinearArgs& a, const Stream& stream) {
  if (a.T == 0) return;
  TETRAD_CHECK(a.T == 1 || a.ldy >= w.N, "linear: rows of y are {} apart, N is {}", a.ldy, w.N);
  TETRAD_CHECK(!w.fp8 || w.block_columns % kFragmentColumns == 0, "linear: scale blocks of {} columns", w.block_columns);
  const LinearParams p = linear_params(w, a);
  // Rows of a group are few when on average they are: the rest costs a second pass over cached weights.
  const int passes = stream.hopper() && w.N >= kWideOutputs ? 1 : kFewPasses;
  const bool few = a.groups != nullptr ? a.T <= kFewRows * a.groups->num_groups : a.T <= kFewRows * passes;
  if (linear_split(p, w.fp8, stream) || linear_stream(p, w.fp8, stream)) return;
  if (few) return linear_few(p, w.fp8, stream);
  if (!linear_wgmma(p, w.fp8, stream)) linear_many(p, w.fp8, stream);
}

}  // namespace tetrad::cuda
