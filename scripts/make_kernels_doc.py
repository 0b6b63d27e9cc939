#!/usr/bin/env python3
"""Writes docs/kernels.md from the contract at the head of every src/cuda/kernels/*.h; --check only compares."""
import argparse
import pathlib
import re
import sys
import tempfile

FIELDS = ["Math", "Inputs", "State", "Output", "Rounding", "Order", "Selection", "Hazards", "NaN", "Traps", "Launch", "Bytes", "Oracle", "Tests"]
REQUIRED = {"Math", "Output", "Order", "Launch", "Tests"}
HEAD = """# Kernels

TL;DR: one section for each stem of `src/cuda/kernels/`, as the contract at the head of its header states it. Written by
`scripts/make_kernels_doc.py`; change the header, not this page.
"""


def contract(path):
    """(stem, summary, {field: text}), or None for a header without a contract."""
    lines = path.read_text(encoding="utf-8").splitlines()
    block = []
    for line in lines[1:]:
        if not line.startswith("//"):
            break
        block.append(line[2:])
    title = re.match(r" (\w+): (.*)", block[0]) if block else None
    fields, name = {}, None
    summary = [title.group(2)] if title else []
    for line in block[1:] if title else []:
        field = re.match(r"   (\w+) {2,}(.*)", line)
        if field and field.group(1) in FIELDS:
            name = field.group(1)
            fields[name] = [field.group(2)]
        elif name is None:
            summary.append(line.strip())
        else:
            fields[name].append(line.strip())
    if not fields:
        return None
    return title.group(1), " ".join(summary), {k: "<br>".join(v) for k, v in fields.items()}


def build(root):
    problems, page = [], [HEAD]
    for path in sorted((root / "src/cuda/kernels").glob("*.h")):
        found = contract(path)
        if found is None:
            continue
        stem, summary, fields = found
        problems += [f"{path.name}: the contract has no field {name}" for name in sorted(REQUIRED - fields.keys())]
        for test in re.findall(r"\b((?:gpu|properties)/\w+_test)\b", fields.get("Tests", "")):
            if not (root / "tests" / f"{test}.cpp").is_file():
                problems.append(f"{path.name}: there is no tests/{test}.cpp")
        page.append(f"\n## {stem}\n{summary[0].upper()}{summary[1:]}\n\n| | |\n|---|---|\n")
        page += [f"| {name} | {fields[name].replace('|', chr(92) + '|')} |\n" for name in FIELDS if name in fields]
    return "".join(page), problems


def self_test():
    """A contract without an order, a test that is not there, and a page that says something else must each be a problem."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / "src/cuda/kernels").mkdir(parents=True)
        header = "#pragma once\n// x: does x.\n//   Math      y = x\n//   Output    y\n//   Launch    one\n//   Tests     gpu/none_test\n"
        (root / "src/cuda/kernels/x.h").write_text(header, encoding="utf-8")
        text, problems = build(root)
        assert "## x\nDoes x." in text and "| Math | y = x |" in text, text
        assert any("no field Order" in p for p in problems) and any("no tests/gpu/none_test.cpp" in p for p in problems), problems
        assert compare(root, text), "a missing page went unnoticed"


def compare(root, text):
    page = root / "docs/kernels.md"
    same = page.is_file() and page.read_text(encoding="utf-8") == text
    return [] if same else ["docs/kernels.md is not what the headers say; run scripts/make_kernels_doc.py"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--self-test", action="store_true")
    arguments = parser.parse_args()
    if arguments.self_test:
        return self_test()
    root = pathlib.Path(__file__).resolve().parent.parent
    text, problems = build(root)
    if arguments.check:
        problems += compare(root, text)
    else:
        (root / "docs/kernels.md").write_text(text, encoding="utf-8")
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
