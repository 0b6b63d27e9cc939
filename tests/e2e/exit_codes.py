#!/usr/bin/env python3
"""Exit codes and where output goes: 0 done, 2 bad input or checkpoint, 3 not verified; errors on stderr, nothing on stdout.

usage: exit_codes.py BINARY MODEL_DIRECTORY
"""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile


def main():
    binary, model = sys.argv[1], pathlib.Path(sys.argv[2])
    failed = 0

    def expect(code, said, *arguments):
        """Runs the binary; a failure must name what is wrong on stderr and print no answer."""
        nonlocal failed
        done = subprocess.run([binary, *arguments], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        answers = code in (0, 3)  # a verification that fails is an answer too
        where = done.stdout if answers else done.stderr
        right = done.returncode == code and said in where and (answers or not done.stdout) and "json.exception" not in done.stderr
        print(f"{'ok  ' if right else 'FAIL'} tetrad {' '.join(arguments)}")
        if not right:
            failed += 1
            print(f"     expected exit code {code} and {said!r}; got {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")

    for command in ("run", "chat", "serve", "inspect", "tokenize", "render", "logits", "verify", "synth", "bench", "reference"):
        expect(0, command, command, "--help")
    expect(2, "/nowhere", "run", "-m", "/nowhere", "-p", "x")
    expect(2, "--temp", "run", "--tepm", "1", "-p", "x")
    expect(2, "/nowhere", "serve", "-m", "/nowhere")
    expect(2, "--kv-cache-tokens", "serve", "--kv-cache-tokens", "1")
    expect(2, "--ssl-keyfile", "serve", "--ssl-certfile", "/nowhere")
    expect(2, "/nowhere", "serve", "--api-key-file", "/nowhere")
    expect(2, "--served-model-name", "serve", "--served-model-name", "")
    with tempfile.TemporaryDirectory() as folder:
        damaged = pathlib.Path(folder) / "damaged"
        shutil.copytree(model, damaged)
        shard = damaged / "model-00002-of-00003.safetensors"
        shard.write_bytes(shard.read_bytes()[:-1])
        expect(2, shard.name, "run", "-m", str(damaged), "-p", "x")
        shard.unlink()
        expect(2, shard.name, "run", "-m", str(damaged), "-p", "x")
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder) / "copy"
        shutil.copytree(model, copy)
        for name in ("golden-tokenizer.json", "golden-template.json"):
            (copy / name).unlink()
        answers = copy / "golden-generate.json"
        golden = json.loads(answers.read_text(encoding="utf-8"))
        golden["cases"] = golden["cases"][:2]
        expect_golden = lambda code, said: (answers.write_text(json.dumps(golden)), expect(code, said, "verify", str(copy)))
        expect_golden(0, ": verified")
        golden["cases"][0]["cpu_bf16"]["ids"][1] += 1
        expect_golden(3, "the recorded ids do not give the recorded text")
        golden["cases"][0]["gpu_bf16"]["ids"][1] += 1
        expect_golden(3, "NOT verified")
        for case in golden["cases"]:
            case["gpu_bf16"] = {"ids": [50], "text": "S", "margin": [1.0]}
        golden["cases"] = golden["cases"][1:]
        expect_golden(3, "none of 1 recorded answers was compared")
        for damaged in ("[]", "{", '{"cases": []}', '{"cases": [{}]}', '{"cases": [{"cpu_bf16": {"ids": 1}}]}'):
            answers.write_text(damaged)
            expect(2, answers.name, "verify", str(copy))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
