#!/usr/bin/env python3
"""`cmake --install`: the tree that comes out works wherever it is put, with its own model, manual, unit and completion. So does a build tree
inside of a source tree, and no program names the model of the place where it was built.

usage: install.py CMAKE BUILD_DIRECTORY
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

CMAKE, BUILD = sys.argv[1], sys.argv[2]
SOURCE = pathlib.Path(__file__).resolve().parent.parent.parent
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


def check_built(folder):
    """The program of a build tree uses the model of the source tree around it, wherever the two lie; alone it says where one would be."""
    built = pathlib.Path(BUILD).resolve()
    if SOURCE not in built.parents:
        print("not run: a build tree outside of its source tree knows the way to it")
        return
    assert os.fsencode(SOURCE / "models") not in (built / "tetrad").read_bytes(), "the program names the folder of its sources"
    program = folder / built.relative_to(SOURCE) / "tetrad"
    program.parent.mkdir(parents=True)
    shutil.copy(built / "tetrad", program)
    question = ("run", "-p", "What is 12 + 30?", "--no-think", "--temp", "0")
    alone = run(str(program), *question)
    assert alone.returncode == 2 and f"{program.parent.parent}/share/tetrad/tetrad-tiny: " in alone.stderr, alone
    shutil.copytree(SOURCE / "models/tetrad-tiny", folder / "models/tetrad-tiny")
    answer = run(str(program), *question)
    assert answer.returncode == 0 and "42" in answer.stdout, answer


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
        check_built(pathlib.Path(folder).resolve() / "a copy")
        page = (second / "share/man/man1/tetrad.1").read_text()
        assert page.count(".SH OPTIONS OF") >= 10 and "\\-\\-max\\-num\\-seqs" in page
        if shutil.which("man"):
            manual = run("man", "--warnings", "-l", str(second / "share/man/man1/tetrad.1"))
            assert manual.returncode == 0 and not manual.stderr and "SIGTERM" in manual.stdout, manual.stderr
        else:
            print("not run: man over the manual page, which is not installed")
    print("ok   an installed tree and a build tree answer, moved or not")


if __name__ == "__main__":
    main()
