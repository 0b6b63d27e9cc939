#!/usr/bin/env python3
"""The openai package against the server: chat, streams, tools, errors, retries, clients that leave, completions."""
import asyncio
import contextlib
import json
import threading

import openai
from openai import AsyncOpenAI, OpenAI

from harness import ARGS, PATIENCE, Scripted, Server, main, raises, user
from plans import ODD_TEXT, PLANS, WEATHER_SCHEMA

TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "Weather of a city", "parameters": WEATHER_SCHEMA}}]
NO_THINKING = {"chat_template_kwargs": {"enable_thinking": False}}
MODEL = "tetrad-tiny"


def client_of(server, **more):
    return OpenAI(base_url=server.url + "/v1", api_key="none", **{"max_retries": 0, "timeout": PATIENCE, **more})


@contextlib.contextmanager
def scripted(*flags, **more):
    with Scripted(PLANS, *flags) as server, client_of(server, **more) as client:
        yield server, client


def joined(chunks, field):
    return "".join(getattr(chunk.choices[0].delta, field, None) or "" for chunk in chunks if chunk.choices)


def test_models():
    with scripted() as (_, client):
        models = list(client.models.list())
        assert [model.id for model in models] == [MODEL] and models[0].object == "model" and models[0].max_model_len == 4096, models
        assert client.models.retrieve(MODEL).id == MODEL
        raises(openai.NotFoundError, lambda: client.models.retrieve("other"), code="model_not_found", status_code=404)


def test_chat():
    with scripted() as (_, client):
        answer = client.chat.completions.create(model=MODEL, messages=user("plan:hello"), extra_headers={"X-Request-Id": "mine-7"})
        assert answer._request_id == "mine-7"
        assert answer.object == "chat.completion" and answer.model == MODEL and answer.id.startswith("chatcmpl-")
        choice = answer.choices[0]
        assert choice.message.role == "assistant" and choice.message.content == "Hello, world.", choice
        assert choice.message.reasoning_content == choice.message.reasoning == "They greet me.", choice
        assert choice.finish_reason == "stop" and choice.message.tool_calls is None and choice.logprobs is None, choice
        usage = answer.usage
        assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens, usage
        assert 0 < usage.completion_tokens_details.reasoning_tokens < usage.completion_tokens, usage
        again = client.chat.completions.create(model=MODEL, messages=user("plan:hello"))
        assert 0 < again.usage.prompt_tokens_details.cached_tokens < usage.prompt_tokens, again.usage


def test_stream_equals_whole():
    with scripted() as (_, client):
        for plan in ("hello", "unicode", "quoted", "wrong_tool"):
            ask = {"model": MODEL, "messages": user("plan:" + plan), "tools": TOOLS}
            whole = client.chat.completions.create(**ask)
            chunks = list(client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
            message = whole.choices[0].message
            assert chunks[0].choices[0].delta.role == "assistant", chunks[0]
            assert all(chunk.choices[0].delta.role is None for chunk in chunks[1:-1]), chunks
            assert joined(chunks, "content") == message.content, (plan, message)
            assert joined(chunks, "reasoning_content") == joined(chunks, "reasoning") == message.reasoning_content, (plan, message)
            assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason == "stop", chunks[-2]
            assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == whole.usage.completion_tokens, chunks[-1]
            assert all(chunk.usage is None for chunk in chunks[:-1]) and len({chunk.id for chunk in chunks}) == 1
        message = client.chat.completions.create(model=MODEL, messages=user("plan:unicode")).choices[0].message
        text = PLANS["unicode"]["answer"].split("\n</think>\n\n")
        assert [message.reasoning_content, message.content] == text, message


def test_stream_helper():
    with scripted() as (_, client):
        with client.chat.completions.stream(model=MODEL, messages=user("plan:tool"), tools=TOOLS) as stream:
            kinds = {event.type for event in stream}
            final = stream.get_final_completion()
        assert {"chunk", "content.delta", "content.done", "tool_calls.function.arguments.delta"} <= kinds, kinds
        assert final.choices[0].message.content == "One moment." and final.choices[0].finish_reason == "tool_calls", final


def test_tools():
    with scripted() as (_, client):
        ask = {"model": MODEL, "messages": user("plan:two_tools"), "tools": TOOLS}
        whole = client.chat.completions.create(**ask).choices[0]
        calls = whole.message.tool_calls
        assert whole.finish_reason == "tool_calls" and whole.message.content is None, whole
        assert [call.function.name for call in calls] == ["get_weather"] * 2 and len({call.id for call in calls}) == 2, calls
        wanted = [{"city": "Oslo", "days": 1}, {"city": ODD_TEXT, "days": 2}]
        assert [json.loads(call.function.arguments) for call in calls] == wanted, calls

        pieces = {}
        for chunk in client.chat.completions.create(**ask, stream=True):
            for piece in chunk.choices[0].delta.tool_calls or []:
                if piece.index not in pieces:  # the first has all but the arguments
                    assert piece.id and piece.type == "function" and piece.function.name == "get_weather", piece
                    assert piece.function.arguments == "", piece
                    pieces[piece.index] = ""
                pieces[piece.index] += piece.function.arguments
        assert [json.loads(text) for text in pieces.values()] == wanted and list(pieces) == [0, 1], pieces

        one = client.chat.completions.create(**ask, parallel_tool_calls=False).choices[0]
        assert len(one.message.tool_calls) == 1 and one.finish_reason == "tool_calls", one
        # The next turn, as agents send it: what came back as it came, then the results.
        turn = [*ask["messages"], whole.message.model_dump(exclude_none=True),
                {"role": "tool", "tool_call_id": calls[0].id, "content": "rain"},
                {"role": "tool", "tool_call_id": calls[1].id, "content": "plan:done"}]
        after = client.chat.completions.create(model=MODEL, messages=turn, tools=TOOLS).choices[0]
        assert after.message.content == "Take an umbrella." and after.finish_reason == "stop", after


def test_call_cut_off():
    with scripted() as (_, client):
        ask = {"model": MODEL, "messages": user("plan:tool"), "tools": TOOLS}
        tokens = client.chat.completions.create(**ask).usage.completion_tokens
        for missing in range(2, 12):
            choice = client.chat.completions.create(**ask, max_completion_tokens=tokens - missing).choices[0]
            assert choice.finish_reason == "length", (missing, choice)
        last = [chunk.choices[0].finish_reason for chunk in client.chat.completions.create(**ask, max_tokens=tokens - 5, stream=True)][-1]
        assert last == "length", last


def test_refusals():
    with scripted("--api-key", "secret") as (server, client):
        raises(openai.AuthenticationError, client.models.list, code="invalid_api_key")
        good = client.with_options(api_key="secret")
        chat = good.chat.completions.create
        error = raises(openai.BadRequestError, lambda: chat(model=MODEL, messages=user("hi"), temperature=-1), param="temperature")
        assert error.type == "invalid_request_error" and error.request_id, error
        raises(openai.BadRequestError, lambda: chat(model=MODEL, messages=[]), param="messages")
        raises(openai.NotFoundError, lambda: chat(model="other", messages=user("hi")), code="model_not_found")
        error = raises(openai.BadRequestError, lambda: chat(model=MODEL, messages=user("hi"), max_tokens=5000),
                       code="context_length_exceeded")
        assert "maximum context length is 4096 tokens" in error.message, error
        raises(openai.NotFoundError, lambda: good.embeddings.create(model=MODEL, input="a"), status_code=404)
        raises(openai.BadRequestError, lambda: good.completions.create(model=MODEL, prompt="a", suffix="b"), param="suffix")
        server.expect_all_free()


def test_failing_requests():
    with scripted() as (server, client):
        ask = {"model": MODEL, "extra_body": NO_THINKING}
        error = raises(openai.InternalServerError, lambda: client.chat.completions.create(messages=user("plan:fault_at_once"), **ask))
        assert error.code == "numeric_error" and error.response.headers["x-should-retry"] == "false", error.response.headers
        said = []

        def read():
            for chunk in client.chat.completions.create(messages=user("plan:fault"), stream=True, **ask):
                said.append(chunk.choices[0].delta.content)

        error = raises(openai.APIError, read)
        assert said and "".join(said) and "Hello, world.".startswith("".join(said)), said
        assert error.code == "numeric_error" and "req-" in error.message, error
        raises(openai.APIError, lambda: list(client.chat.completions.create(messages=user("plan:fault_at_once"), stream=True, **ask)))
        server.expect_all_free()
        # Retries are left to faults that they can cure.
        patient = client.with_options(max_retries=2)
        before = server.metric("http_requests_total", handler="/v1/chat/completions")
        raises(openai.InternalServerError, lambda: patient.chat.completions.create(messages=user("plan:fault_at_once"), **ask))
        assert server.metric("http_requests_total", handler="/v1/chat/completions") == before + 1


def test_retry_when_full():
    with scripted("--max-num-seqs", "1", "--max-num-queued-reqs", "1") as (server, client):
        server.tell("hold")
        ask = {"model": MODEL, "messages": user("plan:plain"), "extra_body": NO_THINKING}
        answers = []
        patient = client.with_options(max_retries=5)

        def call():
            answers.append(patient.chat.completions.create(**ask).choices[0].message.content)

        threads = [threading.Thread(target=call) for _ in range(3)]
        threads[0].start()
        server.wait_for(lambda: server.metric("vllm:num_requests_running") == 1)
        for thread in threads[1:]:  # one waits, one is refused
            thread.start()
        server.wait_for(lambda: server.metric("http_requests_total", status="503") > 0)
        error = raises(openai.InternalServerError, lambda: client.chat.completions.create(**ask), status_code=503, code="queue_full")
        assert error.response.headers["retry-after"], error.response.headers
        server.tell("go")
        for thread in threads:
            thread.join()
        assert answers == ["Hello, world."] * 3, answers
        server.expect_all_free()


def test_leaving():
    with scripted() as (server, client):
        ask = {"model": MODEL, "messages": user("plan:forever"), "max_tokens": 4000}
        with client.chat.completions.create(**ask, stream=True) as stream:
            next(iter(stream))
        server.expect_all_free()
        server.tell("hold")
        hasty = client.with_options(timeout=0.3)
        raises(openai.APITimeoutError, lambda: hasty.chat.completions.create(**ask))
        raises(openai.APITimeoutError, lambda: hasty.chat.completions.create(**ask, stream=True).close() or next(iter(
            hasty.chat.completions.create(**ask, stream=True))))
        server.tell("go")
        server.expect_all_free()

        async def cancelled():
            async with AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as async_client:
                stream = await async_client.chat.completions.create(**ask, stream=True)
                await anext(aiter(stream))
                task = asyncio.create_task(async_client.chat.completions.create(**ask))
                await asyncio.sleep(0.05)
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
                await stream.close()

        asyncio.run(cancelled())
        server.expect_all_free()
        assert server.metric("vllm:request_success_total", finished_reason="abort") >= 3
        assert server.metric("vllm:request_success_total", finished_reason="length") == 0


def test_keepalive_is_skipped():
    with scripted("--sse-ping-interval", "1") as (server, client):
        server.tell("hold")
        timer = threading.Timer(2.2, server.tell, ("go",))
        timer.start()
        stream = client.chat.completions.create(model=MODEL, messages=user("plan:hello"), stream=True)
        assert joined(list(stream), "content") == "Hello, world."
        timer.join()


def test_choices_and_logprobs():
    with scripted() as (_, client):
        answer = client.chat.completions.create(model=MODEL, messages=user("plan:plain"), n=3, logprobs=True, top_logprobs=2, seed=7,
                                                extra_body=NO_THINKING)
        assert [choice.index for choice in answer.choices] == [0, 1, 2], answer
        for choice in answer.choices:
            tokens = choice.logprobs.content
            assert "".join(token.token for token in tokens).startswith("Hello, world."), tokens
            assert all(len(token.top_logprobs) == 2 and token.logprob == token.top_logprobs[0].logprob for token in tokens), tokens
            assert bytes(tokens[0].bytes).decode() == tokens[0].token, tokens[0]
        chunks = client.chat.completions.create(model=MODEL, messages=user("plan:hello"), n=2, stream=True)
        ends = [chunk.choices[0].index for chunk in chunks if chunk.choices[0].finish_reason]
        assert sorted(ends) == [0, 1], ends


def test_stop():
    with scripted() as (_, client):
        for stop, left in ((["world"], "Hello, "), ("o, w", "Hell"), ([".", "lo"], "Hel"), ("absent", "Hello, world.")):
            ask = {"model": MODEL, "messages": user("plan:plain"), "stop": stop, "extra_body": NO_THINKING}
            whole = client.chat.completions.create(**ask).choices[0]
            assert whole.message.content == left and whole.finish_reason == "stop", (stop, whole)
            assert joined(list(client.chat.completions.create(**ask, stream=True)), "content") == left, stop


def test_completions():
    with scripted() as (server, client):
        ids = server.call("POST", "/tokenize", {"prompt": "plan:plain;"})[1]["tokens"]
        for prompt in ("plan:plain;", ids):
            answer = client.completions.create(model=MODEL, prompt=prompt, max_tokens=20)
            assert answer.choices[0].text == "Hello, world." and answer.usage.prompt_tokens == len(ids), answer
        both = client.completions.create(model=MODEL, prompt=[ids, ids], max_tokens=2, n=2, logprobs=1)
        assert [choice.index for choice in both.choices] == [0, 1, 2, 3] and both.usage.completion_tokens == 8, both
        logprobs = both.choices[3].logprobs
        assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.text_offset) == 2, logprobs
        assert logprobs.token_logprobs[0] == max(logprobs.top_logprobs[0].values()), logprobs
        echoed = client.completions.create(model=MODEL, prompt="plan:plain;", max_tokens=20, echo=True)
        assert echoed.choices[0].text == "plan:plain;Hello, world.", echoed
        chunks = list(client.completions.create(model=MODEL, prompt="plan:plain;", max_tokens=20, stream=True,
                                                stream_options={"include_usage": True}))
        assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == "Hello, world.", chunks
        assert chunks[-1].usage.total_tokens == answer.usage.total_tokens, chunks[-1]
        length = client.completions.create(model=MODEL, prompt="plan:forever;", max_tokens=3)
        assert length.choices[0].finish_reason == "length", length


def test_model():
    """The model itself: what `tetrad run` answers."""
    with Server() as server, client_of(server) as client:
        ask = {"model": MODEL, "messages": user("What is 12 + 30?"), "temperature": 0, "max_tokens": 120}
        answer = client.chat.completions.create(**ask).choices[0]
        assert "42" in answer.message.content and answer.message.reasoning and answer.finish_reason == "stop", answer
        assert joined(list(client.chat.completions.create(**ask, stream=True)), "content") == answer.message.content
        free = {**ask, "temperature": 1.0, "seed": 11, "max_tokens": 30}
        texts = [client.chat.completions.create(**free).choices[0].message for _ in range(2)]
        assert texts[0] == texts[1], texts
        low = client.chat.completions.create(**ask, reasoning_effort="none").choices[0]
        assert "42" in low.message.content and not getattr(low.message, "reasoning_content", None), low
        server.stop()


if __name__ == "__main__":
    assert ARGS
    main("__main__")
