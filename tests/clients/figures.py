#!/usr/bin/env python3
"""Figures of the server, by hand on a quiet machine: memory of idle streams, tokens a second without a model, what the server adds to a
token of the model, what a warm prefix saves. Each several times; medians with the range.

usage: figures.py --tetrad ... --scripted ... --model ... [RESULT.json]
"""
import json
import re
import selectors
import socket
import statistics
import subprocess
import sys
import time

from harness import ARGS, PATIENCE, Scripted, Server, read_until, user
from plans import PLANS

ROUNDS = 7
STOP_IDS = (4034, 4032)  # of tetrad-tiny: kept out, so that both answers have their full length


def spread(values, digits=4):
    return {"median": round(statistics.median(values), digits), "least": round(min(values), digits), "most": round(max(values), digits),
            "runs": len(values)}


def idle_streams(count=2000):
    """Streams whose head is out and whose request waits."""
    with Scripted(PLANS, "--max-num-seqs", "4", "--max-num-queued-reqs", str(count + 10), "--max-model-len", "512") as server:
        server.call("POST", "/v1/chat/completions", {"messages": user("plan:hello")})
        server.tell("hold")
        before = server.metric("process_resident_memory_bytes")
        streams = []
        for _ in range(count):
            streams.append(server.raw("/v1/chat/completions", {"messages": user("plan:hello"), "stream": True}))
            read_until(streams[-1], b"\r\n\r\n")
        after = server.metric("process_resident_memory_bytes")
        assert server.metric("vllm:num_requests_running") + server.metric("vllm:num_requests_waiting") >= count - 1
        for stream in streams:
            stream.close()
        server.tell("go")
        server.expect_all_free()
    return {"streams": count, "megabytes": round((after - before) / 1e6, 1)}


def read_all(connections):
    selector = selectors.DefaultSelector()
    for connection in connections:
        selector.register(connection, selectors.EVENT_READ)
    left, tails = len(connections), {}
    while left:
        for key, _ in selector.select():
            data = key.fileobj.recv(1 << 20)
            tails[key.fd] = (tails.get(key.fd, b"") + data)[-16:]
            if not data or tails[key.fd].endswith(b"0\r\n\r\n"):
                selector.unregister(key.fileobj)
                left -= 1


def free_tokens(path, streams, tokens=2000, step_us=320):
    """Tokens a second of all streams together, from a model that costs nothing but a wait: without it the server leaves its readers here
    behind and cuts them off."""
    rates = []
    with Server("--free", "--max-num-seqs", str(streams), "--kv-cache-tokens", "1m", "--prefix-cache-slots", "0",
                command=[ARGS.scripted]) as server:
        Scripted.tell(server, f"delay {step_us}")
        for _ in range(ROUNDS):
            body = {"max_tokens": tokens, "ignore_eos": True, "stream": True, "temperature": 0}
            body.update({"prompt": "Who"} if path == "/v1/completions" else {"messages": user("Who")})
            cpu, started = server.metric("process_cpu_seconds_total"), time.monotonic()
            connections = [server.raw(path, body) for _ in range(streams)]
            read_all(connections)
            seconds = time.monotonic() - started
            used = server.metric("process_cpu_seconds_total") - cpu
            for connection in connections:
                connection.close()
            rates.append((streams * tokens / seconds, 1e6 * used / (streams * tokens)))
        failed = server.metric("tetrad:requests_failed_total")
        assert failed == 0, failed
    return {"endpoint": path, "streams": streams, "tokens_each": tokens, "step_us": step_us,
            "tokens_per_s": spread([rate for rate, _ in rates], 0), "server_cpu_us_per_token": spread([cpu for _, cpu in rates], 2)}


def run_us_per_token(tokens, threads):
    keep_on = [flag for id_ in STOP_IDS for flag in ("--logit-bias", f"{id_}:-100")]
    done = subprocess.run([ARGS.tetrad, "run", "-m", ARGS.model, "-p", "Who are you?", "--raw", "--temp", "0", "--max-tokens", str(tokens),
                           "--threads", str(threads), *keep_on], capture_output=True, text=True, timeout=PATIENCE, check=True)
    steps, seconds = re.search(r"(\d+) steps in ([\d.]+) s", done.stderr).groups()
    return 1e6 * float(seconds) / int(steps)


def added_by_server(threads, tokens=1000):
    """Time of a token of one stream, and of `tetrad run`, in turn. Who reads the stream wants a processor, too: with a thread for each the
    model shares one with it."""
    served, alone = [], []
    with Server("--prefix-cache-slots", "0", "--threads", str(threads)) as server:
        for _ in range(ROUNDS):
            alone.append(run_us_per_token(tokens, threads))
            body = {"prompt": "Who are you?", "max_tokens": tokens, "stream": True, "temperature": 0,
                    "logit_bias": {str(id_): -100 for id_ in STOP_IDS}}
            before = server.metric("vllm:request_decode_time_seconds_sum")
            with server.raw("/v1/completions", body) as connection:
                read_all([connection])
            served.append(1e6 * (server.metric("vllm:request_decode_time_seconds_sum") - before) / (tokens - 1))
    ratios = [a / b for a, b in zip(served, alone)]
    return {"tokens": tokens, "threads": threads, "run_us_per_token": spread(alone, 1), "served_us_per_token": spread(served, 1),
            "ratio": spread(ratios)}


def warm_prefix(tokens=1000):
    cold, warm = [], []
    with Server("--prefix-cache-slots", "64") as server:
        for round_ in range(ROUNDS):
            ids = [256 + (7 * i + 13 * round_) % 700 for i in range(tokens)]
            times = []
            for _ in range(2):
                started = time.monotonic()
                with server.raw("/v1/completions", {"prompt": ids, "max_tokens": 4, "ignore_eos": True, "stream": True}) as connection:
                    read_until(connection, b'"text"')
                    times.append(1e3 * (time.monotonic() - started))
            cold.append(times[0])
            warm.append(times[1])
    return {"tokens": tokens, "cold_ttft_ms": spread(cold, 2), "warm_ttft_ms": spread(warm, 2),
            "ratio": spread([w / c for w, c in zip(warm, cold)])}


def main():
    result = {"benchmark": "server", "idle_streams": idle_streams(),
              "free_engine": [free_tokens("/v1/chat/completions", 32), free_tokens("/v1/completions", 32)],
              "added_by_server": [added_by_server(1), added_by_server(2)], "warm_prefix": warm_prefix()}
    text = json.dumps(result, indent=1)
    print(text)
    if ARGS.tests:
        with open(ARGS.tests[0], "w", encoding="ascii") as file:
            file.write(text + "\n")


if __name__ == "__main__":
    socket.setdefaulttimeout(PATIENCE)
    sys.exit(main())
