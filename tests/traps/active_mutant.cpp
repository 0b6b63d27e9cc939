#include "cpu/mutants.h"

#include <array>

namespace tetrad::cpu {
namespace {

constexpr std::array<std::string_view, static_cast<std::size_t>(Mutant::kCount)> kNames{
    "none",
    "norm_without_one",
    "norm_over_all_streams",
    "eps_removed",
    "mix_sum",
    "mix_scale_after_silu",
    "mix_raw_streams",
    "inject_not_doubled",
    "inject_into_normed",
    "conv_shifted",
    "conv_without_silu",
    "gdn_head_order",
    "gdn_state_transposed",
    "gdn_decay_after_update",
    "gdn_read_before_update",
    "gdn_no_l2_norm",
    "gdn_gate_before_norm",
    "softplus_missing",
    "beta_without_sigmoid",
    "rope_at_block_end",
    "rope_interleaved",
    "rope_position_off",
    "pool_sum",
    "score_without_relu",
    "selection_off_by_one",
    "tail_dropped",
    "own_block_always",
    "kv_head_off",
    "output_gate_missing",
    "swap_query_and_gate",
    "router_no_renorm",
    "router_topk_one_fewer",
    "expert_gate_up_swapped",
    "shared_gate_missing",
    "ple_context_zero",
    "ple_context_not_cut",
    "ple_multiplier_order",
    "ple_gate_no_root",
    "ple_conv_undilated",
    "ple_skip_normed",
    "ple_after_attention",
    "float_mix",
    "float_experts",
    "float_rope",
};

}  // namespace

Mutant active_mutant = Mutant::kNone;

std::string_view mutant_name(Mutant m) { return kNames.at(static_cast<std::size_t>(m)); }

}  // namespace tetrad::cpu
