#!/usr/bin/env python3
"""Rules for every source file: its size, characters and leftovers; and that the sources of a layer, or tests, can be compiled as one."""
import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

MAX_LINES = 800
WARN_LINES = 500
SOURCES = {".h", ".cpp", ".cu", ".cuh", ".py", ".sh", ".cmake", ".yaml", ".service", ".conf", ".env"}
FOLDERS = ("src", "tests", "bench", "scripts", "cmake", "deploy")
APART = ("cpu", "cuda")  # layers whose sources are always compiled one by one
TOGETHER = ("unit", "properties", "parity")  # kinds of test whose sources are compiled as one
# Written apart so that this file passes its own check.
LEFTOVER = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b")
DISABLED = re.compile(r"^\s*#\s*if\s+0\b")


def check_file(name, data):
    """Returns (errors, warnings) for one file."""
    errors, warnings = [], []
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        return [f"{name}: not UTF-8 at byte {error.start}"], []
    lines = text.splitlines()
    if len(lines) > MAX_LINES:
        errors.append(f"{name}: {len(lines)} lines; the limit is {MAX_LINES}: split it")
    elif len(lines) > WARN_LINES:
        warnings.append(f"{name}: {len(lines)} lines; above {WARN_LINES} a file should have a reason")
    if data and not data.endswith(b"\n"):
        errors.append(f"{name}: no newline at the end")
    for number, line in enumerate(lines, 1):
        where = f"{name}:{number}"
        if LEFTOVER.search(line):
            errors.append(f"{where}: leftover marker; finish it or put it into the tracker")
        if DISABLED.search(line):
            errors.append(f"{where}: disabled code; delete it")
        if "\t" in line or "\r" in line:
            errors.append(f"{where}: tab or carriage return")
        if line != line.rstrip():
            errors.append(f"{where}: blanks at the end of the line")
        # Tests hold text in many scripts; elsewhere an escape says which character is meant.
        if not name.startswith("tests/") and not line.isascii():
            odd = next(c for c in line if not c.isascii())
            errors.append(f"{where}: U+{ord(odd):04X}; write it as an escape")
    return errors, warnings


def local_names(text):
    """The names that a source defines for itself: (name, what it is) of its anonymous namespaces, read from the first column."""
    inside = False
    for line in text.splitlines():
        if line == "namespace {":
            inside = True
        elif line == "}  // namespace":
            inside = False
        if not inside or not re.match(r"\w", line) or line.startswith(("namespace", "using ", "template ", "TEST", "return ")):
            continue
        found = re.match(r"(?:struct|class|enum class|enum) (\w+)", line)
        if found:
            yield found[1], "type"
        elif found := re.match(r"[^=({]*?(\w+)\(([^{]*)", line):
            yield found[1], "function of " + re.sub(r"\s*\w+(?=[,)]|$)", "", found[2])
        elif found := re.match(r"[^(=]*?(\w+)(?:\[[^=]*\])*\s*[={;]", line):
            yield found[1], "value"


def check_layer(sources):
    """sources: (name, text) of the .cpp files of one layer. Functions may share a name if their parameters differ."""
    seen, errors = {}, []
    for name, text in sources:
        for defined, kind in local_names(text):
            other = seen.setdefault((defined, kind), name)
            if other != name:
                errors.append(f"{name}: {defined} is defined in {other} too: another name, or one place for both (docs/testing.md, TETRAD_UNITY)")
    return errors


def check_test(name, text):
    """A test file keeps its names, and those it takes over with `using`, in a namespace that no other file has."""
    own = pathlib.PurePosixPath(name).stem
    if re.search(rf"^namespace tetrad(::\w+)*::{own} {{$", text, re.MULTILINE):
        return []
    return [f"{name}: its namespace does not end in ::{own} (docs/testing.md, TETRAD_UNITY)"]


def source_files(root):
    """Tracked and new files, without what git ignores; every file when the tree is not a git checkout."""
    git = subprocess.run(["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                         capture_output=True, check=False)
    if git.returncode == 0:
        names = git.stdout.decode().split("\0")
    else:
        names = [str(p.relative_to(root)) for folder in FOLDERS for p in (root / folder).rglob("*")]
    for name in sorted(set(names)):
        path = pathlib.PurePosixPath(name)
        if not path.parts or path.parts[0] not in FOLDERS or not (root / name).is_file():
            continue
        if path.suffix in SOURCES or (path.parts[0] == "scripts" and not path.suffix) or path.name == "CMakeLists.txt":
            yield name


def check(root):
    errors, warnings, count, layers = [], [], 0, {}
    for name in source_files(root):
        data = (root / name).read_bytes()
        found = check_file(name, data)
        path = pathlib.PurePosixPath(name)
        if path.suffix == ".cpp" and (path.parts[:2] == ("tests", "support") or path.parts[0] == "src" and path.parts[1] not in APART):
            layers.setdefault(path.parent, []).append((name, data.decode(errors="replace")))
        elif path.match("tests/*/*_test.cpp") and path.parts[1] in TOGETHER:
            errors += check_test(name, data.decode(errors="replace"))
        errors += found[0]
        warnings += found[1]
        count += 1
    for sources in layers.values():
        errors += check_layer(sources)
    if count == 0:
        errors.append("no sources found")
    return count, errors, warnings


def self_test():
    marker = "TO" + "DO"
    cases = [
        ("src/base/a.cpp", b"int a;\n", 0, 0),
        ("src/base/a.cpp", b"int a;\n" * 501, 0, 1),
        ("src/base/a.cpp", b"int a;\n" * 801, 1, 0),
        ("src/base/a.cpp", b"int a;", 1, 0),
        ("src/base/a.cpp", f"// {marker}: later\n".encode(), 1, 0),
        ("src/base/a.cpp", b"#if 0\n#endif\n", 1, 0),
        ("src/base/a.cpp", b"int a;  \n", 1, 0),
        ("src/base/a.cpp", b"int\ta;\n", 1, 0),
        ("src/base/a.cpp", "// \u00e9\n".encode(), 1, 0),
        ("tests/unit/a_test.cpp", "// \u00e9\n".encode(), 0, 0),
        ("src/base/a.cpp", b"// \xff\n", 1, 0),
    ]
    for name, data, errors, warnings in cases:
        got = check_file(name, data)
        if (len(got[0]), len(got[1])) != (errors, warnings):
            print(f"self-test: {data[:40]!r}: expected {errors} errors and {warnings} warnings, got {got}")
            return 1
    layers = [
        ("constexpr int kSame = 1;", "constexpr int kSame = 2;", 1),
        ("struct Entry {", "struct Entry {", 1),
        ("double seconds(Time from, Time to) {", "double seconds(Time a, Time b) {", 1),
        ("std::string told(const A& a) {", "std::string told(const B& b) {", 0),
        ("constexpr int kOne = 1;", "constexpr int kTwo = 2;", 0),
    ]
    for first, second, errors in layers:
        got = check_layer([(f"src/base/{i}.cpp", f"namespace {{\n{line}\n}}  // namespace\n") for i, line in enumerate((first, second))])
        if len(got) != errors:
            print(f"self-test: {first!r} beside {second!r}: expected {errors} errors, got {got}")
            return 1
    tests = [
        ("namespace tetrad::cpu::moe_test {\nnamespace {\n", 0),
        ("namespace tetrad::moe_test {\nnamespace {\n", 0),
        ("namespace tetrad::cpu {\nnamespace {\n", 1),
        ("namespace tetrad::rope_test {\nnamespace {\n", 1),
    ]
    for text, errors in tests:
        got = check_test("tests/unit/moe_test.cpp", text)
        if len(got) != errors:
            print(f"self-test: {text!r}: expected {errors} errors, got {got}")
            return 1
    with tempfile.TemporaryDirectory() as folder:
        if not check(pathlib.Path(folder))[1]:
            print("self-test: an empty tree passes")
            return 1
    print(f"check_tree: {len(cases) + len(layers) + len(tests) + 1} cases judged as planted")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--self-test", action="store_true", help="show that planted faults are found")
    if parser.parse_args().self_test:
        return self_test()
    count, errors, warnings = check(pathlib.Path(__file__).resolve().parent.parent)
    for warning in warnings:
        print(f"warning: {warning}")
    print("\n".join(errors or [f"check_tree: {count} files in order"]))
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
