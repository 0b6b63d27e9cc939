#!/usr/bin/env python3
"""`tetrad bench serve` against the scripted server, whose answers and times are known."""
import json
import subprocess

from harness import ARGS, PATIENCE, Scripted, main
from plans import PLANS


def bench(server, *flags, code=0):
    done = subprocess.run([ARGS.tetrad, "bench", "serve", "--json", *(() if "--base-url" in flags else ("--base-url", server.url)), *flags], capture_output=True, text=True,
                          timeout=PATIENCE, check=False)
    assert done.returncode == code, (done.returncode, done.stderr)
    return json.loads(done.stdout) if code == 0 else done.stderr


ENDLESS = {**PLANS, "default": PLANS["forever"]}


def test_fixed_concurrency():
    with Scripted(ENDLESS) as server:
        got = bench(server, "-n", "12", "--concurrency", "3", "--input-len", "20", "--output-len", "16", "--ignore-eos", "--seed", "3")
        assert got["completed"] == 12 and got["errors"] == {} and got["model"] == "tetrad-tiny", got
        assert got["prompt_tokens"] == 240 and got["completion_tokens"] == 192, got
        assert server.metric("vllm:prompt_tokens_total") == 240 and server.metric("vllm:generation_tokens_total") == 192
        for name in ("ttft_ms", "itl_ms", "tpot_ms", "e2e_ms"):
            # What comes in one piece of the network's has no time between it.
            assert (0 if name in ("itl_ms", "tpot_ms") else 1e-6) <= got[name]["p50"] <= got[name]["p90"] <= got[name]["p99"], got
        ranges = bench(server, "-n", "8", "--input-len", "5:50", "--output-len", "2:9", "--ignore-eos", "--concurrency", "8")
        assert 40 <= ranges["prompt_tokens"] <= 400 and 16 <= ranges["completion_tokens"] <= 72, ranges
        server.expect_all_free()


def test_times_are_those_of_the_server():
    with Scripted(ENDLESS) as server:
        server.tell("delay 20000")
        got = bench(server, "-n", "2", "--input-len", "8", "--output-len", "11", "--ignore-eos", "--goodput", "ttft:1,itl:60000")
        assert got["itl_ms"]["p50"] >= 15 and got["ttft_ms"]["p50"] >= 15 and got["e2e_ms"]["p50"] >= 200, got
        assert got["good_requests"] == 0 and got["goodput"] == 0, got


def test_rate():
    with Scripted(ENDLESS) as server:
        got = bench(server, "-n", "20", "--request-rate", "40", "--input-len", "8", "--output-len", "4", "--ignore-eos", "--seed", "1")
        assert got["completed"] == 20 and got["seconds"] > 0.2, got


def test_prefixes_and_turns():
    with Scripted(ENDLESS) as server:
        got = bench(server, "-n", "6", "--shared-prefix", "200", "--input-len", "10", "--output-len", "4")
        assert got["prompt_tokens"] == 6 * 210 and got["cached_tokens"] >= 4 * 192, got
        for endpoint in ("/v1/completions", "/v1/chat/completions"):
            got = bench(server, "-n", "3", "--turns", "4", "--input-len", "30", "--output-len", "8", "--endpoint", endpoint, "--seed", "9")
            assert got["completed"] == 12 and got["cached_tokens"] > got["prompt_tokens"] / 3, got


def test_errors_are_counted():
    with Scripted(ENDLESS, "--max-num-seqs", "1", "--max-num-queued-reqs", "1") as server:
        server.tell("delay 1000")
        got = bench(server, "-n", "10", "--concurrency", "10", "--input-len", "8", "--output-len", "50", "--ignore-eos")
        assert got["completed"] >= 1 and got["errors"] == {"queue_full": 10 - got["completed"]}, got
        long = bench(server, "-n", "2", "--input-len", "5000", "--model", "tetrad-tiny", code=1)
        assert long == "", long
        assert "expected http://" in bench(server, "--base-url", "ftp://x", code=2)


if __name__ == "__main__":
    assert ARGS
    main("__main__")
