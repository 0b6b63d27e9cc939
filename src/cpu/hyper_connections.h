#pragma once
// Hyper-connections: the residual is HC parallel streams; a sub-block reads a gated mean of the normed streams and writes back to each
// stream with its own weight (docs/model.md, "Streams").
#include "cpu/packed_weights.h"
#include "cpu/workspace.h"

namespace tetrad::cpu {

// n = norm(streams); a = silu(down n / HC); x = mean_s(sigmoid(up a)_s * n_s); inject = 2 sigmoid(inject n / HC)
//   streams [T, HC*D] in, x [T, D] out, inject [T, HC] out (null for the final mixer). Rounding as the reference: every tensor to bf16.
void hc_mix(const PackedHc& w, const Config& c, int T, const float* streams, float* x, float* inject, Workspace& ws, ThreadPool& pool);

// streams[t, s] = bf(streams[t, s] + bf(inject[t, s] * y[t])), in place; y [T, D].
void hc_inject(const Config& c, int T, float* streams, const float* inject, const float* y, ThreadPool& pool);

}  // namespace tetrad::cpu
