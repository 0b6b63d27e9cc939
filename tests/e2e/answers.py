#!/usr/bin/env python3
"""`tetrad run --messages` against the recorded greedy answers: stdout is the answer and nothing else.

usage: answers.py BINARY MODEL_DIRECTORY LONGEST_PROMPT
"""
import json
import pathlib
import subprocess
import sys
import tempfile


def main():
    binary, model, longest = sys.argv[1], pathlib.Path(sys.argv[2]), int(sys.argv[3])
    cases = json.loads((model / "golden-generate.json").read_text(encoding="utf-8"))["cases"]
    failed = asked = 0
    for case in cases:
        # How a thinking answer is shown is the command's affair; the ids of those cases are held by the parity tests.
        if case["flags"].get("enable_thinking", True) or len(case["prompt_ids"]) > longest:
            continue
        asked += 1
        wanted = case["cpu_bf16"]["text"].removesuffix("<|im_end|>")
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "messages.json"
            file.write_text(json.dumps({key: case[key] for key in ("messages", "tools", "flags") if case[key] is not None}))
            command = [binary, "run", "-m", str(model), "--messages", str(file), "--temp", "0", "-n", "64"]
            done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        got = done.stdout.removesuffix("\n")
        right = done.returncode == 0 and got == wanted
        print(f"{'ok  ' if right else 'FAIL'} {case['task']} ({len(case['prompt_ids'])} prompt tokens): {got!r}")
        if not right:
            failed += 1
            print(f"     expected {wanted!r}, exit code 0; got exit code {done.returncode}; stderr:\n{done.stderr[-4000:]}")
    print(f"{asked - failed} of {asked} answers right")
    return 1 if failed or not asked else 0


if __name__ == "__main__":
    sys.exit(main())
