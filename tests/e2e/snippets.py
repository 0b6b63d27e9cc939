#!/usr/bin/env python3
"""The snippets of README.md and docs/*.md, run as they are printed against a server of tetrad-tiny at an address of its own. Output that a
document shows right after a snippet must be what came. Settings in JSON, TOML and INI must parse.

usage: snippets.py BINARY curl|python    python: exit code 77 if no Python here has the packages openai and anthropic
"""
import json
import pathlib
import re
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
from live_server import LiveServer  # noqa: E402  pylint: disable=wrong-import-position

BINARY, LANGUAGE = sys.argv[1], sys.argv[2]
NOT_RUN = 77
ADDRESS = "127.0.0.1:8000"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$(?:\n```\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)


def blocks(text):
    """(language, snippet, output shown right after it or None)"""
    return [(match.group(1), match.group(2), match.group(3)) for match in BLOCK.finditer(text)]


def comparable(text):
    """Without line breaks, which documents choose, and what differs from run to run."""
    text = re.sub(r'"(id|created|request_id)":("[^"]*"|\d+)', r'"\1":0', text)
    text = re.sub(r'"timings":\{[^}]*\}', '"timings":{...}', text)
    return re.sub(r'"cached_tokens":\d+', '"cached_tokens":0', re.sub(r"\s+", " ", text.replace("\n", ""))).strip()


def curl_commands(snippet):
    joined = snippet.replace("\\\n", " ")
    return [line for line in joined.splitlines() if line.startswith("curl ")]


def run(words, where):
    done = subprocess.run(words, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, f"{where}: {done.stderr or done.stdout}"
    return done.stdout


def check_output(out, shown, where):
    assert out.strip() and '"error"' not in out, f"{where}: {out}"
    if shown is not None:
        assert comparable(out) == comparable(shown), f"{where}: printed\n{out}\nbut the document shows\n{shown}"


def with_packages():
    """A Python that has both SDKs: this one, or of a virtual environment below build/."""
    for python in [sys.executable, *sorted(map(str, ROOT.glob("build/*/bin/python"))), *sorted(map(str, ROOT.glob("build/*/*/bin/python")))]:
        if subprocess.run([python, "-c", "import anthropic, openai"], capture_output=True, check=False).returncode == 0:
            return python
    return None


def run_snippets(server, python, pages):
    """How many ran."""
    count = 0
    for page in pages:
        for language, snippet, shown in blocks(page.read_text(encoding="utf-8")):
            here = snippet.replace(ADDRESS, f"127.0.0.1:{server.port}")
            where = f"{page.relative_to(ROOT)}: {snippet.strip().splitlines()[0]}"
            if LANGUAGE == "python" and language == "python":
                check_output(run([python, "-c", here], where), shown, where)
                count += 1
            elif LANGUAGE == "curl" and language == "sh" and curl_commands(here):
                check_output("\n".join(run(["bash", "-c", command], where) for command in curl_commands(here)), shown, where)
                count += 1
    return count


def check_settings(pages):
    for page in pages:
        for language, snippet, _ in blocks(page.read_text(encoding="utf-8")):
            if language == "json":
                json.loads(snippet)
            elif language == "toml":
                tomllib.loads(snippet)
            elif language == "ini":
                assert all(re.fullmatch(r"[A-Z_]+=\S+", line) for line in snippet.splitlines()), snippet


def must_fail(check, *arguments):
    try:
        check(*arguments)
    except AssertionError:
        return
    raise AssertionError(f"{check.__name__} passes with a fault in it")


def main():
    python = with_packages() if LANGUAGE == "python" else None
    if LANGUAGE == "python" and python is None:
        print("NOT RUN: the Python snippets of README.md and docs/. No Python here has the packages openai and anthropic.")
        return NOT_RUN
    pages = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]
    check_settings(pages)
    must_fail(check_output, "42\n", "41\n", "planted")
    must_fail(check_output, '{"error": {}}', None, "planted")
    must_fail(run, ["bash", "-c", "exit 1"], "planted")
    with LiveServer(BINARY) as server:
        count = run_snippets(server, python, pages)
    assert count >= 3, f"only {count} snippets were found"
    print(f"ok   {count} snippets with {LANGUAGE} do what the documents say")
    return 0


if __name__ == "__main__":
    sys.exit(main())
