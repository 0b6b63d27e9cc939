#pragma once
// The weights of a checkpoint as views of its mapped files, found and checked through the weights table (weights_table.cpp).
// Both backends read from this; neither owns the bytes. Linear weights are [out, in], y = x W^T. Shapes in the letters of docs/model.md.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "model/config.h"

namespace tetrad {

class Checkpoint;  // io/checkpoint.h

struct WeightView {
  const std::byte* data = nullptr;
  DType dtype = DType::kBF16;
  std::vector<std::int64_t> shape;
  std::string name;  // checkpoint name, for messages

  std::int64_t num_elements() const {
    std::int64_t n = 1;
    for (const auto d : shape) n *= d;
    return n;
  }
};

// A linear weight, possibly in block-scaled FP8: w[o,i] = float(code[o,i]) * scale[o / block_rows, i / block_columns].
struct LinearView {
  WeightView weight;                    // [out, in] BF16, F16, F32 or F8_E4M3
  std::optional<WeightView> scale_inv;  // [ceil(out/block_rows), ceil(in/block_columns)] BF16 or F32; only with F8_E4M3
  int block_rows = 0, block_columns = 0;
};

struct HcWeights {
  WeightView norm;                   // [HC*D]
  LinearView down;                   // [LR, HC*D]
  LinearView up;                     // [HC*D, LR]
  std::optional<LinearView> inject;  // [HC, HC*D]; absent in the final mixer
};

struct GdnWeights {
  LinearView in_qkv;          // [2*HK*K + HV*V, D]
  LinearView in_z;            // [HV*V, D]
  LinearView in_b, in_a;      // [HV, D]
  WeightView conv;            // [2*HK*K + HV*V, 1, W]
  WeightView a_log, dt_bias;  // [HV]
  WeightView norm;            // [V]
  LinearView out;             // [D, HV*V]
};

struct QsaWeights {
  LinearView q;                           // [HQ*2*DH, D]: per head, DH query rows then DH output-gate rows
  LinearView k, v;                        // [HKV*DH, D]
  LinearView o;                           // [D, HQ*DH]
  WeightView q_norm, k_norm;              // [DH]
  LinearView index_qk;                    // [(HI+1)*DI, D]: query heads, then the one key head
  WeightView index_q_norm, index_k_norm;  // [DI]
};

struct ExpertWeights {
  LinearView gate_proj, up_proj;  // [F, D]
  LinearView down_proj;           // [D, F]
};

struct MoeWeights {
  LinearView router;                   // [E, D]
  std::vector<ExpertWeights> experts;  // E of them, whether the checkpoint stores them fused or one by one
  ExpertWeights shared;                // with FS for F
  LinearView shared_gate;              // [1, D]
};

struct NgramTable {                     // [NGVOC, DE], rows spread over shards in order
  std::vector<WeightView> shards;       // one or more, each [rows, DE], BF16 (F16, F32) or F8_E4M3
  std::vector<std::int64_t> first_row;  // of each shard, plus the total at the end
  std::optional<float> scale;           // one for the whole table, only with F8_E4M3; value = bf16(bf16(code) * bf16(scale))
};

struct PleWeights {
  LinearView key_proj;                         // [HC*D, ple_embed_dim]
  LinearView value_proj;                       // [D, ple_embed_dim]
  WeightView norm_key, norm_query, norm_conv;  // [HC*D]
  WeightView conv;                             // [HC*D, 1, ple_conv_width]
  NgramTable table;
  std::vector<std::int64_t> multipliers;   // [ngram_size]; checked against the hash of the config
  std::vector<std::int64_t> head_sizes;    // [NG]
  std::vector<std::int64_t> head_offsets;  // [NG]
};

struct LayerWeights {
  HcWeights attn_hc, mlp_hc;
  std::optional<GdnWeights> gdn;  // exactly one of gdn and qsa
  std::optional<QsaWeights> qsa;
  MoeWeights moe;
  std::optional<PleWeights> ple;
};

struct ModelWeights {
  WeightView embed_tokens;  // [V, D]
  LinearView lm_head;       // [V, D]; the embedding when tied
  HcWeights mixer;          // no inject
  std::vector<LayerWeights> layers;
  std::shared_ptr<const Checkpoint> checkpoint;  // keeps the mapped files alive
};

}  // namespace tetrad
