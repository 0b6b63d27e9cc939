#!/usr/bin/env python3
"""Adds the reference's bf16 run on a GPU (`bf16_gpu`) to goldens that make_goldens.py made, and its distance from the CPU run to their
reference_spread. Run by a developer on a machine with a GPU, with the versions that make_goldens.py asks for.

    add_gpu_goldens.py --out DIR tests/goldens/variant-*      writes DIR/<name>/golden.{safetensors,json}
"""
import argparse
import json
import pathlib
import sys

import torch
import transformers
from safetensors.torch import load_file, save_file

from make_goldens import load_model, record_stages, run_case

RUN = "bf16_gpu"


def add(directory, out):
    golden = load_file(directory / "golden.safetensors")
    report = json.loads((directory / "golden.json").read_text())
    model = load_model(directory, torch.bfloat16).to("cuda")
    torch.set_default_device("cuda")   # the prompts are made there
    for case in range(len(report["cases"])):
        at = f"case{case}."
        tokens, ids = golden[at + "tokens"].tolist(), golden[at + "decode_ids"].tolist()
        logits, decoded, _ = run_case(model, tokens, ids)
        stages = {"logits": logits, "decode_logits": decoded}
        for kind, tensor in stages.items():
            distance = (tensor.cpu() - golden[f"{at}{kind}.bf16_cpu"]).abs().max().item()
            report["reference_spread"][at + kind]["gpu_vs_cpu"] = distance
        if at + "final.mixed.bf16_cpu" in golden:
            stages.update(record_stages(model, RUN, tokens, set()))
        golden.update({f"{at}{name}.{RUN}": tensor.cpu().contiguous() for name, tensor in stages.items()})
    torch.set_default_device("cpu")
    report["gpu"] = torch.cuda.get_device_name()
    (out / directory.name).mkdir(parents=True, exist_ok=True)
    save_file(golden, out / directory.name / "golden.safetensors", metadata={"format": "pt"})
    (out / directory.name / "golden.json").write_text(json.dumps(report, indent=1) + "\n")
    print(directory.name, {k: v.get("gpu_vs_cpu") for k, v in report["reference_spread"].items()})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("directories", nargs="+", type=pathlib.Path)
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    for directory in options.directories:
        add(directory, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
