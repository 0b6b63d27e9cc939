#pragma once
// What a step must move and multiply at least: the numbers that a measured time is divided by.
#include "model/config.h"

namespace tetrad {

struct StepWork {
  double weight_bytes = 0;  // every weight that the step reads, once; experts: experts_per_token of them
  double state_bytes = 0;   // recurrent state read and written, attended K and V rows, block keys scored
  double flops = 0;         // multiply-adds of the linears times two

  double bytes() const { return weight_bytes + state_bytes; }
};

// One decoded token of one sequence that holds `context` tokens. expert_weight_bytes: 2 for bf16 experts, 1 for FP8.
StepWork decode_work(const Config& config, int context, double expert_weight_bytes = 2.0);

// Multiply-adds of the linears for `tokens` prompt tokens, logits of the last only.
double prefill_flops(const Config& config, int tokens);

}  // namespace tetrad
