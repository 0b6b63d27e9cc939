#include "cuda/step_faults.h"

#include "cuda/kernels/step_rows.h"

namespace tetrad::cuda {

void report_faults(const StepBatch& batch, const int* faults, StepResult& result) {
  for (std::size_t b = 0; b < batch.sequences.size(); ++b) {
    const SequenceRows& s = batch.sequences[b];
    int first = 0, row = 0;
    for (int t = s.first_row; t < s.first_row + s.num_rows; ++t) {
      const int fault = faults[t];
      if (fault != 0 && (first == 0 || fault < first)) first = fault, row = t;
    }
    if (first == 0) continue;
    const auto kind = static_cast<FaultKind>(first & 3);
    const char* what = kind == FaultKind::kRouterLogits ? "router logits" : kind == FaultKind::kIndexScores ? "index scores" : "logits";
    result.faults.push_back({static_cast<int>(b), row, kind == FaultKind::kLogits ? -1 : first >> 2, what});
  }
}

}  // namespace tetrad::cuda
