#!/usr/bin/env python3
"""Documents, README.md files under models/ and tests/ among them: links, paths, presets, programs and flags must exist, at most 250
lines unless a script writes them; every page of docs/ opens with its TL;DR. No command is run but `tetrad ... --help`."""
import argparse
import json
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

MAX_LINES = 250
GENERATED = re.compile(r"Written by\s+`scripts/make_\w+\.py`")  # for looking things up: as long as it must be
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
FENCE = re.compile(r"^\s*```(\w*)\s*$")
HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*$")
TREE_PATH = re.compile(r"^(src|tests|docs|scripts|cmake|models|bench|deploy)/[\w./-]*$")
ASSIGNMENT = re.compile(r"^[A-Za-z_]\w*=")
PLAIN_COMMANDS = {"cat", "cd", "cmp", "cp", "curl", "diff", "docker", "git", "guidellm", "head", "install", "journalctl", "kubectl",
                  "lm_eval", "ls", "man", "mkdir", "openssl", "python3", "rm", "sed", "systemctl", "tail", "truncate"}


def anchor(heading):
    """The anchor that Markdown renderers give a heading."""
    kept = re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower())
    return kept.replace(" ", "-")


def split(text):
    """Prose lines as (number, line), the shell lines of ```sh blocks likewise, and the anchors of all headings."""
    prose, shell, anchors, language = [], [], set(), None
    joined = ""
    for number, line in enumerate(text.splitlines(), 1):
        fence = FENCE.match(line)
        if fence:
            language = fence.group(1) if language is None else None
            continue
        if language is None:
            prose.append((number, line))
            heading = HEADING.match(line)
            if heading:
                anchors.add(anchor(heading.group(1)))
        elif language == "sh":
            joined += line.rstrip("\\")
            if not line.endswith("\\"):
                shell.append((number, joined))
                joined = ""
    return prose, shell, anchors, language is not None


class Checker:
    def __init__(self, root, binary=None):
        self.root = root
        self.binary = binary
        self.problems = []
        self.helps = {}
        presets = root / "CMakePresets.json"
        self.presets = set()
        if presets.is_file():
            listed = json.loads(presets.read_text())["configurePresets"]
            self.presets = {p["name"] for p in listed if not p.get("hidden")}

    def report(self, where, message):
        self.problems.append(f"{where}: {message}")

    def pages(self):
        readmes = [page for folder in ("models", "tests") for page in self.root.glob(f"{folder}/**/README.md")]
        return sorted([*self.root.glob("*.md"), *self.root.glob("docs/**/*.md"), *readmes])

    def check(self):
        pages = self.pages()
        if not pages:
            self.report(".", "no documents found")
        for page in pages:
            self.check_page(page)
        return len(pages), self.problems

    def check_page(self, page):
        name = str(page.relative_to(self.root))
        text = page.read_text(encoding="utf-8")
        lines = text.splitlines()
        prose, shell, _, is_open = split(text)
        if is_open:
            self.report(name, "a ``` block is not closed")
        if len(lines) > MAX_LINES and not GENERATED.search(text):
            self.report(name, f"{len(lines)} lines; the limit is {MAX_LINES}")
        if name.startswith("docs/"):
            body = [line for line in lines if line.strip() and not line.startswith("#")]
            if not body or not body[0].startswith("TL;DR: "):
                self.report(name, "does not open with a line that starts with 'TL;DR: '")
        for number, line in prose:
            for target in LINK.findall(line):
                self.check_link(f"{name}:{number}", page, target)
            for code in CODE.findall(line):
                if TREE_PATH.match(code) and not (self.root / code).exists():
                    self.report(f"{name}:{number}", f"`{code}` does not exist")
        for number, line in shell:
            self.check_command(f"{name}:{number}", line)

    def check_link(self, where, page, target):
        if re.match(r"^[a-z]+:", target):
            return
        path, _, fragment = target.partition("#")
        file = page if not path else (page.parent / path)
        if not file.exists():
            self.report(where, f"link to {path}, which does not exist")
        elif fragment and file.suffix == ".md" and fragment not in split(file.read_text(encoding="utf-8"))[2]:
            self.report(where, f"link to {target}: no such heading")

    def check_command(self, where, line):
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            self.report(where, f"not a shell command: {error}")
            return
        # One command for each side of a pipe, list or redirection.
        command = []
        for word in [*words, "|"]:
            if word not in {"|", "&&", "||", ";", "&"}:
                command.append(word)
                continue
            while command and ASSIGNMENT.match(command[0]):
                command.pop(0)
            if command:
                self.check_words(where, command)
            command = []

    def check_words(self, where, words):
        program = words[0].removeprefix("./")
        if program.startswith(("scripts/", ".ci/")):
            file = self.root / program
            if not file.is_file():
                self.report(where, f"{program} does not exist")
            elif not file.stat().st_mode & 0o100:
                self.report(where, f"{program} is not executable")
        elif program in {"cmake", "ctest"}:
            self.check_preset(where, words)
        elif program in {"tetrad", "build/cpu/tetrad"}:
            self.check_tetrad(where, words[1:])
        elif program.startswith("build/"):
            pass
        elif program not in PLAIN_COMMANDS:
            self.report(where, f"'{program}' is neither a script of the tree nor a known command")

    def check_preset(self, where, words):
        for index, word in enumerate(words):
            preset = None
            if word == "--preset" and index + 1 < len(words):
                preset = words[index + 1]
            elif word.startswith("--preset="):
                preset = word.removeprefix("--preset=")
            if preset is not None and preset not in self.presets:
                self.report(where, f"no preset '{preset}'; there are {', '.join(sorted(self.presets))}")

    def help_of(self, command):
        """What `tetrad COMMAND --help` prints, or None if there is no such command."""
        key = tuple(command)
        if key not in self.helps:
            done = subprocess.run([self.binary, *command, "--help"], capture_output=True, text=True, check=False, timeout=60)
            self.helps[key] = done.stdout if done.returncode == 0 else None
        return self.helps[key]

    def check_tetrad(self, where, words):
        if self.binary is None:
            return
        command, rest = [], list(words)
        if rest and not rest[0].startswith("-"):
            command = [rest.pop(0)]
            # `bench` has sub-commands of its own.
            if command == ["bench"] and rest and not rest[0].startswith("-"):
                command.append(rest.pop(0))
        text = self.help_of(command)
        if text is None:
            self.report(where, f"'tetrad {' '.join(command)}' is no command")
            return
        known = set(re.findall(r"(?<![\w-])(--?[A-Za-z][\w-]*)", text))
        for word in rest:
            flag = word.partition("=")[0]
            if re.match(r"^--?[A-Za-z]", flag) and flag not in known:
                self.report(where, f"tetrad {' '.join(command)} has no flag {flag}")


GOOD = {
    "README.md": "# A\n\nSee [docs](docs/b.md#second-part) and `docs/b.md`.\n\n```sh\nscripts/run  # goes\nctest --preset cpu | tail\n```\n",
    "docs/b.md": "# B\n\nTL;DR: short.\n\n## Second part\n",
    "scripts/run": "",
    "CMakePresets.json": '{"configurePresets": [{"name": "cpu"}]}',
}
FAULTS = [
    ("docs/b.md", "# B\n\nLong.\n\n## Second part\n", "does not open with"),
    ("docs/b.md", "# B\n\nTL;DR: short.\n\n## Other part\n", "no such heading"),
    ("docs/b.md", GOOD["docs/b.md"] + "\n" * 250, "the limit is"),
    ("docs/c.md", "TL;DR: c.\n\n[x](d.md)\n", "which does not exist"),
    ("docs/c.md", "TL;DR: c.\n\n`src/none.cpp`\n", "`src/none.cpp` does not exist"),
    ("tests/data/README.md", "# D\n\n`src/none.cpp`\n", "`src/none.cpp` does not exist"),
    ("models/m/README.md", "# M\n\n[x](d.md)\n", "which does not exist"),
    ("docs/c.md", "TL;DR: c.\n\n```sh\nscripts/none\n```\n", "scripts/none does not exist"),
    ("docs/c.md", "TL;DR: c.\n\n```sh\nctest --preset gpu\n```\n", "no preset 'gpu'"),
    ("docs/c.md", "TL;DR: c.\n\n```sh\nA=1 frobnicate\n```\n", "neither a script"),
    ("docs/c.md", "TL;DR: c.\n\n```sh\ncat 'a\n```\n", "not a shell command"),
    ("docs/c.md", "TL;DR: c.\n\n```sh\nls\n", "not closed"),
    ("docs/c.md", "TL;DR: c.\n\n```sh\ntetrad run --nothing\n```\n", "has no flag --nothing"),
    ("docs/c.md", "TL;DR: c.\n\n```sh\ntetrad stroll\n```\n", "is no command"),
]
FAKE_BINARY = '#!/bin/sh\n[ "$1" = run ] && echo "  -m,--model DIR"\n'


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        base = pathlib.Path(folder)
        for index, fault in enumerate([None, *FAULTS]):
            root = base / str(index)
            files = {**GOOD, "fake": FAKE_BINARY}
            if fault:
                files[fault[0]] = fault[1]
            for path, text in files.items():
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_text(text)
            (root / "scripts/run").chmod(0o755)
            (root / "fake").chmod(0o755)
            _, problems = Checker(root, root / "fake").check()
            if len(problems) != (1 if fault else 0) or (fault and fault[2] not in problems[0]):
                print(f"self-test: {fault}: got {problems}")
                return 1
    print(f"check_docs: {len(FAULTS)} planted faults found")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--self-test", action="store_true", help="show that planted faults are found")
    parser.add_argument("--tetrad", type=pathlib.Path, help="binary whose --help names the known commands and flags")
    options = parser.parse_args()
    if options.self_test:
        return self_test()
    count, problems = Checker(pathlib.Path(__file__).resolve().parent.parent, options.tetrad).check()
    print("\n".join(problems or [f"check_docs: {count} documents in order"]))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
