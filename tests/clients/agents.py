#!/usr/bin/env python3
"""Agents as people run them, with the settings of docs/clients.md: Codex and Claude Code, at work in a folder of their own with tools of
their own, while the scripted server plays the model. On request (docs/testing.md)."""
import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys
import sysconfig
import tempfile

from harness import ARGS, Scripted, main

HERE = pathlib.Path(__file__).resolve().parent

NAME = "qwen3.8-flash-next"
POSITIONS = 131072  # agents open with 17,000 tokens
LIMIT = 120  # seconds for one run
PACKAGES = pathlib.Path(sysconfig.get_paths()["purelib"])
CODEX = PACKAGES / "codex_cli_bin" / "bin" / "codex"
CLAUDE = PACKAGES / "claude_agent_sdk" / "_bundled" / "claude"


def call(name, **arguments):
    parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


# The next plan is named by what a tool gives back: in its call the name is in pieces, or it would be chosen at once.
NEXT = "echo 'plan':done"
PLANS = {
    "hello": {"answer": "They greet me.\n</think>\n\nHello, world."},
    "form": {"answer": "A form.\n</think>\n\n{\"a\": \"x\"}"},
    "done": {"answer": "It rains.\n</think>\n\nTake an umbrella."},
    "shell": {"answer": "I look.\n</think>\n\nLooking.\n\n" + call("exec_command", cmd=f"echo 'one \"two\"' > a.txt; {NEXT}")},
    "two": {"answer": "Both.\n</think>\n\n" + call("exec_command", cmd="echo one") + "\n"
                      + call("exec_command", cmd=NEXT, max_output_tokens=500)},
    "write": {"answer": "I write.\n</think>\n\nWriting.\n\n" + call("Write", file_path="{folder}/a.txt", content='one "two"\n') + "\n"
                        + call("Bash", command="cat a.txt; " + NEXT, description="Looks")},
}


def document_block(heading, language):
    """The settings as the document prints them."""
    text = (HERE.parent.parent / "docs" / "clients.md").read_text(encoding="utf-8")
    return re.search(rf"^## {heading}\n.*?^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[1]


@contextlib.contextmanager
def at_work():
    """A server of a model with room for agents, and a folder with a home and a place to work."""
    with tempfile.TemporaryDirectory() as folder:
        model, work = pathlib.Path(folder, "model"), pathlib.Path(folder, "work")
        for made in (model, work, pathlib.Path(folder, "home", ".codex"), pathlib.Path(folder, "home", ".claude")):
            made.mkdir(parents=True)
        for file in pathlib.Path(ARGS.model).resolve().iterdir():
            if file.name != "config.json":
                (model / file.name).symlink_to(file)
        config = (pathlib.Path(ARGS.model) / "config.json").read_text()
        (model / "config.json").write_text(re.sub(r'("max_position_embeddings": *)\d+', rf"\g<1>{POSITIONS}", config))
        plans = json.loads(json.dumps(PLANS).replace("{folder}", str(work)))
        given, ARGS.model = ARGS.model, str(model)
        try:
            with Scripted(plans, "--served-model-name", NAME, "--max-model-len", "96k", "--kv-cache-tokens", "128k") as server:
                yield server, pathlib.Path(folder)
        finally:
            ARGS.model = given


def run(folder, command, **variables):
    """What it wrote. It sees none of the variables of whoever runs this."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder / "home"), **variables}
    done = subprocess.run(list(map(str, command)), cwd=folder / "work", env=environment, stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def check_server(server, route, requests):
    """Nothing was refused or asked twice, and each turn found the one before in the cache."""
    server.wait_for(server.idle)
    counts = re.findall(r"^http_requests_total{(.*)} (\d+)$", server.metrics(), re.MULTILINE)
    answered = server.metric("http_requests_total", handler=route, status="200")
    assert answered == server.metric("http_requests_total", handler=route) >= requests, counts
    assert server.metric("vllm:prefix_cache_hits_total") > 0.4 * server.metric("vllm:prefix_cache_queries_total"), server.metrics()
    server.expect_all_free()


def test_codex():
    with at_work() as (server, folder):
        settings = document_block("Codex", "toml").replace("127.0.0.1:8000", f"127.0.0.1:{server.port}")
        (folder / "home" / ".codex" / "config.toml").write_text(settings)
        (folder / "schema.json").write_text(json.dumps({"type": "object", "properties": {"a": {"type": "string", "enum": ["x", "y"]}},
                                                        "required": ["a"], "additionalProperties": False}))

        def codex(question, *flags):
            answer = folder / "answer.txt"
            run(folder, [CODEX, "exec", "--skip-git-repo-check", "-s", "danger-full-access", "-o", answer, *flags, question],
                TETRAD_KEY="none")
            return answer.read_text().strip()

        assert codex("plan:hello") == "Hello, world."
        assert codex("plan:shell") == "Take an umbrella."
        assert (folder / "work" / "a.txt").read_text() == 'one "two"\n'
        assert codex("plan:two", "-c", "model_reasoning_effort=high", "-c", "model_reasoning_summary=auto") == "Take an umbrella."
        assert codex("plan:form", "--output-schema", folder / "schema.json") == '{"a": "x"}'
        check_server(server, "/v1/responses", 6)


def test_claude_code():
    with at_work() as (server, folder):
        settings = document_block("Claude Code", "json").replace("127.0.0.1:8000", f"127.0.0.1:{server.port}")
        (folder / "home" / ".claude" / "settings.json").write_text(settings)

        def claude(question):
            command = [CLAUDE, "-p", "--output-format", "json", "--allowedTools", "Bash,Write", "--max-turns", "4", question]
            result = json.loads(run(folder, command))
            assert result["type"] == "result" and not result["is_error"], result
            return result

        hello = claude("plan:hello")
        assert hello["result"] == "Hello, world." and hello["usage"]["output_tokens"] > 0, hello
        wrote = claude("plan:write")
        assert wrote["result"] == "Take an umbrella." and (folder / "work" / "a.txt").read_text() == 'one "two"\n', wrote
        assert wrote["usage"]["cache_read_input_tokens"] > wrote["usage"]["input_tokens"], wrote["usage"]
        check_server(server, "/v1/messages", 3)


if __name__ == "__main__":
    assert ARGS and sys.version_info >= (3, 11)
    ARGS.scripted = os.path.abspath(ARGS.scripted)
    main("__main__")
