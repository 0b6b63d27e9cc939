#!/usr/bin/env python3
"""A short load of guidellm's, over each of the streaming APIs: what it counted is what /metrics counted. On request (docs/testing.md)."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from harness import ARGS, Server, main

HERE = pathlib.Path(__file__).resolve().parent

REQUESTS, ANSWER = 24, 32
LIMIT = 240  # seconds for one run, of which the most goes into guidellm's imports


def loaded(server, route, folder):
    """guidellm's report of one run of REQUESTS requests, 4 at a time."""
    report = pathlib.Path(folder) / "report.json"
    arguments = ["--backend", f"kind=openai_http,target={server.url},model=tetrad-tiny,request_format={route}",
                 "--tokenizer", f"kind=huggingface_auto,model={os.path.abspath(ARGS.model)}",
                 "--data", f"kind=synthetic_text,prompt_tokens=64,output_tokens={ANSWER}", "--data-loader", "kind=pytorch,num_workers=0",
                 "--profile", "kind=concurrent,streams=4", "--constraint", f"kind=max_requests,count={REQUESTS}",
                 "--output", f"kind=json,path={report}", "--disable-progress"]
    environment = {**os.environ, "PYTHONPATH": str(HERE / "guidellm_load"), "USE_TORCH": "0", "HF_HUB_OFFLINE": "1", "HF_HOME": folder}
    done = subprocess.run([sys.executable, "-m", "guidellm", "run", *arguments], cwd=folder, env=environment, timeout=LIMIT, check=False,
                          capture_output=True, text=True)
    assert done.returncode == 0 and report.exists(), done.stdout[-3000:] + done.stderr[-3000:]
    return json.loads(report.read_text())["benchmarks"][0]


def check_route(route):
    with Server() as server, tempfile.TemporaryDirectory() as folder:
        metrics = loaded(server, route, folder)["metrics"]
        totals = metrics["request_totals"]
        assert totals == {"successful": REQUESTS, "errored": 0, "incomplete": 0, "total": REQUESTS}, totals

        def total(name):
            return metrics[name]["successful"]["total_sum"]

        assert total("output_token_count") == server.metric("vllm:generation_tokens_total") == REQUESTS * ANSWER, metrics
        assert total("prompt_token_count") == server.metric("vllm:prompt_tokens_total") > 0, metrics
        for name, labels in (("vllm:request_success_total", {"finished_reason": "length"}), ("http_requests_total", {"handler": route})):
            assert server.metric(name, **labels) == REQUESTS, (name, server.metrics())
        assert server.metric("vllm:request_success_total") == server.metric("http_requests_total", status="200", method="POST") == REQUESTS
        assert server.metric("vllm:time_to_first_token_seconds_count") == REQUESTS
        # The client can only see a first token after the server sent it.
        assert total("time_to_first_token_ms") >= 1000 * server.metric("vllm:time_to_first_token_seconds_sum") > 0, metrics
        server.expect_all_free()


def test_chat():
    check_route("/v1/chat/completions")


def test_completions():
    check_route("/v1/completions")


def test_responses():
    check_route("/v1/responses")


if __name__ == "__main__":
    assert ARGS
    main("__main__")
