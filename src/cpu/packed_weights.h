#pragma once
// The weights as the CPU kernels read them: linears packed (matmul.h), small vectors as floats, the n-gram table left in its mapped file.
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "cpu/matmul.h"
#include "model/ngram_hash.h"
#include "model/weights.h"

namespace tetrad::cpu {

struct PackedHc {
  std::vector<float> norm_scale;  // [HC*D] 1 + w
  PackedLinear down_inject;       // [LR (+ HC), HC*D]: the rows of down, then those of inject
  PackedLinear up;                // [HC*D, LR]
  bool has_inject = false;
};

struct PackedGdn {
  PackedLinear in;               // [conv_dim + HV*V + HV + HV, D]: qkv, z, b, a
  std::vector<float> conv;       // [W, conv_dim], tap-major so that a tap is one contiguous row
  std::vector<float> neg_exp_a;  // [HV] -exp(A_log)
  std::vector<float> dt_bias;    // [HV]
  std::vector<float> norm;       // [V], plain weight
  PackedLinear out;              // [D, HV*V]
};

struct PackedQsa {
  PackedLinear in;                                            // [HQ*2*DH + 2*HKV*DH + (HI+1)*DI, D]: q with output gate, k, v, index_qk
  std::vector<float> q_norm_scale, k_norm_scale;              // [DH] 1 + w
  std::vector<float> index_q_norm_scale, index_k_norm_scale;  // [DI] 1 + w
  PackedLinear out;                                           // [D, HQ*DH]
};

struct PackedExpert {
  PackedLinear gate_up;  // [2*F, D]; the shared expert has one more row, its own gate
  PackedLinear down;     // [D, F]
};

struct PackedMoe {
  PackedLinear router;                // [E, D]
  std::vector<PackedExpert> experts;  // [E]
  PackedExpert shared;
};

struct PackedPle {
  PackedLinear key_value;                                                // [HC*D + D, ple_embed_dim]
  std::vector<float> norm_key_scale, norm_query_scale, norm_conv_scale;  // [HC*D] 1 + w
  std::vector<float> conv;                                               // [ple_conv_width, HC*D], tap-major
  NgramTable table;
  NgramHash hash;
};

struct PackedLayer {
  PackedHc attn_hc, mlp_hc;
  std::optional<PackedGdn> gdn;
  std::optional<PackedQsa> qsa;
  PackedMoe moe;
  std::optional<PackedPle> ple;
};

struct PackedModel {
  WeightView embed_tokens;  // [V, D]
  std::vector<PackedLayer> layers;
  PackedHc mixer;
  PackedLinear lm_head;  // [V, D]
  std::shared_ptr<const Checkpoint> checkpoint;
  std::size_t packed_bytes = 0;
};

PackedModel pack_model(const Config& config, const ModelWeights& weights,
                       const std::function<void(int layers_done, int layers)>& progress = {});

// Row `row` of the table as bf16-valued floats, DE of them (FP8: bf16(bf16(code) * bf16(scale))).
void read_table_row(const NgramTable& table, std::int64_t row, int row_dim, float* out);

// Row `row` of an embedding matrix as bf16-valued floats.
void read_embedding_row(const WeightView& embedding, int row, float* out);

}  // namespace tetrad::cpu
