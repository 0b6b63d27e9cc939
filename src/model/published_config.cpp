#include "model/synthetic.h"

namespace tetrad {

std::string_view published_config_text() {
  return R"json({ "architectures": ["Qwen4ExpForConditionalGeneration"], "image_token_id": 248056, "language_model_only": false,
"model_type": "qwen4_exp", "text_config": { "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 248044,
"dtype": "bfloat16", "eos_token_id": 248044, "full_attention_interval": 4, "hc_count": 4, "hc_lowrank": 320, "head_dim": 256,
"heads_per_ngram": 8, "hidden_act": "silu", "hidden_size": 2560, "indexer_budget": 2048, "indexer_compress_ratio": 4,
"indexer_head_dim": 128, "indexer_kv_heads": 1, "indexer_n_heads": 4, "initializer_range": 0.02,
"layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention", "linear_attention",
"linear_attention", "linear_attention", "full_attention", "linear_attention", "linear_attention", "linear_attention",
"full_attention", "linear_attention", "linear_attention", "linear_attention", "full_attention", "linear_attention",
"linear_attention", "linear_attention", "full_attention", "linear_attention", "linear_attention", "linear_attention",
"full_attention", "linear_attention", "linear_attention", "linear_attention", "full_attention", "linear_attention",
"linear_attention", "linear_attention", "full_attention", "linear_attention", "linear_attention", "linear_attention",
"full_attention", "linear_attention", "linear_attention", "linear_attention", "full_attention", "linear_attention",
"linear_attention", "linear_attention", "full_attention", "linear_attention", "linear_attention", "linear_attention",
"full_attention"],
"linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 48,
"linear_value_head_dim": 128, "make_ngram_vocab_size_divisible_by": 128, "mamba_ssm_dtype": "float32",
"max_position_embeddings": 262144, "model_type": "qwen4_exp_text", "moe_intermediate_size": 640, "mtp": { "hybrid": true,
"layer_types": ["full_attention"], "num_hidden_layers": 1, "rope_theta": 10000000.0 }, "mtp_num_hidden_layers": 1,
"mtp_use_dedicated_embeddings": false, "ngram_size": 3, "ngram_vocab_size_base": 20000000, "num_attention_heads": 24,
"num_experts": 512, "num_experts_per_tok": 10, "num_hidden_layers": 48, "num_key_value_heads": 2,
"output_gate_type": "sigmoid", "output_router_logits": false, "pad_token_id": null, "partial_rotary_factor": 0.25,
"ple_conv_kernel_size": 4, "ple_embed_dim": 2560, "ple_layer_ids": [2], "rms_norm_eps": 1e-06, "rope_parameters": {
"mrope_interleaved": true, "mrope_section": [11, 11, 10], "partial_rotary_factor": 0.25, "rope_theta": 10000000.0,
"rope_type": "default" }, "router_aux_loss_coef": 0.001, "shared_expert_intermediate_size": 640, "split_ngram_parts": 128,
"use_cache": true, "vocab_size": 248320 }, "tie_word_embeddings": false, "transformers_version": "5.8.0.dev0",
"video_token_id": 248057, "vision_config": { "deepstack_visual_indexes": [], "depth": 27, "hidden_act": "gelu_pytorch_tanh",
"hidden_size": 1152, "in_channels": 3, "initializer_range": 0.02, "intermediate_size": 4304, "model_type": "qwen4_exp",
"num_heads": 16, "num_position_embeddings": 2304, "out_hidden_size": 2560, "patch_size": 16, "spatial_merge_size": 2,
"temporal_patch_size": 2 }, "vision_end_token_id": 248054, "vision_start_token_id": 248053 })json";
}

}  // namespace tetrad
