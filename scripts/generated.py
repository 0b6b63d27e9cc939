"""What the makers of generated files share: write them, or say which are not what they should be."""
import argparse
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def arguments(description, binary=False):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if a file is not up to date")
    parser.add_argument("--root", type=pathlib.Path, default=ROOT, help="tree that the files lie in")
    if binary:
        parser.add_argument("--tetrad", default=str(ROOT / "build/cpu/tetrad"), help="the program to ask")
    return parser.parse_args()


def settle(files, options):
    """Exit code, given {path below the root: its text}."""
    stale = []
    for name, text in files.items():
        path = options.root / name
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if not options.check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    for name in stale:
        print(f"{name} is not up to date: run scripts/generate" if options.check else f"wrote {name}", file=sys.stderr)
    return 1 if options.check and stale else 0
