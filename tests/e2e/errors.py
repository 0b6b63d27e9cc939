#!/usr/bin/env python3
"""docs/errors.md against a server: what provokes an error there gets the status and code of its row, and Retry-After where the page says so.

usage: errors.py BINARY
"""
import json
import pathlib
import re
import socket
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
from live_server import PATIENCE, LiveServer  # noqa: E402  pylint: disable=wrong-import-position

BINARY = sys.argv[1]
KEY = {"Authorization": "Bearer secret"}


def rows(page):
    """{(status, code): section} of the page's tables of codes."""
    found, section = {}, ""
    for line in page.splitlines():
        section = line if line.startswith("## ") else section
        if match := re.match(r"\| (\d{3}) \| (?:`(\w+)`|-)", line):
            found[int(match.group(1)), match.group(2)] = section
    return found


def raw(server, head):
    """(status, headers, text) of what answers these bytes, and nothing after them."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as connection:
        connection.sendall(head)
        data = b""
        while more := connection.recv(65536):
            data += more
    lines, _, body = data.decode().partition("\r\n\r\n")
    lines = lines.split("\r\n")
    return int(lines[0].split()[1]), dict(line.split(": ", 1) for line in lines[1:]), body


def refusals(server):
    """(code expected, answer) of requests that must not be served."""
    ask = {"messages": [{"role": "user", "content": "Hi"}]}
    chat = "/v1/chat/completions"
    post = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\r\nContent-Type: application/json\r\n"
    yield None, server.ask(chat, b"{", KEY)
    yield None, server.ask(chat, {**ask, "temperature": -1}, KEY)
    yield "context_length_exceeded", server.ask(chat, {**ask, "max_tokens": 1 << 20}, KEY)
    yield "invalid_api_key", server.ask("/v1/models")
    yield "invalid_api_key", server.ask("/v1/models", headers={"x-api-key": "wrong"})
    yield "model_not_found", server.ask(chat, {**ask, "model": "other"}, KEY)
    yield "route_not_found", server.ask("/v1/embeddings", {}, KEY)
    yield "response_not_found", server.ask("/v1/responses/resp_1", headers=KEY)
    yield "method_not_allowed", server.ask(chat, headers=KEY)
    yield "unsupported_media_type", server.ask(chat, b"{}", {**KEY, "Content-Type": "text/plain"})
    yield "request_too_large", raw(server, f"{post}Content-Length: {(64 << 20) + 1}\r\n\r\n".encode())
    yield "headers_too_large", raw(server, (post + "".join(f"X-{i}: y\r\n" for i in range(101)) + "\r\n").encode())
    yield "bad_request", raw(server, b"HELLO\r\n\r\n")
    yield "queue_timeout", queue_timeout(server, post)


def queue_timeout(server, head):
    """The answer to a request that waits behind another one. On a slow machine the first may be the one that waited too long: then again."""
    endless = {"prompt": "Hi", "max_tokens": 3000, "ignore_eos": True, "temperature": 0}
    body = json.dumps({**endless, "stream": True})
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as connection:
            connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
            while b"data: " not in connection.recv(65536):
                pass
            answer = server.ask("/v1/completions", endless, KEY)
        if answer[0] != 200:
            return answer
    raise AssertionError("nothing waited")


def check(code, answer, known):
    status, headers, text = answer
    error = json.loads(text)["error"]
    assert error["code"] == code and error["message"] and headers["X-Request-Id"], (code, answer)
    assert (status, code) in known, f"docs/errors.md has no row for {status} {code}"
    assert ("Retry-After" in headers) == ("cannot now" in known[status, code]), (code, answer)


def main():
    known = rows((ROOT / "docs/errors.md").read_text(encoding="utf-8"))
    codes = set()
    with LiveServer(BINARY, "--api-key", "secret", "--max-num-seqs", "1", "--queue-timeout", "0.05") as server:
        for code, answer in refusals(server):
            check(code, answer, known)
            codes.add(code)
    try:
        check("queue_timeout", answer, {**known, (503, "queue_timeout"): "## The server failed"})
    except AssertionError:
        print(f"ok   {len(codes)} codes are as docs/errors.md says")
        return
    raise AssertionError("a planted fault passes")


if __name__ == "__main__":
    main()
