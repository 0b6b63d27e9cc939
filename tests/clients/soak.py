#!/usr/bin/env python3
"""Everything at once for a while: answers stay right, counts return to zero, memory stays level. scripts/soak.sh runs it for minutes.

usage: soak.py --tetrad ... --scripted ... --model ... [SECONDS [RESULT.json]]; default 20
"""
import http.client
import json
import os
import random
import statistics
import sys
import threading
import time

from harness import ARGS, Scripted, Server, gone, main, user
from plans import PLANS, WEATHER_SCHEMA

CHAT, TEXT, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": WEATHER_SCHEMA}}]
SECONDS = float(ARGS.tests[0]) if ARGS.tests else 20.0
RESULT = ARGS.tests[1] if len(ARGS.tests) > 1 else None
CLIENTS = 8
# Freed memory that AddressSanitizer keeps apart would look like growth.
os.environ["ASAN_OPTIONS"] = os.environ.get("ASAN_OPTIONS", "") + ":quarantine_size_mb=8"
# The second tier is full soon: it counts what it keeps of states, not the ids by which it finds them, and grows until then.
FLAGS = ["--max-num-seqs", "6", "--max-num-queued-reqs", "12", "--prefix-cache-host-mib", "1", "--sse-ping-interval", "1"]


class Load:
    """One client: a random choice of requests until time is up. `counts` says what it did; what was wrong ends it."""

    def __init__(self, server, seed, until, plans):
        self.server, self.random, self.until, self.plans = server, random.Random(seed), until, plans
        self.counts, self.fault = {}, None
        self.thread = threading.Thread(target=self._work)
        self.thread.start()

    def _work(self):
        acts = [self.whole, self.whole, self.streamed, self.streamed, self.leave, self.completion, self.message, self.refused, self.look]
        if self.plans:
            acts += [self.faulty, self.tools]
        try:
            while time.monotonic() < self.until:
                act = self.random.choice(acts)
                act()
                self.counts[act.__name__] = self.counts.get(act.__name__, 0) + 1
        except Exception as error:  # pylint: disable=broad-except
            self.fault = error

    def ask(self, path, body):
        response, answer = self.server.call("POST", path, body)
        if response.status in (503, 529):  # full: said so, and comes later
            assert response.getheader("Retry-After"), answer
            return None
        assert response.status == 200, (response.status, answer)
        return answer

    def question(self):
        filler = "".join(self.random.choice(" abcde") for _ in range(self.random.choice([0, 10, 300])))
        return user(f"{self.random.randrange(20)} {filler} " + ("plan:hello" if self.plans else "What is 12 + 30?"))

    def whole(self):
        answer = self.ask(CHAT, {"messages": self.question(), "n": self.random.choice([1, 1, 3]), "max_tokens": 60, "temperature": 0,
                                 "logprobs": self.random.random() < 0.3})
        if answer and self.plans:
            assert all(choice["message"]["content"] == "Hello, world." for choice in answer["choices"]), answer

    def streamed(self):
        text = self.ask(CHAT, {"messages": self.question(), "stream": True, "max_tokens": 60, "stream_options": {"include_usage": True}})
        if text:
            assert text.endswith("data: [DONE]\n\n") and "think>" not in text, text[-500:]

    def leave(self):
        prompt = "plan:forever;" if self.plans else "Once upon a time"
        path, body = self.random.choice([(CHAT, {"messages": user(prompt)}), (TEXT, {"prompt": prompt}), (MESSAGES, {"messages": user(prompt)})])
        connection = self.server.raw(path, {**body, "max_tokens": 3000, "stream": self.random.random() < 0.7})
        time.sleep(self.random.random() * 0.1)
        gone(connection, self.random.choice(["close", "reset", "half"]))

    def completion(self):
        prompt = "plan:plain;" if self.plans else "What is"
        answer = self.ask(TEXT, {"prompt": [prompt] * self.random.choice([1, 4]), "max_tokens": 20, "echo": self.random.random() < 0.5,
                                 "stop": ["zz"]})
        assert answer is None or all(isinstance(choice["text"], str) for choice in answer["choices"]), answer

    def message(self):
        stream = self.random.random() < 0.5
        answer = self.ask(MESSAGES, {"messages": self.question(), "max_tokens": 50, "stream": stream})
        assert answer is None or ("event: message_stop" in answer if stream else answer["type"] == "message"), answer

    def refused(self):
        body = self.random.choice(["{", "[" * 10000, json.dumps({"messages": []}), json.dumps({"messages": user("a"), "top_p": 7}),
                                   json.dumps({"messages": user("word " * 20000)})])
        assert self.server.call("POST", CHAT, body)[0].status == 400

    def look(self):
        assert self.server.call("GET", self.random.choice(["/metrics", "/health", "/v1/models", "/load"]))[0].status == 200
        assert self.server.call("POST", "/tokenize", {"prompt": "What is this?"})[0].status == 200

    def faulty(self):
        response, _ = self.server.call("POST", CHAT, {"messages": user("plan:fault"), "chat_template_kwargs": {"enable_thinking": False}})
        assert response.status in (500, 503), response.status

    def tools(self):
        answer = self.ask(CHAT, {"messages": user("plan:two_tools"), "tools": TOOLS})
        if answer:
            assert len(answer["choices"][0]["message"]["tool_calls"]) == 2, answer


def soak(server, plans):
    start = time.monotonic()
    loads = [Load(server, seed, start + SECONDS, plans) for seed in range(CLIENTS)]
    samples = []  # time and MiB
    while time.monotonic() < start + SECONDS:
        time.sleep(max(0.2, SECONDS / 200))
        try:
            samples.append((time.monotonic() - start, server.metric("process_resident_memory_bytes") / 2**20))
        except (OSError, http.client.HTTPException):
            break
    for load in loads:
        load.thread.join()
    faults = [load.fault for load in loads if load.fault]
    assert not faults, (faults, "".join(server.lines)[-6000:])
    server.expect_all_free()
    files = server.metric("process_open_fds")
    counts = {}
    for load in loads:
        for name, count in load.counts.items():
            counts[name] = counts.get(name, 0) + count
    half = [mib for at, mib in samples if SECONDS * 0.4 <= at < SECONDS * 0.6]
    last = [mib for at, mib in samples if at >= SECONDS * 0.8]
    result = {"seconds": SECONDS, "acts": counts, "open_files": files, "generated_tokens": server.metric("vllm:generation_tokens_total"),
              "aborted": server.metric("vllm:request_success_total", finished_reason="abort"),
              "preemptions": server.metric("vllm:num_preemptions_total"),
              "refused": server.metric("tetrad:requests_refused_total"), "failed": server.metric("tetrad:requests_failed_total"),
              "rss_mib": {"at_half": statistics.median(half), "at_end": statistics.median(last), "most": max(mib for _, mib in samples)}}
    server.stop()
    report = [line for line in server.lines if "Sanitizer" in line or "runtime error" in line]
    assert not report, report
    # A leak of 100 bytes a request shows after some minutes; a short run sees no more than a gross one.
    allowed = 1.02 if SECONDS >= 300 else 1.15
    assert result["rss_mib"]["at_end"] <= result["rss_mib"]["at_half"] * allowed + 2, result
    assert files < 40 and sum(counts.values()) > 10, result
    return result


def test_soak():
    results = {}
    with Scripted(PLANS, "--replay-map-mib", "1", *FLAGS) as server:  # full at once: memory is level from then on
        results["scripted"] = soak(server, True)
    if SECONDS >= 60:
        with Server(*FLAGS) as server:
            results["tetrad-tiny"] = soak(server, False)
    print(json.dumps(results, indent=1))
    if RESULT:
        with open(RESULT, "w", encoding="ascii") as file:
            json.dump({"benchmark": "soak", "clients": CLIENTS, "flags": FLAGS, **results}, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    ARGS.tests = []
    main("__main__")
    sys.exit(0)
