#!/usr/bin/env python3
"""Writes the tables of docs/metrics.md from /metrics of a running server; the text around them is written by hand."""
import re
import sys

from generated import ROOT, arguments, settle
from live_server import LiveServer, families

PAGE = "docs/metrics.md"
BEGIN, END = "<!-- tables: scripts/make_metrics_doc.py -->\n", "<!-- end of tables -->\n"
COMMON = {"model_name", "engine"}


def unit(name, kind):
    for end, text in (("_seconds", "s"), ("_seconds_total", "s"), ("_bytes", "bytes"), ("_perc", "0 to 1"), ("_info", "always 1")):
        if name.endswith(end):
            return text
    if "prefix_cache" in name and name.endswith(("_queries_total", "_hits_total")):
        return "tokens"
    for word in ("tokens", "pages", "slots", "rows", "steps"):
        if word in name:
            return "rows" if name.endswith("iteration_tokens_total") else word
    return "answers" if name.endswith("_n") else "count" if kind == "counter" else "requests" if "requests" in name else "number"


def rows(known):
    out = "| series | type | unit | labels | meaning |\n|---|---|---|---|---|\n"
    for name, (kind, meaning, labels) in known:
        extra = ", ".join(f"`{label}`" for label in labels if label not in COMMON)
        out += f"| `{name}` | {kind} | {unit(name, kind)} | {extra} | {meaning.replace('|', chr(92) + '|')} |\n"
    return out


def tables(known):
    of_model = [item for item in known.items() if COMMON <= set(item[1][2])]
    others = [item for item in known.items() if not COMMON <= set(item[1][2])]
    return (f"## Of the model\nEach has the labels `model_name` and `engine=\"0\"` as well. Absent while the model is loaded.\n\n{rows(of_model)}\n"
            f"## Of the process\nThere from the start.\n\n{rows(others)}")


def main():
    options = arguments(__doc__, binary=True)
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    with LiveServer(options.tetrad) as server:
        made = tables(families(server.metrics()))
    return settle({PAGE: re.sub(f"{BEGIN}.*{END}", lambda _: BEGIN + made + END, text, flags=re.DOTALL)}, options)


if __name__ == "__main__":
    sys.exit(main())
