#!/usr/bin/env python3
"""Adds to golden.json how far the reference itself moves on a GPU (`gpu_spread`), of which `tetrad verify --device cuda:N` allows twice.

stages: each recorded stage is computed on the GPU and compared, then replaced by the recorded one, so that the next starts from the same
place as on the CPU: what remains are the roundings of that stage alone.
logits: the worst of the ways in which a GPU may compute the same rows: a sequence alone or as one of two to eight equal ones, with and without
matrix products that add up in bf16.
Run by a developer on a machine with a GPU, with the versions that make_goldens.py asks for; on the CPU (--device cpu) every stage must come
out equal.

    add_gpu_spread.py --out DIR tests/goldens/rand-small tests/goldens/variant-*      writes DIR/<name>/golden.json
"""
import argparse
import json
import pathlib
import re
import sys

import torch
import transformers
from safetensors.torch import load_file

from make_goldens import FULL_ROWS, LAST_ROWS, load_model, text_model

RUN = "bf16_cpu"
LARGEST_L2, LARGEST_UNEQUAL = 0.05, 0.2  # of verify: where more differs, picks fell the other way, whose rows verify excuses by itself


def compare(got, recorded):
    """The measures of verify: relative L2 distance of the worst row, share of unequal elements; None if all are equal."""
    got, recorded = got.detach().float().cpu().reshape(-1, got.shape[-1]), recorded.float().reshape(-1, recorded.shape[-1])
    unequal = int((got != recorded).sum())
    if unequal == 0:
        return None
    norms = recorded.norm(dim=-1)
    distance = (got - recorded).norm(dim=-1)
    worst = (distance / norms.clamp_min(1e-30)).max().item()
    return {"l2": worst, "unequal": unequal / got.numel()}


class Forcing:
    """Hooks on every module whose inputs or outputs were recorded: compare, note, replace."""

    def __init__(self, model, golden, at):
        self.golden, self.at, self.spreads, self.handles, self.seen = golden, at, {}, [], set()
        for index, layer in enumerate(text_model(model).layers):
            self.force_layer(f"layer{index}.", layer)
        self.output("final.mixed", text_model(model).hyper_connection_mixer)

    def recorded(self, name):
        return self.golden.get(f"{self.at}{name}.{RUN}")

    def judge(self, name, tensor):
        recorded = self.recorded(name)
        if recorded is None:
            return tensor
        self.seen.add(name)
        distance = compare(tensor, recorded)
        if distance is not None:
            self.spreads[name] = distance
        return recorded.reshape(tensor.shape).to(tensor.device, tensor.dtype)

    def output(self, name, module, part=None):
        def hook(_, args, out):
            if part is None and not isinstance(out, tuple):
                return self.judge(name, out)
            index = part or 0
            return tuple(self.judge(name, value) if i == index else value for i, value in enumerate(out))
        self.handles.append(module.register_forward_hook(hook))

    def input(self, name, module):
        self.handles.append(module.register_forward_pre_hook(lambda _, args: (self.judge(name, args[0]), *args[1:])))

    def force_experts(self, at, gate):
        def hook(_, args, out):
            logits, weights, ids = out
            logits = self.judge(at + "moe.router_logits", logits)
            experts = self.recorded(at + "moe.experts")
            if experts is not None and not torch.equal(ids.cpu().int().sort(-1).values, experts.reshape(ids.shape).sort(-1).values):
                print(f"{self.at}{at}moe.experts: picks differ", file=sys.stderr)
            weights = self.judge(at + "moe.weights", weights)
            if experts is not None:
                ids = experts.reshape(ids.shape).to(ids.device, ids.dtype)
            return logits, weights, ids
        self.handles.append(gate.register_forward_hook(hook))

    def force_layer(self, at, layer):
        self.input(at + "stream_in", layer)
        if layer.ple is not None:
            self.output(at + "ple.embedding", layer.ple.ple_embedding)
            self.output(at + "ple.out", layer.ple)
        for half in ("attn", "mlp"):
            connection = getattr(layer, half + "_hyper_connection")
            self.output(at + half + ".mixed", connection, 0)
            self.output(at + half + ".inject", connection, 2)
        if layer.layer_type == "linear_attention":
            gdn = layer.linear_attn
            for name in ("qkv", "z", "b", "a"):
                self.output(f"{at}gdn.{name}_proj", getattr(gdn, "in_proj_" + name))
            self.input(at + "gdn.core", gdn.norm)
            self.output(at + "gdn.normed", gdn.norm)
            self.output(at + "attn.out", gdn)
        else:
            qsa = layer.self_attn
            self.output(at + "qsa.index_qk", qsa.indexer.index_qk_proj)
            selected = self.recorded(at + "qsa.selected")
            if selected is not None:
                def force_selection(_, args, out):
                    mask = torch.where(selected.to(out.device).bool()[:, None], 0.0, torch.finfo(out.dtype).min)
                    return mask.to(out.dtype).expand_as(out)
                self.handles.append(qsa.indexer.register_forward_hook(force_selection))
            for name in ("q_proj", "v_proj"):
                self.output(at + "qsa." + name, getattr(qsa, name))
            self.output(at + "qsa.q_normed", qsa.q_norm)
            self.output(at + "qsa.k_normed", qsa.k_norm)
            self.input(at + "qsa.gated", qsa.o_proj)
            self.output(at + "attn.out", qsa, 0)
        self.force_experts(at, layer.mlp.gate)
        self.output(at + "moe.routed_out", layer.mlp.experts)
        self.output(at + "moe.shared_out", layer.mlp.shared_expert)
        self.output(at + "moe.out", layer.mlp)
        self.output(at + "stream_out", layer)

    def close(self):
        for handle in self.handles:
            handle.remove()


def logit_measures(got, recorded):
    """The measures of verify: what a pick costs at most in the recorded logits; mean and 99th percentile of the differences."""
    got, recorded = got.cpu().double(), recorded.double()
    regret = (recorded.max(-1).values - recorded.gather(-1, got.argmax(-1, keepdim=True))[..., 0]).max().item()
    differences = (got - recorded).abs().flatten().sort().values
    return {"regret": regret, "mean": differences.mean().item(), "p99": differences[int(0.99 * (differences.numel() - 1))].item()}


@torch.no_grad()
def logits_of(model, tokens, decode_ids, copies):
    """Of the first of `copies` equal sequences: the rows that goldens hold of the prompt, and those of tokens fed one by one."""
    device = next(model.parameters()).device
    out = model(input_ids=torch.tensor([tokens] * copies, device=device), use_cache=True)
    logits, cache, rows = out.logits[0].float(), out.past_key_values, []
    for token in decode_ids:
        out = model(input_ids=torch.tensor([[token]] * copies, device=device), past_key_values=cache, use_cache=True)
        rows.append(out.logits[0, -1].float())
    return {"logits": logits if len(tokens) <= FULL_ROWS else logits[-LAST_ROWS:], "decode_logits": torch.stack(rows)}


def logit_spread(model, golden, at):
    """Per kind, the largest of each measure over the ways."""
    spread = {}
    switch = torch.backends.cuda.matmul
    usual = switch.allow_bf16_reduced_precision_reduction
    for copies in (1, 2, 3, 5, 8):
        for reduced in (usual, not usual):
            switch.allow_bf16_reduced_precision_reduction = reduced
            for kind, got in logits_of(model, golden[at + "tokens"].tolist(), golden[at + "decode_ids"].tolist(), copies).items():
                measures = logit_measures(got, golden[f"{at}{kind}.{RUN}"].float())
                known = spread.setdefault(at + kind, measures)
                spread[at + kind] = {name: max(known[name], value) for name, value in measures.items()}
    switch.allow_bf16_reduced_precision_reduction = usual
    return spread


@torch.no_grad()
def add(directory, out, device):
    golden = load_file(directory / "golden.safetensors")
    report = json.loads((directory / "golden.json").read_text())
    model = load_model(directory, torch.bfloat16).to(device)
    spreads, logits = {}, {}
    for case in range(len(report["cases"])):
        at = f"case{case}."
        logits.update(logit_spread(model, golden, at))
        names = {n.removeprefix(at).removesuffix("." + RUN) for n in golden if n.startswith((at + "layer", at + "final")) and n.endswith("." + RUN)}
        if not names:
            continue
        forcing = Forcing(model, golden, at)
        model(input_ids=golden[at + "tokens"][None].long().to(device), use_cache=True)
        forcing.close()
        missing = names - forcing.seen - {n for n in names if re.search(r"\.(experts|selected)$", n)}
        if missing:
            raise RuntimeError(f"{directory}: stages that no hook met: {sorted(missing)}")
        for name, spread in forcing.spreads.items():
            if spread["l2"] <= LARGEST_L2 and spread["unequal"] <= LARGEST_UNEQUAL:
                spreads[at + name] = spread
            else:
                print(f"{directory.name} {at}{name}: {spread} is left out, picks differ", file=sys.stderr)
    report["gpu_spread"] = {"device": torch.cuda.get_device_name() if device != "cpu" else "cpu", "stages": spreads, "logits": logits}
    (out / directory.name).mkdir(parents=True, exist_ok=True)
    (out / directory.name / "golden.json").write_text(json.dumps(report, indent=1) + "\n")
    print(directory.name, f"{len(spreads)} stages differ", dict(sorted(spreads.items(), key=lambda s: -s[1]["l2"])[:5]))
    print(directory.name, {kind: spread["mean"] for kind, spread in logits.items()})
    return len(spreads)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("directories", nargs="+", type=pathlib.Path)
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    counts = [add(directory, options.out, options.device) for directory in options.directories]
    return 1 if options.device == "cpu" and any(counts) else 0


if __name__ == "__main__":
    sys.exit(main())
