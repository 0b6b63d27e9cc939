#!/usr/bin/env python3
"""`cmake --install`: the tree that comes out works wherever it is put, with its own model, manual, unit and completion.

usage: install.py CMAKE BUILD_DIRECTORY
"""
import pathlib
import shutil
import subprocess
import sys
import tempfile

CMAKE, BUILD = sys.argv[1], sys.argv[2]
FILES = ["bin/tetrad", "lib/systemd/system/tetrad.service", "share/bash-completion/completions/tetrad", "share/doc/tetrad/LICENSE",
         "share/doc/tetrad/NOTICE", "share/doc/tetrad/examples/alerts.yaml", "share/doc/tetrad/examples/tetrad.env",
         "share/man/man1/tetrad.1", "share/tetrad/tetrad-tiny/config.json", "share/tetrad/tetrad-tiny/LICENSE.wordnet"]


def run(*words):
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)


def check_model(prefix):
    """The program uses the model beside it, not that of the source tree."""
    program = str(prefix / "bin/tetrad")
    answer = run(program, "run", "-p", "What is 12 + 30?", "--no-think", "--temp", "0")
    assert answer.returncode == 0 and "42" in answer.stdout, answer
    (prefix / "share/tetrad/tetrad-tiny/config.json").rename(prefix / "aside.json")
    broken = run(program, "run", "-p", "What is 12 + 30?")
    (prefix / "aside.json").rename(prefix / "share/tetrad/tetrad-tiny/config.json")
    assert broken.returncode == 2 and f"{prefix}/share/tetrad/tetrad-tiny: holds no config.json" in broken.stderr, broken


def completed(prefix, *words):
    script = prefix / "share/bash-completion/completions/tetrad"
    done = run("bash", "-c", 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _tetrad; echo "${COMPREPLY[@]}"', "bash", str(script),
               *words)
    assert done.returncode == 0 and not done.stderr, done
    return done.stdout.split()


def check_completion(prefix):
    assert completed(prefix, "tetrad", "ser") == ["serve"]
    assert completed(prefix, "tetrad", "serve", "--max-num-s") == ["--max-num-seqs"]
    assert completed(prefix, "tetrad", "bench", "dec") == ["decode"]
    assert completed(prefix, "tetrad", "bench", "decode", "--synth") == ["--synthetic"]
    assert completed(prefix, "tetrad", "serve", "--system-message-policy", "") == ["merge", "strict"]
    assert completed(prefix, "tetrad", "run", "-m", str(prefix / "sh")) == [str(prefix / "share")]
    assert completed(prefix, "tetrad", "serve", "--port", "") == []


def main():
    with tempfile.TemporaryDirectory() as folder:
        first, second = pathlib.Path(folder).resolve() / "first", pathlib.Path(folder).resolve() / "second place"
        done = run(CMAKE, "--install", BUILD, "--prefix", str(first))
        assert done.returncode == 0, done
        for name in FILES:
            assert (first / name).is_file(), name
        check_model(first)
        check_completion(first)
        shutil.move(first, second)
        check_model(second)
        page = (second / "share/man/man1/tetrad.1").read_text()
        assert page.count(".SH OPTIONS OF") >= 10 and "\\-\\-max\\-num\\-seqs" in page
        if shutil.which("man"):
            manual = run("man", "--warnings", "-l", str(second / "share/man/man1/tetrad.1"))
            assert manual.returncode == 0 and not manual.stderr and "SIGTERM" in manual.stdout, manual.stderr
        else:
            print("not run: man over the manual page, which is not installed")
    print("ok   an installed tree answers, moved or not")


if __name__ == "__main__":
    main()
