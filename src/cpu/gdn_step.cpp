#include "cpu/gdn_step.h"

#include <cstddef>

#include "cpu/gdn_step_kernels.h"
#include "cpu/mutants.h"

namespace tetrad::cpu {
namespace {

// The recurrence written out, to plant faults in.
[[maybe_unused]] void gdn_step_with_fault(const GdnStepArgs& a) {
  const bool late_decay = mutant(Mutant::kGdnDecayAfterUpdate);
  const bool early_read = mutant(Mutant::kGdnReadBeforeUpdate);
  const bool transposed = mutant(Mutant::kGdnStateTransposed) && a.T == 1;
  float recalled[kGdnColumns], out[kGdnColumns];
  const auto state = [&](int i, int c) -> float& {
    const int column = a.first_column + c;
    return transposed ? a.S[static_cast<std::ptrdiff_t>(column) * a.K + i] : a.S[static_cast<std::ptrdiff_t>(i) * a.V + column];
  };
  for (int t = 0; t < a.T; ++t) {
    const float* q = a.q + static_cast<std::ptrdiff_t>(t) * a.ld_qkv;
    const float* k = a.k + static_cast<std::ptrdiff_t>(t) * a.ld_qkv;
    const float* v = a.v + static_cast<std::ptrdiff_t>(t) * a.ld_qkv + a.first_column;
    const float decay = a.decay[static_cast<std::ptrdiff_t>(t) * a.ld_gates];
    const float beta = a.beta[static_cast<std::ptrdiff_t>(t) * a.ld_gates];
    for (int c = 0; c < a.num_columns; ++c) recalled[c] = out[c] = 0.0f;
    for (int i = 0; i < a.K; ++i)
      for (int c = 0; c < a.num_columns; ++c) {
        if (!late_decay) state(i, c) *= decay;
        recalled[c] += k[i] * state(i, c);
        if (early_read) out[c] += q[i] * state(i, c);
      }
    for (int c = 0; c < a.num_columns; ++c) recalled[c] = beta * (v[c] - recalled[c]);
    for (int i = 0; i < a.K; ++i)
      for (int c = 0; c < a.num_columns; ++c) {
        state(i, c) += k[i] * recalled[c];
        if (!early_read) out[c] += q[i] * state(i, c);
        if (late_decay) state(i, c) *= decay;
      }
    for (int c = 0; c < a.num_columns; ++c) a.o[static_cast<std::ptrdiff_t>(t) * a.ld_o + a.first_column + c] = out[c];
  }
}

}  // namespace

void gdn_step(const GdnStepArgs& a) {
  const bool faulty = mutant(Mutant::kGdnDecayAfterUpdate) || mutant(Mutant::kGdnReadBeforeUpdate) || mutant(Mutant::kGdnStateTransposed);
  faulty ? gdn_step_with_fault(a) : gdn_step_columns(a);
}

}  // namespace tetrad::cpu
