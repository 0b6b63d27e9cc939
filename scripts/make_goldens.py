#!/usr/bin/env python3
"""Makes the reference goldens of tests/goldens/variant-*: small random models of unusual but legal geometries.

A developer runs this with torch 2.11.0 and transformers 5.17.0; CI never does. Weights, prompts and files follow from the seeds below
alone. Logits follow from them and the machine: another processor may round a few bf16 results differently, which is why the files are
kept, and why `--check` says how far a fresh run lies from what a directory holds.

    make_goldens.py                      make every variant under tests/goldens
    make_goldens.py --only ratio8 fp8    make some of them
    make_goldens.py --check DIR...       run the reference again on existing directories and report the differences
"""
import argparse
import contextlib
import hashlib
import itertools
import json
import math
import pathlib
import platform
import re
import sys
import tempfile

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch.overrides import TorchFunctionMode
from transformers.models.qwen4_exp import modeling_qwen4_exp as reference

from golden_checkpoint import (dequantise, generator, library_config, model_class, quantise, random_state, read_tensors, split_experts,
                               split_table, write_checkpoint)
from golden_variants import DECODE_STEPS, TAPPED_TOKENS, VARIANTS, prompt_lengths, text_config, top_config

VERSIONS = {"torch": "2.11.0", "transformers": "5.17.0"}
RUNS = {"f32_cpu": torch.float32, "bf16_cpu": torch.bfloat16}
FULL_ROWS = 64   # prompts longer than this keep only their last rows of logits
LAST_ROWS = 16
ATTEMPTS = 100   # prompts tried for a case
CANDIDATES = 16  # usable ones a short case chooses from
FP8_NOTE = ("The reference ran on dequantised weights: experts float(code)*float(scale), kept in float32 for f32_cpu and rounded to "
            "bfloat16 for bf16_cpu; table rows bf16(code*scale) in both.")
GOLDENS = pathlib.Path(__file__).resolve().parent.parent / "tests" / "goldens"


# --- The reference -------------------------------------------------------------------------------------------------------------------

@contextlib.contextmanager
def readable(directory):
    """The directory itself or, if it is quantised, a copy with the values its codes stand for."""
    config = json.loads((directory / "config.json").read_text())
    quantization = config.pop("quantization_config", None)
    if quantization is None:
        yield directory
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder)
        write_checkpoint(copy, config, dequantise(read_tensors(directory), quantization["weight_block_size"]), 1)
        yield copy


def load_model(directory, dtype):
    """The model as the library reads it from disk. Casting a loaded model instead would round its rotary frequencies."""
    kind = model_class(json.loads((directory / "config.json").read_text()))
    with readable(directory) as folder:
        model, info = kind.from_pretrained(folder, dtype=dtype, attn_implementation="eager", output_loading_info=True)
    for key in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info[key]:
            raise RuntimeError(f"{directory}: {key} {sorted(info[key])[:5]}")
    text = text_model(model)
    if text.rotary_emb.inv_freq.dtype != torch.float32:
        raise RuntimeError(f"rotary frequencies are {text.rotary_emb.inv_freq.dtype}, expected float32")
    if text.config._experts_implementation != "grouped_mm":
        raise RuntimeError(f"experts run by {text.config._experts_implementation}, expected the library's default, grouped_mm")
    return model.eval()


def text_model(model):
    return next(m for m in model.modules() if isinstance(m, reference.Qwen4ExpTextModel))


class Gaps(TorchFunctionMode):
    """How close the top-k picks are: the smallest gap between a kept and a dropped value, relative to the kept one.

    `blocks` are the indexer's (scores of one query), `experts` the router's (probabilities of many rows).
    """

    def __init__(self):
        super().__init__()
        self.smallest = {"blocks": math.inf, "experts": math.inf}

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in (torch.topk, torch.Tensor.topk) and args[1] < args[0].shape[-1]:
            ordered = args[0].sort(dim=-1, descending=True).values
            kept, dropped = ordered[..., args[1] - 1], ordered[..., args[1]]
            kind = "blocks" if args[0].dim() == 1 else "experts"
            gap = ((kept - dropped) / kept.clamp_min(1e-30)).min().item()
            self.smallest[kind] = min(self.smallest[kind], gap)
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def taps(model, run, every):
    """Records the stages of one forward pass: the main ones of all layers, all of them in bf16 for the layers in `every`."""
    recorded, handles, text = {}, [], text_model(model)

    def tap(name, module, pick=lambda args, out: out):
        handles.append(module.register_forward_hook(
            lambda _, args, out: recorded.__setitem__(name, pick(args, out).detach().clone().contiguous())))

    for index, layer in enumerate(text.layers):
        at = f"layer{index}."
        attention = layer.linear_attn if layer.layer_type == "linear_attention" else layer.self_attn
        tap(at + "attn.out", attention, lambda _, out: out[0] if isinstance(out, tuple) else out)
        tap(at + "moe.router_logits", layer.mlp.gate, lambda _, out: out[0])
        tap(at + "moe.experts", layer.mlp.gate, lambda _, out: out[2].int())
        tap(at + "moe.out", layer.mlp)
        tap(at + "stream_out", layer)
        if run == "bf16_cpu" and index in every:
            tap_details(tap, at, layer)
    tap("final.mixed", text.hyper_connection_mixer)
    try:
        yield recorded
    finally:
        for handle in handles:
            handle.remove()


def tap_details(tap, at, layer):
    tap(at + "stream_in", layer, lambda args, _: args[0])
    if layer.ple is not None:
        tap(at + "ple.embedding", layer.ple.ple_embedding)
        tap(at + "ple.out", layer.ple)
    for half in ("attn", "mlp"):
        connection = getattr(layer, half + "_hyper_connection")
        tap(at + half + ".mixed", connection, lambda _, out: out[0])
        tap(at + half + ".inject", connection, lambda _, out: out[2])
    if layer.layer_type == "linear_attention":
        gdn = layer.linear_attn
        for name in ("qkv", "z", "b", "a"):
            tap(f"{at}gdn.{name}_proj", getattr(gdn, "in_proj_" + name))
        tap(at + "gdn.core", gdn.norm, lambda args, _: args[0])
        tap(at + "gdn.normed", gdn.norm)
    else:
        qsa = layer.self_attn
        tap(at + "qsa.index_qk", qsa.indexer.index_qk_proj)
        tap(at + "qsa.selected", qsa.indexer, lambda _, out: (out == 0)[:, 0].to(torch.uint8))
        for name in ("q_proj", "v_proj"):
            tap(at + "qsa." + name, getattr(qsa, name))
        tap(at + "qsa.q_normed", qsa.q_norm)
        tap(at + "qsa.k_normed", qsa.k_norm)
        tap(at + "qsa.gated", qsa.o_proj, lambda args, _: args[0])
    tap(at + "moe.weights", layer.mlp.gate, lambda _, out: out[1])
    tap(at + "moe.routed_out", layer.mlp.experts)
    tap(at + "moe.shared_out", layer.mlp.shared_expert)


@torch.no_grad()
def run_case(model, tokens, decode_ids=None):
    """Logits of the prompt at once, then of tokens fed one by one from the cache: `decode_ids`, or the greedy picks."""
    out = model(input_ids=torch.tensor([tokens]), use_cache=True)
    logits, cache, ids, rows = out.logits[0].float(), out.past_key_values, [], []
    last = logits[-1]
    for step in range(DECODE_STEPS):
        ids.append(int(last.argmax()) if decode_ids is None else decode_ids[step])
        last = model(input_ids=torch.tensor([[ids[-1]]]), past_key_values=cache, use_cache=True).logits[0, -1].float()
        rows.append(last)
    return logits if len(tokens) <= FULL_ROWS else logits[-LAST_ROWS:].clone(), torch.stack(rows), ids


def tapped_layers(config):
    """Layers that record every stage: those with n-gram embeddings (or the first recurrent one) and the first sparse one."""
    text = library_config(config)
    text = getattr(text, "text_config", text)
    ple = {i - 1 for i in text.ple_layer_ids} or {text.layer_types.index("linear_attention")}
    return ple | {text.layer_types.index("qwen_sparse_attention")}


@torch.no_grad()
def record_stages(model, run, tokens, every):
    with taps(model, run, every) as stages:
        model(input_ids=torch.tensor([tokens]), use_cache=True)
    return stages


# --- Making ----------------------------------------------------------------------------------------------------------------------------

def prompt(variant, case, attempt, length):
    """Random ids with a repeated span and, where the model has one, ends of text: inside, doubled, and last in the short prompt."""
    config = text_config(variant)
    special = 4 if "vision" in variant else 0  # ids of the image and video tokens, last in the vocabulary
    g = generator(variant["seed"], "prompt", case, attempt)
    tokens = torch.randint(0, config["vocab_size"] - special, (length,), generator=g).tolist()
    if length >= 24:
        tokens[-length // 4:-length // 4 + 5] = tokens[3:8]
    eos = config.get("eos_token_id")
    if eos is not None and length > 2:
        first, *others = eos if isinstance(eos, list) else [eos]
        places = [length - 1] if length < 24 else [length // 3, length // 2, length // 2 + 1]
        for place in places:
            tokens[place] = first
        for i, other in enumerate(others):  # ids that end a text elsewhere, but not here
            tokens[places[0] - 1 - i] = other
    return tokens


def make_case(models, variant, case, length):
    """The prompt, the results of both runs and their gaps.

    Of several short prompts the one with the clearest picks in float32 is kept, so that roundings seldom turn into another block or
    expert. How far the two runs then lie apart must not enter the choice: tolerances are made of that distance. Long prompts always hold
    close picks, so there the first one serves. No prompt leaves a block pick open (the order of equal scores is unspecified) or decodes
    to an id that stands for an image.
    """
    short = length <= FULL_ROWS
    found = candidates(models["f32_cpu"], variant, case, length)
    if short:
        found = sorted(itertools.islice(found, CANDIDATES), key=lambda c: -min(c[2].values()))
    for tokens, result, gaps in found:
        other, other_gaps = measured(models["bf16_cpu"], tokens, result[2])
        if other_gaps["blocks"] > 0 and (other_gaps["experts"] > 0 or not short):
            smallest = {"f32_cpu": gaps, "bf16_cpu": other_gaps}
            results = {"f32_cpu": result, "bf16_cpu": other}
            return tokens, results, {run: {k: v for k, v in gap.items() if v < math.inf} for run, gap in smallest.items()}
    raise RuntimeError(f"{variant['name']} case {case}: no prompt leaves every pick decided")


def measured(model, tokens, ids=None):
    with Gaps() as gaps:
        return run_case(model, tokens, ids), gaps.smallest


def candidates(model, variant, case, length):
    text_ids = text_config(variant)["vocab_size"] - (4 if "vision" in variant else 0)
    for attempt in range(ATTEMPTS):
        tokens = prompt(variant, case, attempt, length)
        result, gaps = measured(model, tokens)
        if max(result[2]) < text_ids and gaps["blocks"] > 0:
            yield tokens, result, gaps


def spread(results, kind):
    f32, bf16 = results["f32_cpu"][kind], results["bf16_cpu"][kind]
    return {"bf16cpu_vs_f32": (bf16 - f32).abs().max().item(), "std": f32.std().item()}


def make_checkpoint(variant, directory):
    config = top_config(variant)
    state = random_state(config, variant["seed"])
    if variant["layout"] == "flat" or "fp8_block" in variant:
        state = split_experts(state)
    if "fp8_block" in variant:
        block = variant["fp8_block"]
        state = quantise(state, block)
        linears = [n for n, m in model_class(config)(library_config(config)).named_modules() if isinstance(m, torch.nn.Linear)]
        routers = [n.removesuffix(".weight") for n in state if n.endswith("mlp.gate.weight")]
        config["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": block,
                                         "modules_to_not_convert": sorted(linears + routers)}
    write_checkpoint(directory, config, split_table(state, text_config(variant).get("split_ngram_parts", 1)), variant["files"])


def make(variant, out):
    directory = out / ("variant-" + variant["name"])
    directory.mkdir(parents=True, exist_ok=True)
    for old in directory.iterdir():
        old.unlink()
    make_checkpoint(variant, directory)
    models = {run: load_model(directory, dtype) for run, dtype in RUNS.items()}
    config = top_config(variant)
    tensors, cases, spreads = {}, [], {}
    for case, length in enumerate(prompt_lengths(variant)):
        tokens, results, gaps = make_case(models, variant, case, length)
        at = f"case{case}."
        tensors[at + "tokens"] = torch.tensor(tokens, dtype=torch.int32)
        tensors[at + "decode_ids"] = torch.tensor(results["f32_cpu"][2], dtype=torch.int32)
        for run, (logits, decoded, _) in results.items():
            tensors[f"{at}logits.{run}"], tensors[f"{at}decode_logits.{run}"] = logits, decoded
            if length == TAPPED_TOKENS:
                stages = record_stages(models[run], run, tokens, tapped_layers(config))
                tensors.update({f"{at}{name}.{run}": t for name, t in stages.items()})
        spreads[at + "logits"], spreads[at + "decode_logits"] = spread(results, 0), spread(results, 1)
        cases.append({"case": case, "tokens": length, "taps": length == TAPPED_TOKENS, "smallest_gap": gaps})
        print(f"{directory.name} {at}{length}: {spreads[at + 'logits']} gaps {gaps['bf16_cpu']}", flush=True)
    save_file(tensors, directory / "golden.safetensors", metadata={"format": "pt"})
    report = {"transformers": transformers.__version__, "torch": torch.__version__.split("+")[0],
              "platform": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}", "seed": variant["seed"], "cases": cases,
              "config": text_config(variant), "inv_freq_dtype": "torch.float32",
              "config_sha256": hashlib.sha256((directory / "config.json").read_bytes()).hexdigest(), "reference_spread": spreads}
    if "fp8_block" in variant:
        report["note"] = FP8_NOTE
    (directory / "golden.json").write_text(json.dumps(report, indent=1) + "\n")


# --- Checking --------------------------------------------------------------------------------------------------------------------------

def check(directory):
    """Runs the reference again on what the directory holds. False if a logit lies further off than the reference's own spread."""
    golden = load_file(directory / "golden.safetensors")
    spreads = json.loads((directory / "golden.json").read_text())["reference_spread"]
    every = {int(m[1]) for name in golden if (m := re.search(r"\.layer(\d+)\.stream_in\.", name))}
    models = {run: load_model(directory, dtype) for run, dtype in RUNS.items()}
    good, count, equal = True, 0, 0
    for case in range(sum(name.endswith(".tokens") for name in golden)):
        at = f"case{case}."
        tokens, ids = golden[at + "tokens"].tolist(), golden[at + "decode_ids"].tolist()
        for run, model in models.items():
            logits, decoded, greedy = run_case(model, tokens, None if run == "f32_cpu" else ids)
            fresh = {f"logits.{run}": logits, f"decode_logits.{run}": decoded}
            if greedy != ids:
                print(f"{directory.name} {at}decode_ids: recorded {ids}, got {greedy}")
                good = False
            if at + "final.mixed." + run in golden:
                fresh.update({f"{name}.{run}": t for name, t in record_stages(model, run, tokens, every).items()})
                recorded = {n.removeprefix(at) for n in golden if n.startswith((at + "layer", at + "final")) and n.endswith("." + run)}
                for name in sorted(recorded ^ {n for n in fresh if "logits" not in n.split(".")[0] and "decode" not in n}):
                    print(f"{directory.name} {at}{name}: only {'recorded' if name in recorded else 'in the fresh run'}")
                    good = False
            for name, tensor in fresh.items():
                old = golden.get(at + name)
                if old is None:
                    continue
                if old.dtype != tensor.dtype or old.shape != tensor.shape:
                    print(f"{directory.name} {at}{name}: recorded {old.dtype} {tuple(old.shape)}, got {tensor.dtype} {tuple(tensor.shape)}")
                    good = False
                    continue
                count, equal = count + 1, equal + torch.equal(old, tensor)
                difference = (old.float() - tensor.float()).abs().max().item()
                floor = spreads.get(at + name.removesuffix("." + run), {}).get("bf16cpu_vs_f32", math.inf)
                good = good and difference <= floor
                if difference:
                    unequal = int((old != tensor).sum())
                    print(f"{directory.name} {at}{name}: largest difference {difference:.3g}, {unequal} of {old.numel()} unequal")
    print(f"{directory.name}: {equal} of {count} tensors equal to the bit", flush=True)
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=GOLDENS, help="where the variants go (default: tests/goldens)")
    parser.add_argument("--only", nargs="+", choices=sorted(v["name"] for v in VARIANTS), help="make these variants only")
    parser.add_argument("--check", nargs="+", type=pathlib.Path, metavar="DIR", help="check these directories; make nothing")
    options = parser.parse_args()
    for package, wanted in VERSIONS.items():
        got = sys.modules[package].__version__.split("+")[0]
        if got != wanted:
            parser.error(f"{package} is {got}; the goldens come from {wanted}")
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    if options.check:
        return 0 if all([check(directory) for directory in options.check]) else 1
    for variant in VARIANTS:
        if options.only is None or variant["name"] in options.only:
            make(variant, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
