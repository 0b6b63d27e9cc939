#!/usr/bin/env python3
"""docs/errors.md has every error code that src/server gives, and no other; likewise the reasons in the metrics."""
import argparse
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Where a code stands in the sources: made by a helper, or assigned.
GIVEN = re.compile(r"""(?:unavailable|overloaded|server_fault)\(\s*"(\w+)"
                     | simple_error\(\s*[\w.]+,\s*"\w+",\s*"(\w+)"
                     | \bcode\s=\s"(\w+)" | kContextCode\s=\s"(\w+)" """, re.VERBOSE)
CODE_ROW = re.compile(r"^\| (\d{3}) \| `(\w+)` \|", re.MULTILINE)
REASON = re.compile(r'EngineErrorKind::\w+: return "(\w+)"')


def problems(sources, events, page):
    given = {code for match in GIVEN.finditer(sources) for code in match.groups() if code}
    described = {code for _, code in CODE_ROW.findall(page)}
    reasons = set(REASON.findall(events))
    cells = re.findall(r"^\| (`[^|]*) \|", page.partition("## In the metrics")[2], re.MULTILINE)
    told = {reason for cell in cells for reason in re.findall(r"`(\w+)`", cell)}
    found = [] if given and reasons else ["no codes or reasons found in the sources"]
    found += [f"docs/errors.md does not describe the code {code}" for code in sorted(given - described)]
    found += [f"docs/errors.md describes {code}, which src/server never gives" for code in sorted(described - given)]
    found += [f"docs/errors.md does not name the reason {reason}" for reason in sorted(reasons - told)]
    return found + [f"docs/errors.md names the reason {reason}, which the engine does not know" for reason in sorted(told - reasons)]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--self-test", action="store_true", help="show that planted faults are found")
    sources = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "src/server").glob("*.cpp")))
    events = (ROOT / "src/engine/engine_events.cpp").read_text(encoding="utf-8")
    page = (ROOT / "docs/errors.md").read_text(encoding="utf-8")
    if parser.parse_args().self_test:
        assert len(problems(sources + 'overloaded("new_one", m)', events, page)) == 1
        assert len(problems(sources, events, page + "| 400 | `old_one` | x | y |\n")) == 1
        assert len(problems(sources, events, page.replace("`capacity`", "`room`"))) == 2
        assert len(problems("", events, page)) > 10
        return 0
    found = problems(sources, events, page)
    print("\n".join(found or ["check_errors_doc: every code and reason is described"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
