#!/usr/bin/env python3
"""The anthropic package against the server: messages, streams, thinking, tools, counting, errors, clients that leave."""
import contextlib
import threading

import anthropic
from anthropic import Anthropic

from harness import ARGS, PATIENCE, Scripted, Server, main, raises, user
from plans import ODD_TEXT, PLANS, WEATHER_SCHEMA

TOOLS = [{"name": "get_weather", "description": "Weather of a city", "input_schema": WEATHER_SCHEMA}]
MODEL = "tetrad-tiny"
ASK = {"model": MODEL, "max_tokens": 2000}
THINKING = {"thinking": {"type": "enabled", "budget_tokens": 1024}}
NO_THINKING = {"thinking": {"type": "disabled"}}


def client_of(server, **more):
    return Anthropic(base_url=server.url, api_key="none", **{"max_retries": 0, "timeout": PATIENCE, **more})


@contextlib.contextmanager
def scripted(*flags, **more):
    with Scripted(PLANS, *flags) as server, client_of(server, **more) as client:
        yield server, client


def blocks(message):
    return [(block.type, getattr(block, "thinking", None) or getattr(block, "text", None) or getattr(block, "input", None))
            for block in message.content]


def test_message():
    with scripted() as (_, client):
        message = client.messages.create(**ASK, messages=user("plan:hello"), **THINKING)
        assert message.type == "message" and message.role == "assistant" and message.id.startswith("msg_"), message
        assert blocks(message) == [("thinking", "They greet me."), ("text", "Hello, world.")], message
        assert message.stop_reason == "end_turn" and message.stop_sequence is None, message
        assert message.usage.input_tokens > 0 and message.usage.output_tokens > 0, message
        again = client.messages.create(**ASK, messages=user("plan:hello"), **THINKING)
        assert again.usage.cache_read_input_tokens > 0, again.usage
        assert again.usage.input_tokens + again.usage.cache_read_input_tokens == (
            message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)), (message.usage, again.usage)
        plain = client.messages.create(**ASK, messages=user("plan:plain"), **NO_THINKING)
        assert blocks(plain) == [("text", "Hello, world.")], plain


def test_stream_equals_whole():
    with scripted() as (_, client):
        for plan in ("hello", "unicode", "quoted", "tool", "two_tools", "wrong_tool"):
            ask = {**ASK, "messages": user("plan:" + plan), "tools": TOOLS, **THINKING}
            whole = client.messages.create(**ask)
            with client.messages.stream(**ask) as stream:
                kinds = [event.type for event in stream]
                final = stream.get_final_message()
            assert kinds[0] == "message_start" and kinds[-1] == "message_stop" and "message_delta" in kinds, kinds
            assert kinds.count("content_block_start") == kinds.count("content_block_stop") == len(whole.content), kinds
            assert blocks(final) == blocks(whole), (final, whole)
            assert (final.stop_reason, final.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens), (final, whole)
        with client.messages.stream(**ASK, messages=user("plan:plain"), **NO_THINKING) as stream:
            assert "".join(stream.text_stream) == "Hello, world."


def test_tools():
    with scripted() as (_, client):
        question = user("plan:two_tools")
        message = client.messages.create(**ASK, messages=question, tools=TOOLS)
        calls = [block for block in message.content if block.type == "tool_use"]
        assert message.stop_reason == "tool_use" and len({call.id for call in calls}) == 2, message
        assert [call.input for call in calls] == [{"city": "Oslo", "days": 1}, {"city": ODD_TEXT, "days": 2}], calls
        results = [{"type": "tool_result", "tool_use_id": call.id, "content": "plan:done"} for call in calls]
        turn = [*question, {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in message.content]},
                {"role": "user", "content": results}]
        after = client.messages.create(**ASK, messages=turn, tools=TOOLS)
        assert blocks(after)[-1] == ("text", "Take an umbrella."), after
        one = client.messages.create(**ASK, messages=question, tools=TOOLS,
                                     tool_choice={"type": "auto", "disable_parallel_tool_use": True})
        assert sum(block.type == "tool_use" for block in one.content) == 1, one
        cut = client.messages.create(model=MODEL, max_tokens=message.usage.output_tokens - 6, messages=question, tools=TOOLS)
        assert cut.stop_reason == "max_tokens" and sum(block.type == "tool_use" for block in cut.content) == 1, cut


def test_ends():
    with scripted() as (_, client):
        ask = {"model": MODEL, "messages": user("plan:plain"), **NO_THINKING}
        cut = client.messages.create(**ask, max_tokens=1)
        assert cut.stop_reason == "max_tokens" and cut.usage.output_tokens == 1, cut
        stopped = client.messages.create(**ask, max_tokens=50, stop_sequences=["wor"])
        assert stopped.stop_reason == "stop_sequence" and stopped.stop_sequence == "wor", stopped
        assert blocks(stopped) == [("text", "Hello, ")], stopped


def test_count_tokens():
    with scripted() as (server, client):
        ask = {"model": MODEL, "messages": user("plan:hello"), "system": "Be brief.", "tools": TOOLS}
        count = client.messages.count_tokens(**ask).input_tokens
        assert server.metric("tetrad:steps_total") == 0
        usage = client.messages.create(**ask, max_tokens=50).usage
        assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == count, (usage, count)


def test_refusals():
    with scripted("--api-key", "secret") as (server, client):
        error = raises(anthropic.AuthenticationError, lambda: client.messages.create(**ASK, messages=user("hi")))
        assert error.body["type"] == "error" and error.body["error"]["type"] == "authentication_error", error.body
        good = client.with_options(api_key="secret")
        token = Anthropic(base_url=server.url, auth_token="secret", max_retries=0)
        assert blocks(token.messages.create(**ASK, messages=user("plan:plain"), **NO_THINKING)) == [("text", "Hello, world.")]
        error = raises(anthropic.BadRequestError, lambda: good.messages.create(**ASK, messages=[]))
        assert error.body["error"]["type"] == "invalid_request_error", error.body
        raises(anthropic.NotFoundError, lambda: good.messages.create(model="other", max_tokens=5, messages=user("hi")))
        long = user("a " * 6000)
        error = raises(anthropic.BadRequestError, lambda: good.messages.create(**ASK, messages=long))
        assert "prompt is too long: " in error.message, error
        server.expect_all_free()


def test_failing_requests():
    with scripted() as (server, client):
        ask = {**ASK, **NO_THINKING}
        raises(anthropic.InternalServerError, lambda: client.messages.create(**ask, messages=user("plan:fault_at_once")))
        said = []

        def read():
            with client.messages.stream(**ask, messages=user("plan:fault")) as stream:
                for text in stream.text_stream:
                    said.append(text)

        error = raises(anthropic.APIStatusError, read)
        assert said and "Hello, world.".startswith("".join(said)) and "req-" in str(error), (said, error)
        server.expect_all_free()


def test_overload():
    with scripted("--max-num-seqs", "1", "--max-num-queued-reqs", "1") as (server, client):
        server.tell("hold")
        ask = {**ASK, "messages": user("plan:plain"), **NO_THINKING}
        answers = []
        patient = client.with_options(max_retries=5)
        threads = [threading.Thread(target=lambda: answers.append(blocks(patient.messages.create(**ask)))) for _ in range(3)]
        threads[0].start()
        server.wait_for(lambda: server.metric("vllm:num_requests_running") == 1)
        for thread in threads[1:]:  # one waits, one is refused
            thread.start()
        server.wait_for(lambda: server.metric("http_requests_total", status="529") > 0)
        error = raises(anthropic.APIStatusError, lambda: client.messages.create(**ask), status_code=529)
        assert error.body["error"]["type"] == "overloaded_error" and isinstance(error, anthropic.OverloadedError), error
        server.tell("go")
        for thread in threads:
            thread.join()
        assert answers == [[("text", "Hello, world.")]] * 3, answers


def test_leaving_and_pings():
    with scripted("--sse-ping-interval", "1") as (server, client):
        with client.messages.stream(model=MODEL, max_tokens=4000, messages=user("plan:forever")) as stream:
            for event in stream:
                if event.type == "content_block_delta":
                    break
        server.expect_all_free()
        server.tell("hold")
        timer = threading.Timer(1.4, server.tell, ("go",))
        timer.start()
        with client.messages.stream(**ASK, messages=user("plan:hello")) as stream:
            assert "".join(stream.text_stream) == "Hello, world."
        timer.join()
        assert server.metric("vllm:request_success_total", finished_reason="abort") == 1


def test_model():
    with Server() as server, client_of(server) as client:
        message = client.messages.create(model=MODEL, max_tokens=120, messages=user("What is 12 + 30?"),
                                         extra_body={"temperature": 0}, **NO_THINKING)
        assert "42" in blocks(message)[-1][1] and message.stop_reason == "end_turn", message
        server.stop()


if __name__ == "__main__":
    assert ARGS
    main("__main__")
