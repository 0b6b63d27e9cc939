"""The models of tests/goldens/variant-*: what make_goldens.py builds. tests/goldens/README.md says what each of them proves."""

DECODE_STEPS = 8
TAPPED_TOKENS = 40  # the prompt that records its stages

BASE = {
    "model_type": "qwen4_exp_text",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-06,
    "max_position_embeddings": 1024,
    "num_hidden_layers": 4,
    "linear_conv_kernel_dim": 4,
    "indexer_kv_heads": 1,
    "attention_bias": False,
}

GDN, QSA = "linear_attention", "full_attention"

# The smallest vision tower the library builds. Text never reaches it.
VISION = {
    "model_type": "qwen4_exp_vision",
    "depth": 1,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_heads": 2,
    "in_channels": 3,
    "patch_size": 4,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "num_position_embeddings": 16,
    "hidden_act": "gelu_pytorch_tanh",
}


def rope(head_dim, partial, theta=1e7, **more):
    pairs = int(head_dim * partial) // 2
    section = [(pairs + 2 - i) // 3 for i in range(3)]  # text gives all three the same positions
    return {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": partial, "mrope_section": section,
            "mrope_interleaved": True, **more}


VARIANTS = [
    {
        "name": "streams3",
        "seed": 301,
        "layout": "flat",
        "files": 1,
        "text": {
            "vocab_size": 128, "hidden_size": 48, "hc_count": 3, "hc_lowrank": 12, "layer_types": [GDN, QSA, GDN, QSA],
            "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 16, "rope_parameters": rope(16, 0.5),
            "indexer_n_heads": 4, "indexer_head_dim": 16, "indexer_budget": 16, "indexer_compress_ratio": 4,
            "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
            "output_gate_type": "silu", "num_experts": 6, "num_experts_per_tok": 3, "norm_topk_prob": False,
            "moe_intermediate_size": 24, "shared_expert_intermediate_size": 32, "eos_token_id": 2,
            "ple_layer_ids": [1], "ple_embed_dim": 48, "ngram_size": 3, "heads_per_ngram": 4, "ngram_vocab_size_base": 300,
            "split_ngram_parts": 4,
        },
    },
    {
        "name": "ratio8",
        "seed": 802,
        "layout": "published",
        "files": 2,
        "vision": VISION,
        "tied": True,
        "text": {
            "vocab_size": 128, "hidden_size": 40, "hc_count": 4, "hc_lowrank": 12, "full_attention_interval": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 24, "rope_parameters": rope(24, 0.5),
            "indexer_n_heads": 3, "indexer_head_dim": 16, "indexer_budget": 32, "indexer_compress_ratio": 8,
            "linear_num_key_heads": 2, "linear_num_value_heads": 6, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
            "linear_conv_kernel_dim": 3, "output_gate_type": "sigmoid", "num_experts": 8, "num_experts_per_tok": 2,
            "moe_intermediate_size": 24, "shared_expert_intermediate_size": 32, "eos_token_id": 3,
            "ple_layer_ids": [3], "ngram_size": 3, "heads_per_ngram": 4, "ngram_vocab_size_base": 200,
            "make_ngram_vocab_size_divisible_by": 24, "split_ngram_parts": 12,
        },
    },
    {
        "name": "ngram4",
        "seed": 403,
        "layout": "flat",
        "files": 1,
        "text": {
            "vocab_size": 101, "hidden_size": 40, "hc_count": 2, "hc_lowrank": 10, "num_hidden_layers": 5,
            "layer_types": [GDN, QSA, GDN, GDN, QSA],
            "num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 24, "rope_parameters": rope(24, 0.25),
            "indexer_n_heads": 5, "indexer_head_dim": 10, "indexer_budget": 12, "indexer_compress_ratio": 3,
            "linear_num_key_heads": 1, "linear_num_value_heads": 4, "linear_key_head_dim": 12, "linear_value_head_dim": 20,
            "output_gate_type": "sigmoid", "num_experts": 7, "num_experts_per_tok": 3,
            "moe_intermediate_size": 24, "shared_expert_intermediate_size": 20, "eos_token_id": [5, 9],
            "ple_layer_ids": [1, 3], "ple_embed_dim": 36, "ple_conv_kernel_size": 3, "ngram_size": 4, "heads_per_ngram": 4,
            "ngram_vocab_size_base": 150, "seed": 77, "split_ngram_parts": 2,
        },
    },
    {
        "name": "ngram2",
        "seed": 204,
        "layout": "flat",
        "files": 2,
        "text": {
            "vocab_size": 96, "hidden_size": 32, "hc_count": 4, "hc_lowrank": 8, "num_hidden_layers": 3, "layer_types": [GDN, QSA, GDN],
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
            "rope_parameters": rope(16, 1.0, 1e4, rope_type="yarn", factor=4.0, original_max_position_embeddings=64),
            "max_position_embeddings": 256,
            "indexer_n_heads": 4, "indexer_head_dim": 16, "indexer_budget": 8, "indexer_compress_ratio": 2,
            "linear_num_key_heads": 3, "linear_num_value_heads": 3, "linear_key_head_dim": 16, "linear_value_head_dim": 24,
            "linear_conv_kernel_dim": 2, "output_gate_type": "sigmoid", "num_experts": 5, "num_experts_per_tok": 2,
            "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "eos_token_id": 0,
            "ple_layer_ids": [3], "ple_embed_dim": 40, "ple_conv_kernel_size": 2, "ngram_size": 2, "heads_per_ngram": 5,
            "ngram_vocab_size_base": 100, "split_ngram_parts": 1,
        },
    },
    {
        "name": "nople",
        "seed": 505,
        "layout": "published",
        "files": 1,
        "vision": VISION,
        "text": {
            "vocab_size": 112, "hidden_size": 48, "hc_count": 2, "hc_lowrank": 12, "layer_types": [QSA, QSA, GDN, QSA],
            "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 16, "rope_parameters": rope(16, 0.5),
            "indexer_n_heads": 6, "indexer_head_dim": 8, "indexer_budget": 12, "indexer_compress_ratio": 4,
            "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 24, "linear_value_head_dim": 16,
            "num_experts": 4, "num_experts_per_tok": 1, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 40,
        },
    },
    {
        "name": "fp8",
        "seed": 806,
        "layout": "published",
        "files": 2,
        "vision": VISION,
        "fp8_block": [32, 32],
        "text": {
            "vocab_size": 128, "hidden_size": 48, "hc_count": 4, "hc_lowrank": 12, "num_hidden_layers": 3, "layer_types": [GDN, QSA, GDN],
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "rope_parameters": rope(16, 0.5),
            "indexer_n_heads": 4, "indexer_head_dim": 16, "indexer_budget": 16, "indexer_compress_ratio": 4,
            "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
            "output_gate_type": "sigmoid", "num_experts": 6, "num_experts_per_tok": 2,
            "moe_intermediate_size": 40, "shared_expert_intermediate_size": 32, "eos_token_id": 1,
            "ple_layer_ids": [1], "ple_embed_dim": 48, "ngram_size": 3, "heads_per_ngram": 4, "ngram_vocab_size_base": 300,
            "split_ngram_parts": 4,
        },
    },
]


def text_config(variant):
    return {**BASE, **variant["text"]}


def top_config(variant):
    """config.json of the variant: the text fields alone, or under text_config beside the vision tower."""
    text, tied = text_config(variant), variant.get("tied", False)
    if "vision" not in variant:
        return {"architectures": ["Qwen4ExpForCausalLM"], "dtype": "bfloat16", "tie_word_embeddings": tied, **text}
    vocab = text["vocab_size"]
    return {"architectures": ["Qwen4ExpForConditionalGeneration"], "model_type": "qwen4_exp", "dtype": "bfloat16",
            "tie_word_embeddings": tied, "image_token_id": vocab - 4, "video_token_id": vocab - 3, "vision_start_token_id": vocab - 2,
            "vision_end_token_id": vocab - 1, "text_config": {**text, "tie_word_embeddings": tied},
            "vision_config": {**variant["vision"], "out_hidden_size": text["hidden_size"]}}


def prompt_lengths(variant):
    """One token, two, the first that follows a complete block, one with stages, one far past the budget."""
    return [1, 2, variant["text"]["indexer_compress_ratio"] + 1, TAPPED_TOKENS, 150]
