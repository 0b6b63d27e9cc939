#!/usr/bin/env python3
"""What goes over the wire, when: framing, the first token, keepalives, splits of characters and tags, counts. No package needed."""
import json
import select
import time

from harness import ARGS, Scripted, main, read_until, user
from plans import PLANS, WEATHER_SCHEMA

TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": WEATHER_SCHEMA}}]
CHAT = "/v1/chat/completions"


def events(text):
    """The data of a whole stream, comments dropped; every byte of the framing is checked."""
    assert text.endswith("data: [DONE]\n\n"), text[-80:]
    found = []
    for event in text[:-2].split("\n\n"):
        assert "\n" not in event, event
        if event.startswith(": "):
            continue
        assert event.startswith("data: "), event
        found.append(event[6:])
    return [json.loads(data) for data in found[:-1]]


def silent(connection, seconds):
    return not select.select([connection], [], [], seconds)[0]


def test_nothing_before_the_first_token():
    with Scripted(PLANS) as server:
        server.tell("hold")
        with server.raw(CHAT, {"messages": user("plan:hello"), "stream": True}) as connection:
            head = read_until(connection, b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 OK\r\n") and head.endswith(b"\r\n\r\n"), head
            assert silent(connection, 0.2)
            server.tell("step 1")
            chunk = read_until(connection, b"\n\n")
            assert b'"role":"assistant"' in chunk and b'"reasoning_content":' in chunk, chunk
            assert silent(connection, 0.2)  # one token, one chunk
            server.tell("go")
            read_until(connection, b"data: [DONE]\n\n\r\n0\r\n\r\n")


def test_every_token_at_once():
    """With a step of 30 ms tokens come some 30 ms apart: none waits for the next."""
    with Scripted(PLANS) as server:
        server.tell("delay 30000")
        with server.raw(CHAT, {"messages": user("plan:forever"), "stream": True, "max_tokens": 10}) as connection:
            read_until(connection, b"\r\n\r\n")
            times, data = [], b""
            while not data.endswith(b"0\r\n\r\n"):
                more = connection.recv(65536)
                assert more, data
                times += [time.monotonic()] * more.count(b'"reasoning_content"')
                data += more
        assert len(times) == 10, times
        gaps = sorted(later - earlier for earlier, later in zip(times, times[1:]))
        assert gaps[len(gaps) // 2] > 0.02, gaps


def test_keepalive():
    with Scripted(PLANS, "--sse-ping-interval", "1") as server:
        server.tell("hold")
        with server.raw(CHAT, {"messages": user("plan:hello"), "stream": True}) as running, \
                server.raw("/v1/messages", {"messages": user("plan:hello"), "stream": True, "max_tokens": 9}) as message:
            assert b": keepalive\n\n" in read_until(running, b": keepalive\n\n")
            assert b"event: ping\n" in read_until(message, b'{"type":"ping"}\n\n') or b"event: ping\n" in read_until(message, b"event: ping\n")
            server.tell("go")
            read_until(running, b"[DONE]")


def test_splits_and_tags():
    """Pieces that clients see end at characters and never hold a tag of thoughts or calls."""
    with Scripted(PLANS) as server:
        for plan in ("hello", "unicode", "tool", "two_tools"):
            _, text = server.call("POST", CHAT, {"messages": user("plan:" + plan), "tools": TOOLS, "stream": True})
            for chunk in events(text):
                for choice in chunk["choices"]:
                    said = json.dumps(choice["delta"], ensure_ascii=False)
                    assert "\ufffd" not in said and "think>" not in said and "<tool_call" not in said and "<function" not in said, said
        for limit in range(1, 24):  # cut anywhere: a broken character is shown once, at the end
            body = {"messages": user("plan:unicode"), "stream": True, "max_tokens": limit}
            _, text = server.call("POST", CHAT, body)
            whole = server.call("POST", CHAT, {**body, "stream": False})[1]["choices"][0]
            parts = {"content": "", "reasoning": ""}
            for chunk in events(text):
                for name in parts:
                    parts[name] += chunk["choices"][0]["delta"].get(name, "")
            assert parts["content"] == (whole["message"]["content"] or ""), (limit, parts, whole)
            assert parts["reasoning"] == whole["message"].get("reasoning", ""), (limit, parts, whole)


def test_usage_everywhere():
    with Scripted(PLANS) as server:
        body = {"messages": user("plan:hello"), "stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
        chunks = events(server.call("POST", CHAT, body)[1])
        counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
        assert counts == sorted(counts) and counts[0] == 1 and counts[-1] == counts[-2], counts
        whole = server.call("POST", CHAT, {"messages": user("plan:hello")})[1]["usage"]
        assert {**whole, "prompt_tokens_details": 0} == {**chunks[-1]["usage"], "prompt_tokens_details": 0}, (whole, chunks[-1])
        # An answer may arrive before it is counted.
        for answers in (2, 3):
            server.wait_for(lambda total=answers * whole["completion_tokens"]: server.metric("vllm:generation_tokens_total") == total)
            server.call("POST", CHAT, {"messages": user("plan:hello")})


def test_cached_prefix():
    """A conversation that grows computes what is new, and says so."""
    with Scripted(PLANS) as server:
        turns, last = [], 0
        for turn in range(4):
            turns += user(f"turn {turn} plan:hello")
            answer = server.call("POST", CHAT, {"messages": turns})[1]
            usage = answer["usage"]
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            if turn > 0:
                assert cached >= last - 8, (turn, usage, last)
            last = usage["prompt_tokens"]
            turns.append(answer["choices"][0]["message"])
        salted = server.call("POST", CHAT, {"messages": turns[:1], "cache_salt": "other"})[1]["usage"]
        assert salted["prompt_tokens_details"]["cached_tokens"] == 0, salted


def test_probe_of_lengths():
    with Scripted(PLANS) as server:
        for limit in (1, 2, 3):
            body = {"prompt": "plan:forever;", "max_tokens": limit, "ignore_eos": True}
            answer = server.call("POST", "/v1/completions", body)[1]
            assert answer["usage"]["completion_tokens"] == limit and answer["choices"][0]["finish_reason"] == "length", answer
        for bad in (-1, 1.5, "5", 2 ** 31, 2 ** 63):
            response, answer = server.call("POST", "/v1/completions", {"prompt": "plan:forever;", "max_tokens": bad})
            error = answer["error"]
            assert response.status == 400 and (error["param"] == "max_tokens" or error["code"] == "context_length_exceeded"), (bad, answer)
        for bad in ([-1], [4096], [2 ** 32 + 1], [1.5], [5, "5"], [None], [[]], []):
            response, answer = server.call("POST", "/v1/completions", {"prompt": bad, "max_tokens": 1})
            assert response.status == 400, (bad, response.status, answer)


if __name__ == "__main__":
    assert ARGS
    main("__main__")
