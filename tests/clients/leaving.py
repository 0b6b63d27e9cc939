#!/usr/bin/env python3
"""Clients that leave, stall, flood or half-close, and a server that is killed: what they held is free afterwards."""
import contextlib
import json
import random
import signal
import socket
import struct
import threading

from harness import ARGS, PATIENCE, Scripted, gone, main, read_to_end, read_until, user
from plans import PLANS

CHAT, TEXT, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"
ENDLESS = {"messages": user("plan:forever"), "max_tokens": 3000}


def test_every_way_in_every_phase():
    with Scripted(PLANS, "--max-num-seqs", "2", "--max-rows", "8") as server:
        server.tell("hold")
        left = 0
        for path in (CHAT, TEXT, MESSAGES):
            for stream in (True, False):
                for how in ("close", "half", "reset"):
                    body = {**ENDLESS, "stream": stream} if path != TEXT else {"prompt": "plan:forever;", "max_tokens": 3000, "stream": stream}
                    # Two run, the first of them with a prompt of many steps; the third waits.
                    long = {**body, ("prompt" if path == TEXT else "messages"): "a " * 600 + "plan:forever;" if path == TEXT
                            else user("a " * 600 + "plan:forever")}
                    connections = [server.raw(path, long), server.raw(path, body), server.raw(path, body)]
                    server.wait_for(lambda: server.metric("vllm:num_requests_running") + server.metric("vllm:num_requests_waiting") == 3)
                    server.tell("step 3")
                    for connection in connections:
                        gone(connection, how)
                    left += 3
                    server.wait_for(lambda: server.metric("tetrad:client_disconnects_total") == left)
                    server.tell("go")
                    server.expect_all_free()
                    server.tell("hold")
        server.tell("go")
        answer = server.call("POST", CHAT, {"messages": user("plan:hello")})[1]
        assert answer["choices"][0]["message"]["content"] == "Hello, world.", answer
        server.stop()


def test_other_streams_go_on():
    """One of two leaves in mid-stream; the other gets every token."""
    with Scripted(PLANS) as server:
        server.tell("hold")
        stays = server.raw(CHAT, {**ENDLESS, "max_tokens": 300, "stream": True})
        leaves = server.raw(CHAT, {**ENDLESS, "stream": True})
        server.wait_for(lambda: server.metric("vllm:num_requests_running") + server.metric("vllm:num_requests_waiting") == 2)
        server.tell("step 20")
        read_until(leaves, b"data: ")
        gone(leaves, "reset")
        server.tell("go")
        data = read_until(stays, b"0\r\n\r\n")
        assert data.count(b'"reasoning_content"') == 300, data.count(b'"reasoning_content"')
        stays.close()
        server.expect_all_free()


def test_slow_reader():
    """Who does not read loses the request, and only that one."""
    with Scripted(PLANS, "--max-num-seqs", "4") as server:
        slow = [server.raw(CHAT, {**ENDLESS, "stream": True, "logprobs": True, "top_logprobs": 20}, buffer=4096) for _ in range(2)]
        server.wait_for(lambda: server.metric("tetrad:requests_failed_total", reason="slow_consumer") == 2)
        answer = server.call("POST", CHAT, {"messages": user("plan:hello")})[1]
        assert answer["choices"][0]["message"]["content"] == "Hello, world.", answer
        server.expect_all_free()
        for connection in slow:
            end = b""
            while not end.endswith(b"0\r\n\r\n"):
                more = connection.recv(1 << 20)
                assert more, end
                end = (end + more)[-1000:]
            assert b"slow_consumer" in end and b"[DONE]" not in end, end
            connection.close()


def test_slow_sender_and_fragments():
    with Scripted(PLANS) as server:
        body = json.dumps({"messages": user("plan:hello")}).encode()
        request = (f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
                   "Connection: close\r\n\r\n").encode() + body
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for i in range(len(request)):
                connection.sendall(request[i:i + 1])
            assert b"Hello, world." in read_to_end(connection)
        for cut in (1, 20, len(request) - len(body), len(request) - 1):  # and those that stop in the middle
            with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as connection:
                connection.sendall(request[:cut])
        server.expect_all_free()
        assert server.metric("vllm:prompt_tokens_total") > 0


def test_flood():
    """Many more requests than there is room for: each is answered or refused, none is lost."""
    with Scripted(PLANS, "--max-num-seqs", "4", "--max-num-queued-reqs", "8") as server:
        statuses, lock = [], threading.Lock()
        server.tell("hold")

        def call():
            response, body = server.call("POST", CHAT, {"messages": user("plan:hello")})
            with lock:
                statuses.append(response.status)
            assert response.status == 200 or (body["error"]["code"] == "queue_full" and response.getheader("Retry-After")), body

        threads = [threading.Thread(target=call) for _ in range(40)]
        for thread in threads:
            thread.start()
        server.wait_for(lambda: len(statuses) >= 28)
        server.tell("go")
        for thread in threads:
            thread.join()
        assert statuses.count(503) >= 28 and statuses.count(200) == 40 - statuses.count(503) >= 8, statuses
        server.expect_all_free()
        assert server.metric("tetrad:requests_refused_total", reason="queue_full") == statuses.count(503)


def test_little_memory():
    """More answers than the pages hold at once: some give way, all end right."""
    with Scripted(PLANS, "--max-num-seqs", "8", "--max-model-len", "256", "--kv-cache-tokens", "512", "--prefix-cache-slots", "2") as server:
        bodies = []

        def call(index):
            bodies.append(server.call("POST", TEXT, {"prompt": f"{index} plan:forever;", "max_tokens": 150})[1])

        threads = [threading.Thread(target=call, args=(index,)) for index in range(8)]
        server.tell("hold")  # until all of them are there: else the first may be done before the last
        for thread in threads:
            thread.start()
        server.wait_for(lambda: server.metric("vllm:num_requests_running") + server.metric("vllm:num_requests_waiting") >= 8)
        server.tell("go")
        for thread in threads:
            thread.join()
        assert [body["usage"]["completion_tokens"] for body in bodies] == [150] * 8, bodies
        assert len({body["choices"][0]["text"] for body in bodies}) == 1, bodies
        assert server.metric("vllm:num_preemptions_total") > 0
        server.expect_all_free()


def test_at_random():
    """Two hundred requests that are left after a random number of bytes."""
    rng = random.Random(5)
    with Scripted(PLANS, "--max-num-seqs", "4", "--max-num-queued-reqs", "64") as server:

        def some(seed):
            mine = random.Random(seed)
            for _ in range(25):
                path = mine.choice([CHAT, MESSAGES])
                body = {**ENDLESS, "stream": mine.random() < 0.7}
                if path == CHAT:
                    body["n"] = mine.choice([1, 1, 3])
                with server.raw(path, body) as connection:
                    wanted = mine.choice([0, 1, 100, 500, 5000]) if body["stream"] else 0
                    while wanted > 0:
                        wanted -= len(connection.recv(wanted)) or wanted
                    if mine.random() < 0.5:
                        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

        threads = [threading.Thread(target=some, args=(rng.random(),)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        server.expect_all_free()
        assert server.metric("tetrad:client_disconnects_total") == 200, server.metrics()
        server.stop()


def test_killed():
    """A client of a server that is killed sees the end of the connection, not silence; the port is free at once."""
    with Scripted(PLANS) as server:
        with server.raw(CHAT, {**ENDLESS, "stream": True}) as connection:
            read_until(connection, b"data: ")
            server.tell("hold")
            server.process.send_signal(signal.SIGKILL)
            server.process.wait()
            with contextlib.suppress(ConnectionResetError):
                read_to_end(connection)
        with Scripted(PLANS, "--port", str(server.port)) as again:
            assert again.call("GET", "/health")[0].status == 200


if __name__ == "__main__":
    assert ARGS
    main("__main__")
