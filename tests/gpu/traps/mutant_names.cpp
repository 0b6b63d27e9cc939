// The list of faults with their names, and the selectors of the sources that hold them.
#include <array>
#include <cstddef>
#include <vector>

#include "cuda/kernels/mutants.cuh"
#include "cuda/runtime/error.h"

namespace tetrad::cuda {
namespace {

constexpr std::array<const char*, static_cast<std::size_t>(Mutant::kCount)> kNames{
    "none",
    "segment_order",
    "scale_of_next_block",
    "norm_without_one",
    "eps_removed",
    "mix_sum",
    "mix_unrounded",
    "mix_scale_after_silu",
    "inject_not_doubled",
    "conv_tap_order",
    "conv_silu_unrounded",
    "window_too_far",
    "gdn_head_order",
    "gdn_decay_after_update",
    "gdn_no_l2_norm",
    "softplus_missing",
    "beta_without_sigmoid",
    "beta_unrounded",
    "gdn_other_gate",
    "gdn_norm_unrounded",
    "rope_interleaved",
    "rope_queries_behind",
    "rope_unrounded",
    "rope_at_block_end",
    "pool_truncated",
    "score_without_relu",
    "selection_off_by_one",
    "tie_higher_index",
    "tail_dropped",
    "kv_head_off",
    "probability_truncated",
    "output_gate_missing",
    "router_no_renorm",
    "router_tie_higher",
    "expert_weight_of_next",
    "expert_gate_up_swapped",
    "expert_silu_unrounded",
    "routed_sum_rounded",
    "shared_gate_missing",
    "ple_scale_missing",
    "ple_context_not_cut",
    "ple_multiplier_order",
    "ple_gate_no_root",
    "ple_conv_undilated",
    "ple_skip_normed",
    "embed_first_stream_only",
    "sample_tie_higher",
    "sample_draw_at_least",
};

std::vector<SetMutant>& setters() {
  static std::vector<SetMutant> all;
  return all;
}

}  // namespace

bool add_mutant_setter(SetMutant set) {
  setters().push_back(set);
  return true;
}

void select_mutant(Mutant m) {
  check(cudaDeviceSynchronize(), "waiting before a fault is chosen");
  for (const SetMutant set : setters()) check(set(static_cast<int>(m)), "choosing the fault {}", mutant_name(m));
  check(cudaDeviceSynchronize(), "choosing the fault {}", mutant_name(m));
}

const char* mutant_name(Mutant m) { return kNames.at(static_cast<std::size_t>(m)); }

}  // namespace tetrad::cuda
