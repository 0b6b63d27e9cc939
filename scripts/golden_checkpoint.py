"""Random checkpoints for make_goldens.py: weights from a seed, the layouts releases use, and block-scaled FP8."""
import json
import math
import re
import zlib

import torch
from safetensors.torch import load_file, save_file
from transformers.models.qwen4_exp import modeling_qwen4_exp as reference

FP8_MAX = 448.0
TABLE = "ple_embedding.ngram_embedding"


# --- Weights -------------------------------------------------------------------------------------------------------------------------

def generator(*key):
    """A random stream of its own for every key, so that adding a tensor or a case moves no other."""
    return torch.Generator().manual_seed(zlib.crc32(repr(key).encode()))


def random_weight(name, like, seed, tied):
    """Values on the scales of a trained model: norms off their centre, routers and gates spread, decays from slow to fast."""
    g = generator(seed, name)
    normal = torch.randn(like.shape, generator=g)
    module = name.removesuffix(".weight").rsplit(".", 1)[-1]
    fan_in = math.prod(like.shape[1:]) if like.dim() == 2 else like.shape[-1]
    if ".visual." in name:
        return 0.02 * normal
    if name.endswith("A_log"):
        return torch.empty(like.shape).uniform_(0.05, 4.0, generator=g).log()
    if name.endswith("dt_bias"):
        return -1.5 + 0.7 * normal
    if name.endswith("linear_attn.norm.weight"):
        return 1.0 + 0.2 * normal
    if "norm" in module:
        return 0.2 * normal
    if module == "conv1d":
        return 0.7 / math.sqrt(like.shape[-1]) * normal
    if module == "embed_tokens":
        return (1.2 / math.sqrt(fan_in) if tied else 1.0) * normal
    if module == "ngram_embedding":
        return normal
    if module in ("input_mix_weight_down", "input_mix_weight_up", "block_inject_weight"):
        return 3.0 / math.sqrt(fan_in) * normal
    if module in ("gate", "shared_expert_gate"):
        return 2.0 / math.sqrt(fan_in) * normal
    return 1.2 / math.sqrt(fan_in) * normal


def model_class(config):
    return reference.Qwen4ExpForConditionalGeneration if "text_config" in config else reference.Qwen4ExpForCausalLM


def library_config(config):
    return model_class(config).config_class(**{k: v for k, v in config.items() if k != "quantization_config"})


def random_state(config, seed):
    """Every tensor of the model under the library's names, values exact in bfloat16; integer tensors keep the library's values."""
    tied = config["tie_word_embeddings"]
    state = model_class(config)(library_config(config)).state_dict()
    if tied:
        del state["lm_head.weight"]
    return {name: random_weight(name, t, seed, tied).bfloat16() if t.is_floating_point() else t.clone() for name, t in state.items()}


# --- Checkpoint layouts --------------------------------------------------------------------------------------------------------------

def split_table(state, parts):
    """The n-gram tables as `parts` row slices each, as checkpoints store them."""
    out = {}
    for name, tensor in state.items():
        if not name.endswith(TABLE + ".weight"):
            out[name] = tensor
            continue
        if tensor.shape[0] % parts:
            raise ValueError(f"{name}: {tensor.shape[0]} rows do not split into {parts} equal parts")
        for i, part in enumerate(tensor.chunk(parts)):
            out[f"{name.removesuffix('.weight')}.shard_{i}.weight"] = part.contiguous()
    return out


def split_experts(state):
    """Expert stacks as one matrix per expert and projection."""
    out = {}
    for name, tensor in state.items():
        stem, _, kind = name.rpartition(".")
        if not stem.endswith("mlp.experts"):
            out[name] = tensor
            continue
        for e, matrix in enumerate(tensor):
            parts = zip(("gate_proj", "up_proj"), matrix.chunk(2)) if kind == "gate_up_proj" else [("down_proj", matrix)]
            for projection, values in parts:
                out[f"{stem}.{e}.{projection}.weight"] = values.contiguous()
    return out


def is_expert(name):
    return re.search(r"mlp\.experts\.\d+\.\w+_proj\.weight$", name) is not None


def over_blocks(scale, shape, block):
    """One scale per block, spread over the block's elements; blocks at the right and lower edge may be cut."""
    return scale.repeat_interleave(block[0], 0)[:shape[0]].repeat_interleave(block[1], 1)[:, :shape[1]]


def quantise(state, block):
    """Routed experts in block-scaled FP8, n-gram tables in FP8 with one scale each; the rest stays as it is."""
    out = {}
    for name, tensor in state.items():
        if is_expert(name):
            rows, columns = (math.ceil(n / b) for n, b in zip(tensor.shape, block))
            peak = torch.stack([torch.stack([tensor[r * block[0]:(r + 1) * block[0], c * block[1]:(c + 1) * block[1]].float().abs().max()
                                             for c in range(columns)]) for r in range(rows)])
            scale = (peak / FP8_MAX).bfloat16()
            codes = (tensor.float() / over_blocks(scale.float(), tensor.shape, block)).clamp(-FP8_MAX, FP8_MAX)
            out[name], out[name + "_scale_inv"] = codes.to(torch.float8_e4m3fn), scale
        elif name.endswith(TABLE + ".weight"):
            scale = (tensor.float().abs().max() / FP8_MAX).bfloat16().reshape(1)
            out[name] = (tensor.float() / scale.float()).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)
            out[name + "_scale"] = scale
        else:
            out[name] = tensor
    return out


def dequantise(tensors, block):
    """What the codes mean: experts code*scale in float32, unrounded; table rows bf16(code*scale)."""
    out = {}
    for name, tensor in tensors.items():
        if name.endswith(("weight_scale_inv", "weight_scale")):
            continue
        if tensor.dtype != torch.float8_e4m3fn:
            out[name] = tensor
        elif is_expert(name):
            out[name] = tensor.float() * over_blocks(tensors[name + "_scale_inv"].float(), tensor.shape, block)
        else:
            out[name] = tensor.bfloat16() * tensors[re.sub(r"shard_\d+\.weight$", "weight_scale", name)]
    return out


def write_checkpoint(directory, config, tensors, files):
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    if files == 1:
        save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
        return
    names = sorted(tensors)
    index = {name: f"model-{i % files + 1:05d}-of-{files:05d}.safetensors" for i, name in enumerate(names)}
    for file in sorted(set(index.values())):
        save_file({n: tensors[n] for n in names if index[n] == file}, directory / file, metadata={"format": "pt"})
    total = sum(t.nbytes for t in tensors.values())
    text = json.dumps({"metadata": {"total_size": total}, "weight_map": index}, indent=1)
    (directory / "model.safetensors.index.json").write_text(text + "\n")


def read_tensors(directory):
    return {name: t for file in sorted(directory.glob("model*.safetensors")) for name, t in load_file(file).items()}
