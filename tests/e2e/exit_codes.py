#!/usr/bin/env python3
"""Exit codes and where output goes: 0 done, 2 bad input or checkpoint; errors on stderr, nothing on stdout.

usage: exit_codes.py BINARY MODEL_DIRECTORY
"""
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
        where = done.stdout if code == 0 else done.stderr
        right = done.returncode == code and said in where and (code == 0 or not done.stdout)
        print(f"{'ok  ' if right else 'FAIL'} tetrad {' '.join(arguments)}")
        if not right:
            failed += 1
            print(f"     expected exit code {code} and {said!r}; got {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")

    for command in ("run", "chat", "inspect", "tokenize", "render", "logits", "verify", "synth", "bench"):
        expect(0, command, command, "--help")
    expect(2, "/nowhere", "run", "-m", "/nowhere", "-p", "x")
    expect(2, "--temp", "run", "--tepm", "1", "-p", "x")
    with tempfile.TemporaryDirectory() as folder:
        damaged = pathlib.Path(folder) / "damaged"
        shutil.copytree(model, damaged)
        shard = damaged / "model-00002-of-00003.safetensors"
        shard.write_bytes(shard.read_bytes()[:-1])
        expect(2, shard.name, "run", "-m", str(damaged), "-p", "x")
        shard.unlink()
        expect(2, shard.name, "run", "-m", str(damaged), "-p", "x")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
