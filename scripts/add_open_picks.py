#!/usr/bin/env python3
"""Adds to golden.json (`open_picks`) the index blocks that the reference chose where its own runs leave the choice open.

A row's choice is open where the last block it takes and the first it leaves lie no further apart than their two scores move together from
the bf16 CPU run to another one (float32 on the CPU, bf16 on a GPU). `tetrad verify` goes on with these blocks in such a row, if its own
differ by no more than twice that. Only rows whose logits were recorded are looked at, in cases without recorded stages: those hold
their selections anyway.
Run by a developer with the versions that make_goldens.py asks for, where the recorded bf16 CPU logits come out to the bit: elsewhere the
blocks could be others, and a case that does not agree is refused.

    add_open_picks.py --out DIR tests/goldens/rand-heads      writes DIR/<name>/golden.json
"""
import argparse
import json
import pathlib

import torch
import transformers
from safetensors.torch import load_file
from torch.overrides import TorchFunctionMode

from make_goldens import load_model, text_model

RUNS = {"bf16_cpu": (torch.bfloat16, "cpu"), "f32_cpu": (torch.float32, "cpu"), "bf16_gpu": (torch.bfloat16, "cuda")}


class Choices(TorchFunctionMode):
    """The scores and count of every choice among blocks: one query at a time, in order of rows, layer after layer."""

    def __init__(self):
        super().__init__()
        self.choices = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in (torch.topk, torch.Tensor.topk) and args[0].dim() == 1:
            self.choices.append((args[0].detach().double().cpu(), args[1]))
        return func(*args, **(kwargs or {}))


@torch.no_grad()
def choices_of(model, tokens):
    """Per sparse layer, per row with complete blocks: scores and count; and the prompt's logits."""
    with Choices() as seen:
        out = model(input_ids=torch.tensor([tokens], device=next(model.parameters()).device), use_cache=True)
    layers = [i for i, kind in enumerate(text_model(model).config.layer_types) if kind == "qwen_sparse_attention"]
    ratio = text_model(model).config.indexer_compress_ratio
    rows = range(ratio - 1, len(tokens))  # the first rows have no complete block
    if len(seen.choices) != len(layers) * len(rows):
        raise RuntimeError(f"{len(seen.choices)} choices for {len(layers)} layers of {len(rows)} rows")
    found = iter(seen.choices)
    return {(layer, row): next(found) for layer in layers for row in rows}, out.logits[0].float().cpu()


def open_rows(runs, recorded_rows, length):
    picks = {}
    for (layer, row), (scores, count) in runs["bf16_cpu"].items():
        if row < length - recorded_rows or count >= len(scores):
            continue
        order = scores.sort(descending=True, stable=True).indices
        pair = order[count - 1:count + 1]
        gap = (scores[pair[0]] - scores[pair[1]]).item()
        move = max((other[layer, row][0] - scores)[pair].abs().sum().item() for name, other in runs.items() if name != "bf16_cpu")
        if 0 < gap <= move:
            picks.setdefault(f"layer{layer}", {})[str(row)] = {"blocks": sorted(order[:count].tolist()), "move": move}
    return picks


def add(directory, out, names):
    golden = load_file(directory / "golden.safetensors")
    report = json.loads((directory / "golden.json").read_text())
    models = {name: load_model(directory, RUNS[name][0]).to(RUNS[name][1]) for name in names}
    picks = {}
    for described in report["cases"]:
        at = f"case{described['case']}."
        if described["taps"]:
            continue
        tokens, recorded = golden[at + "tokens"].tolist(), golden[at + "logits.bf16_cpu"]
        runs = {}
        for name, model in models.items():
            runs[name], logits = choices_of(model, tokens)
            if name == "bf16_cpu" and not torch.equal(logits[-len(recorded):], recorded):
                raise RuntimeError(f"{directory} {at}: the bf16 CPU run differs from the recorded one; its choices might, too")
        for layer, rows in open_rows(runs, len(recorded), len(tokens)).items():
            picks[at + layer] = rows
            print(directory.name, at + layer, f"{len(rows)} of {len(recorded)} rows open")
    report["open_picks"] = {"runs": names, "rows": picks}
    (out / directory.name).mkdir(parents=True, exist_ok=True)
    (out / directory.name / "golden.json").write_text(json.dumps(report, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--runs", nargs="+", default=list(RUNS), choices=RUNS)
    parser.add_argument("directories", nargs="+", type=pathlib.Path)
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    for directory in options.directories:
        add(directory, options.out, options.runs)


if __name__ == "__main__":
    main()
