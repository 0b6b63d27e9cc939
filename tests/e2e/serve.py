#!/usr/bin/env python3
"""`tetrad serve` from outside, over sockets: life-cycle, framing, limits, refusals, clients that leave.

usage: serve.py BINARY MODEL_DIRECTORY [TEST...]
"""
import array
import http.client
import json
import math
import os
import pathlib
import re
import signal
import socket
import ssl
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from suite import PATIENCE, HttpClient, read_until, run_tests  # noqa: E402  pylint: disable=wrong-import-position

BINARY, MODEL = sys.argv[1], sys.argv[2]
QUESTION = [{"role": "user", "content": "What is 12 + 30?"}]


class Server(HttpClient):
    """A running server; leaves no process behind."""

    def __init__(self, *flags, environment=None):
        self.process = subprocess.Popen([BINARY, "serve", "-m", MODEL, "--port", "0", *flags], stderr=subprocess.PIPE,
                                        stdout=subprocess.DEVNULL, text=True, env={**os.environ, **(environment or {})})
        self.lines = []
        self.port = int(re.search(r"listening on http://127.0.0.1:(\d+)", self.line("listening on http://127.0.0.1:"))[1])

    def line(self, start):
        while True:
            line = self.process.stderr.readline()
            if not line:
                raise AssertionError(f"no line with {start!r}: {self.lines}")
            self.lines.append(line)
            if start in line:
                return line

    def ready(self):
        self.line("ready in ")
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stderr.close()

    def metric(self, name):
        _, text = self.call("GET", "/metrics")
        values = [float(value) for value in re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)]
        assert values, f"no series {name}"
        return sum(values)


def unchunked(data):
    """The body of a chunked response; every byte of the framing is checked."""
    body = b""
    while True:
        size, separator, data = data.partition(b"\r\n")
        assert separator and re.fullmatch(rb"[0-9a-f]+", size), size
        length = int(size, 16)
        assert data[length:length + 2] == b"\r\n", data[:50]
        body += data[:length]
        data = data[length + 2:]
        if length == 0:
            assert not data, data
            return body


def events_of(body):
    text = body.decode()
    assert text.endswith("\n\n"), text[-50:]
    events = text[:-2].split("\n\n")
    for event in events:
        assert event.startswith("data: ") and "\n" not in event or event == ": keepalive", event
    events = [event[len("data: "):] for event in events if event != ": keepalive"]
    assert events[-1] == "[DONE]", events[-1]
    return [json.loads(event) for event in events[:-1]]


def endless(**more):
    return {"prompt": "Who are you?", "max_tokens": 3000, "ignore_eos": True, "stream": True, "temperature": 0, **more}


def test_loading_and_models():
    with Server() as server:
        statuses = set()
        while 200 not in statuses:
            response, body = server.call("GET", "/health")
            statuses.add(response.status)
            assert response.status == 200 or (response.status == 503 and body["status"] == "loading" and 0 <= body["progress"] <= 1), body
            assert server.call("GET", "/health/live")[0].status == 200
        server.ready()
        name = pathlib.Path(MODEL).name
        response, models = server.call("GET", "/v1/models", headers={"X-Request-Id": "mine-1"})
        assert response.getheader("X-Request-Id") == "mine-1"
        assert [model["id"] for model in models["data"]] == [name] and models["data"][0]["max_model_len"] == 4096, models
        assert server.call("GET", f"/v1/models/{name}")[1]["id"] == name
        assert server.call("GET", "/v1/models/other")[0].status == 404
        assert "version" in server.call("GET", "/version")[1]
        _, ids = server.call("POST", "/tokenize", {"prompt": "Who are you?"})
        assert server.call("POST", "/detokenize", {"tokens": ids["tokens"]})[1] == {"prompt": "Who are you?"}
        assert server.call("GET", "/tokenizer_info")[1]["eos_token"]
        assert server.metric("vllm:num_requests_running") == 0


def test_answers():
    with Server().ready() as server:
        ask = {"messages": QUESTION, "temperature": 0, "max_tokens": 60, "chat_template_kwargs": {"enable_thinking": False}}
        _, whole = server.call("POST", "/v1/chat/completions", ask)
        message = whole["choices"][0]["message"]
        assert "42" in message["content"] and whole["choices"][0]["finish_reason"] == "stop", whole
        usage = whole["usage"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"], usage

        with server.raw("/v1/chat/completions", {**ask, "stream": True, "stream_options": {"include_usage": True}}) as connection:
            head, _, rest = read_until(connection, b"\r\n\r\n").partition(b"\r\n\r\n")
            for line in (b"HTTP/1.1 200 OK", b"Content-Type: text/event-stream", b"Cache-Control: no-cache",
                         b"Transfer-Encoding: chunked", b"X-Accel-Buffering: no", b"X-Request-Id: req-"):
                assert line in head, (line, head)
            while not rest.endswith(b"\r\n0\r\n\r\n"):
                more = connection.recv(65536)
                assert more, rest
                rest += more
        chunks = events_of(unchunked(rest))
        assert chunks[0]["choices"][0]["delta"]["role"] == "assistant", chunks[0]
        content = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"])
        assert content == message["content"], (content, message)
        assert [chunk["choices"][0]["finish_reason"] for chunk in chunks if chunk["choices"]][-1] == "stop"
        assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] == usage["completion_tokens"], chunks[-1]

        thinking = {"messages": QUESTION, "temperature": 0, "max_tokens": 100}
        message = server.call("POST", "/v1/chat/completions", thinking)[1]["choices"][0]["message"]
        assert message["reasoning_content"] == message["reasoning"] and "42" in message["content"], message
        assert "think>" not in message["content"] + message["reasoning"], message

        ids = server.call("POST", "/tokenize", {"prompt": "Who are"})[1]["tokens"]
        _, many = server.call("POST", "/v1/completions", {"prompt": [ids, ids], "max_tokens": 5, "temperature": 0, "n": 2})
        assert [choice["index"] for choice in many["choices"]] == [0, 1, 2, 3] and many["usage"]["completion_tokens"] <= 20, many
        _, echoed = server.call("POST", "/v1/completions", {"prompt": "Who are", "max_tokens": 3, "temperature": 0, "echo": True})
        assert echoed["choices"][0]["text"].startswith("Who are"), echoed


def reference_logprobs(ids):
    """Log-softmax in double precision of the rows that `tetrad logits` writes."""
    with tempfile.NamedTemporaryFile(suffix=".safetensors") as out:
        subprocess.run([BINARY, "logits", "-m", MODEL, "--ids", ",".join(map(str, ids)), "--out", out.name], check=True, capture_output=True)
        data = pathlib.Path(out.name).read_bytes()
    length = int.from_bytes(data[:8], "little")
    rows, width = json.loads(data[8:8 + length])["logits"]["shape"]
    for row in range(rows):
        logits = array.array("f", data[8 + length + 4 * row * width:8 + length + 4 * (row + 1) * width])
        best = max(logits)
        total = best + math.log(math.fsum(math.exp(x - best) for x in logits))
        yield [x - total for x in logits]


def test_prompt_scores():
    """Log probabilities as lm-evaluation-harness asks for them, equal to those of the model's own logits."""
    with Server().ready() as server:
        ids = server.call("POST", "/tokenize", {"prompt": "Who are you? I am a small model, and 12 + 30 is 42."})[1]["tokens"]
        ask = {"prompt": [ids, ids[:3]], "temperature": 0, "seed": 1234, "logprobs": 1, "max_tokens": 1, "echo": True}
        choices = server.call("POST", "/v1/completions", ask)[1]["choices"]
        _, alone = server.call("POST", "/v1/completions", {"prompt": ids, "max_tokens": 0, "prompt_logprobs": 2, "temperature": 0})
        reference = list(reference_logprobs(ids))
        for choice, prompt in zip(choices, (ids, ids[:3])):
            chosen, top = choice["logprobs"]["token_logprobs"], choice["logprobs"]["top_logprobs"]
            assert len(chosen) == len(top) == len(prompt) + 1 and chosen[0] is None and top[0] is None, choice
            for at in range(1, len(prompt)):
                expected = reference[at - 1]
                assert abs(chosen[at] - expected[prompt[at]]) < 2e-6, (at, chosen[at], expected[prompt[at]])
                greedy = expected[prompt[at]] == max(expected)
                assert (chosen[at] == max(top[at].values())) == greedy, (at, chosen[at], top[at])
            assert chosen[-1] == max(top[-1].values()), choice
        scores = alone["choices"][0]["prompt_logprobs"]
        assert alone["usage"]["completion_tokens"] == 0 and len(scores) == len(ids) and scores[0] is None
        for at in range(1, len(ids)):
            assert scores[at][str(ids[at])]["logprob"] == choices[0]["logprobs"]["token_logprobs"][at], at
        # A conversation that was answered is scored as if it were new, and what was scored does not change the answer.
        again = server.call("POST", "/v1/completions", ask)[1]["choices"]
        assert [c["logprobs"] for c in again] == [c["logprobs"] for c in choices]


def test_responses():
    """A turn with thinking, and the next one with the first one's items sent back."""
    with Server("--reasoning-budget", "8").ready() as server:
        ask = {"input": [{"role": "user", "content": "What is 12 + 30?"}], "temperature": 0, "max_output_tokens": 200}
        response, first = server.call("POST", "/v1/responses", ask)
        assert response.status == 200 and first["status"] == "completed", first
        kinds = [item["type"] for item in first["output"]]
        assert kinds == ["reasoning", "message"] and "42" in first["output"][1]["content"][0]["text"], first
        assert first["usage"]["output_tokens_details"]["reasoning_tokens"] > 0, first["usage"]
        ask["input"] += first["output"] + [{"role": "user", "content": "Who are you?"}]
        second = server.call("POST", "/v1/responses", ask)[1]
        assert second["usage"]["input_tokens_details"]["cached_tokens"] > 0, second["usage"]
        assert server.call("GET", "/v1/responses/" + first["id"])[0].status == 404


def test_forms():
    """A tiny model that knows no JSON: what ends on its own is valid, with thinking and without, whole and streamed."""
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}, "kind": {"enum": ["sum", "other"]},
                                               "why": {"type": "string", "maxLength": 12}}, "required": ["n", "kind"]}
    tool = {"type": "function", "function": {"name": "save", "parameters": schema}}
    with Server().ready() as server:
        for thinking in (False, True):
            ask = {"messages": QUESTION, "temperature": 0.7, "seed": 3, "max_tokens": 400, "enable_thinking": thinking,
                   "thinking_token_budget": 20, "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}}
            choice = server.call("POST", "/v1/chat/completions", ask)[1]["choices"][0]
            answer = json.loads(choice["message"]["content"])
            assert choice["finish_reason"] == "stop" and 0 <= answer["n"] <= 99 and answer["kind"] in ("sum", "other"), choice
            assert len(answer.get("why", "")) <= 12, choice
            with server.raw("/v1/chat/completions", {**ask, "stream": True}) as connection:
                data = b""
                while not data.endswith(b"\r\n0\r\n\r\n"):
                    data += connection.recv(65536)
            chunks = events_of(unchunked(data.partition(b"\r\n\r\n")[2]))
            assert "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks) == choice["message"]["content"], chunks
            del ask["response_format"]
            choice = server.call("POST", "/v1/chat/completions", {**ask, "tools": [tool], "tool_choice": "required",
                                                                 "parallel_tool_calls": False})[1]["choices"][0]
            assert choice["finish_reason"] == "tool_calls" and len(choice["message"]["tool_calls"]) == 1, choice
            arguments = json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"])
            assert 0 <= arguments["n"] <= 99 and arguments["kind"] in ("sum", "other"), choice
        response, body = server.call("POST", "/v1/chat/completions", {"messages": QUESTION, "guided_json": {"not": {}}})
        assert response.status == 400 and body["error"]["param"] == "guided_json", body


def test_refusals():
    with tempfile.NamedTemporaryFile("w") as keys:
        keys.write("# keys\nsecret-1\n")
        keys.flush()
        with Server("--api-key-file", keys.name).ready() as server:
            good = {"Authorization": "Bearer secret-1"}
            assert server.call("GET", "/health")[0].status == 200
            for headers in ({}, {"Authorization": "Bearer secret-2"}, {"x-api-key": "secret"}):
                response, body = server.call("GET", "/v1/models", headers=headers)
                assert response.status == 401 and response.getheader("WWW-Authenticate") == "Bearer", headers
                assert body["error"]["code"] == "invalid_api_key", body
            assert server.call("GET", "/v1/models", headers={"x-api-key": "secret-1"})[0].status == 200
            response, body = server.call("POST", "/v1/chat/completions", '{"messages": [', good)
            assert response.status == 400 and body["error"]["type"] == "invalid_request_error", body
            for field, value in (("temperature", -1), ("max_tokens", "5"), ("n", 0), ("messages", "hello"), ("top_p", 0), ("stop", [""])):
                ask = {"messages": QUESTION, "max_tokens": 5, field: value}
                response, body = server.call("POST", "/v1/chat/completions", ask, good)
                assert response.status == 400 and body["error"]["param"].startswith(field), (field, response.status, body)
            response, body = server.call("POST", "/v1/completions", {"prompt": "a", "max_tokens": 5000}, good)
            assert response.status == 400 and body["error"]["code"] == "context_length_exceeded", body
            assert body["error"]["message"].startswith("This model's maximum context length is 4096 tokens"), body
            response, body = server.call("POST", "/v1/completions", {"prompt": "a", "model": "other"}, good)
            assert response.status == 404 and body["error"]["code"] == "model_not_found", body
            connection = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE)
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret-1\r\n"
                               b"Content-Type: application/json\r\nContent-Length: 67108865\r\n\r\n")
            assert read_until(connection, b"\r\n").startswith(b"HTTP/1.1 413 ")
            connection.close()
            assert server.call("GET", "/health")[0].status == 200


def test_disconnect():
    with Server("--prefix-cache-slots", "0").ready() as server:
        for stream in (True, False):
            aborted = server.metric("vllm:request_success_total")
            with server.raw("/v1/completions", endless(stream=stream)) as connection:
                if stream:
                    read_until(connection, b"data: ")
                else:
                    server.wait_for(lambda: server.metric("vllm:num_requests_running") == 1)
            server.wait_for(lambda: server.metric("vllm:num_requests_running") == 0)
            assert server.metric("vllm:num_requests_waiting") == 0 and server.metric("vllm:kv_cache_usage_perc") == 0
            assert server.metric("tetrad:slots_taken") == 0 and server.metric("tetrad:pages_taken") == 0
            assert server.metric("vllm:request_success_total") == aborted + 1
        assert server.metric("tetrad:client_disconnects_total") == 2
        _, text = server.call("GET", "/metrics")
        assert re.search(r'request_success_total{[^}]*finished_reason="abort"} 2\n', text), text


def test_queue_full():
    with Server("--max-num-seqs", "1", "--max-num-queued-reqs", "1").ready() as server:
        with server.raw("/v1/completions", endless()) as first:
            read_until(first, b"data: ")
            with server.raw("/v1/completions", endless()) as second:
                read_until(second, b"\r\n\r\n")  # admitted: its head is sent although it waits
                response, body = server.call("POST", "/v1/completions", endless(stream=False))
                assert response.status == 503 and response.getheader("Retry-After"), response.status
                assert body["error"]["code"] == "queue_full", body
        server.wait_for(lambda: server.metric("vllm:num_requests_running") + server.metric("vllm:num_requests_waiting") == 0)
        assert server.call("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1})[0].status == 200


def test_drain():
    with Server("--shutdown-timeout", str(PATIENCE)).ready() as server:
        with server.raw("/v1/completions", endless(max_tokens=1500)) as connection:
            data = read_until(connection, b"data: ")
            server.process.send_signal(signal.SIGTERM)
            server.line("stopping")
            server.wait_for(lambda: server.call("GET", "/health/ready")[0].status == 503)
            response, body = server.call("POST", "/v1/completions", {"prompt": "a"})
            assert response.status == 503 and response.getheader("Retry-After"), body
            while not data.endswith(b"0\r\n\r\n"):
                more = connection.recv(65536)
                assert more, data[-200:]
                data += more
            assert b"data: [DONE]\n\n" in data
        assert server.process.wait(PATIENCE) == 0


def test_drain_that_runs_out():
    with Server("--shutdown-timeout", "0").ready() as server:
        with server.raw("/v1/completions", endless()) as streamed, server.raw("/v1/completions", endless(stream=False)) as whole:
            data = read_until(streamed, b"data: ")
            server.wait_for(lambda: server.metric("vllm:num_requests_running") == 2)
            server.process.send_signal(signal.SIGTERM)
            data += read_until(streamed, b"0\r\n\r\n")
            assert b'"code":"stopping"' in data and b"[DONE]" not in data, data[-300:]
            answer = read_until(whole, b"}}")
            assert answer.startswith(b"HTTP/1.1 503 ") and b'"code":"stopping"' in answer, answer
        assert server.process.wait(PATIENCE) == 1


def test_second_signal():
    with Server().ready() as server:
        with server.raw("/v1/completions", endless()) as connection:
            read_until(connection, b"data: ")
            server.process.send_signal(signal.SIGTERM)
            server.line("stopping")
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(PATIENCE) == 1
    with Server() as server:  # told to stop while it loads, or just after
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE) == 0


def test_unix_socket():
    with tempfile.TemporaryDirectory() as folder:
        path = folder + "/t.sock"
        process = subprocess.Popen([BINARY, "serve", "-m", MODEL, "--uds", path], stderr=subprocess.PIPE, text=True)
        try:
            while "ready in " not in process.stderr.readline():
                assert process.poll() is None
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(PATIENCE)
                connection.connect(path)
                connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
                assert read_until(connection, b"}").startswith(b"HTTP/1.1 200 OK\r\n")
            process.terminate()
            assert process.wait(PATIENCE) == 0
            assert not pathlib.Path(path).exists()
        finally:
            process.kill()
            process.wait()
            process.stderr.close()


def test_tls():
    with tempfile.TemporaryDirectory() as folder:
        certificate, key = folder + "/cert.pem", folder + "/key.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key,
                        "-out", certificate, "-days", "1", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"],
                       check=True, capture_output=True)
        process = subprocess.Popen([BINARY, "serve", "-m", MODEL, "--port", "0", "--ssl-certfile", certificate, "--ssl-keyfile", key],
                                   stderr=subprocess.PIPE, text=True)
        try:
            line = ""
            while "ready in " not in line:
                line = process.stderr.readline()
                assert line, "no line that says ready"
            port = int(line.rpartition(":")[2])
            trusted = ssl.create_default_context(cafile=certificate)
            connection = http.client.HTTPSConnection("localhost", port, timeout=PATIENCE, context=trusted)
            for _ in range(2):  # on one connection
                connection.request("POST", "/v1/completions", json.dumps({"prompt": "Who", "max_tokens": 2, "stream": True}),
                                   {"Content-Type": "application/json"})
                events_of(connection.getresponse().read())
            connection.close()
            with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as plain:
                plain.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
                assert not plain.recv(100).startswith(b"HTTP/"), "answered without TLS"
            process.terminate()
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()
            process.wait()
            process.stderr.close()


def test_logs_settings_and_origins():
    chat = {"messages": [{"role": "user", "content": "Say XYZZY"}], "max_tokens": 3, "temperature": 0}
    with tempfile.TemporaryDirectory() as folder:
        config, log = folder + "/serve.yaml", folder + "/requests.jsonl"
        pathlib.Path(config).write_text(f"served-model-name: from-file\nlog-format: json\nrequest_log_jsonl: '{log}'\n"
                                        "allowed-origins: https://chat.example\nmax-num-seqs: 3\n")
        environment = {"TETRAD_LOG_REQUESTS": "true", "TETRAD_API_KEY": "a-secret-key", "TETRAD_MAX_NUM_SEQS": "2"}
        with Server("--config", config, environment=environment) as server:
            server.ready()
            headers = {"Authorization": "Bearer a-secret-key", "Origin": "https://chat.example"}
            response, models = server.call("GET", "/v1/models", headers=headers)
            assert models["data"][0]["id"] == "from-file", models
            assert response.getheader("Access-Control-Allow-Origin") == "https://chat.example"
            for stream in (False, True):
                response, _ = server.call("POST", "/v1/chat/completions", {**chat, "stream": stream}, headers)
                assert response.status == 200 and response.getheader("Access-Control-Allow-Origin") == "https://chat.example"
            response, body = server.call("OPTIONS", "/v1/chat/completions", headers={
                "Origin": "https://chat.example", "Access-Control-Request-Method": "POST",
                "Access-Control-Request-Headers": "authorization, content-type"})
            assert response.status == 204 and body == "" and response.getheader("Content-Length") is None, response.status
            assert response.getheader("Access-Control-Allow-Headers") == "authorization, content-type"
            response, _ = server.call("POST", "/v1/chat/completions", chat, {"Origin": "https://chat.example"})
            assert response.status == 401 and response.getheader("Access-Control-Allow-Origin") == "https://chat.example"
            metrics = server.call("GET", "/metrics", headers=headers)[1]
            assert re.search(r"^tetrad:slots{[^}]*} 4$", metrics, re.MULTILINE), "two sequences and two snapshots: the environment counts"
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(PATIENCE) == 0
            server.lines += server.process.stderr.readlines()
        shown = [json.loads(line) for line in server.lines]
        written = [json.loads(line) for line in pathlib.Path(log).read_text().splitlines()]
        for events in (written, [line for line in shown if line["event"] in ("start", "done", "error")]):
            assert [event["event"] for event in events] == ["start", "done", "start", "done"], events
            assert events[3]["completion_tokens"] == 3 and events[3]["finish_reasons"] == ["length"], events[3]
        text = json.dumps([shown, written])
        assert "XYZZY" not in text and "secret" not in text, text


if __name__ == "__main__":
    run_tests("__main__", sys.argv[3:])
