#!/usr/bin/env python3
"""The openai package's client.responses against the server: text, events, tools both ways, forms, effort, errors."""
import asyncio
import contextlib
import json
import threading

import openai
import pydantic
from openai import AsyncOpenAI, OpenAI
from openai.types.responses import Response

from harness import ARGS, PATIENCE, Scripted, Server, main, raises
from plans import ODD_TEXT, PLANS, WEATHER_SCHEMA

MODEL = "tetrad-tiny"
TOOL = {"type": "function", "name": "get_weather", "description": "Weather of a city", "parameters": WEATHER_SCHEMA, "strict": False}
PATCH = "*** Begin Patch\n+ a \"line\"\n*** End Patch"
MORE_PLANS = {**PLANS, "patch": {"answer": "A patch.\n</think>\n\n<tool_call>\n<function=apply_patch>\n<parameter=input>\n" + PATCH
                                           + "\n</parameter>\n</function>\n</tool_call>"}}
QUIET = {"reasoning": {"effort": "none"}}


@contextlib.contextmanager
def scripted(*flags, **more):
    with Scripted(MORE_PLANS, *flags) as server:
        with OpenAI(base_url=server.url + "/v1", api_key="none", **{"max_retries": 0, "timeout": PATIENCE, **more}) as client:
            yield server, client


def checked(response):
    """As the package declares it: it does not look by itself."""
    Response.model_validate(response.to_dict(), strict=True)
    usage = response.usage
    assert response.object == "response" and response.id.startswith("resp_") and response.model == MODEL, response
    if usage is not None:
        assert usage.total_tokens == usage.input_tokens + usage.output_tokens and usage.output_tokens > 0, usage
    return response


def events_of(stream):
    events = list(stream)
    for event in events:
        type(event).model_validate(event.to_dict(), strict=True)
    assert [event.sequence_number for event in events] == list(range(len(events))), events
    return events


def grammar(events):
    """The types of the events, deltas that follow each other as one."""
    types = []
    for event in events:
        name = event.type.removeprefix("response.")
        if not types or types[-1] != name or not name.endswith(".delta"):
            types.append(name)
    return types


def kinds(response):
    return [item.type for item in response.output]


def without_identity(response):
    """What two answers to one question have in common."""
    text = json.dumps({name: value for name, value in response.to_dict().items() if name not in ("created_at", "usage")})
    for call in response.output:
        text = text.replace(getattr(call, "call_id", None) or "none", "call")
    return text.replace(response.id.removeprefix("resp_"), "")


def test_text():
    with scripted() as (_, client):
        answer = checked(client.responses.create(model=MODEL, input="plan:hello", instructions="Be kind.", metadata={"a": "b"},
                                                 store=False, temperature=0.5, top_p=0.9, extra_headers={"X-Request-Id": "mine-9"}))
        assert answer._request_id == "mine-9" and answer.status == "completed" and answer.error is None, answer
        assert answer.output_text == "Hello, world." and kinds(answer) == ["reasoning", "message"], answer
        assert answer.output[0].content[0].text == "They greet me." and answer.output[0].summary == [], answer.output[0]
        assert (answer.instructions, answer.metadata, answer.temperature, answer.top_p) == ("Be kind.", {"a": "b"}, 0.5, 0.9), answer
        assert answer.tools == [] and answer.tool_choice == "auto" and answer.text.format.type == "text", answer
        assert 0 < answer.usage.output_tokens_details.reasoning_tokens < answer.usage.output_tokens, answer.usage
        again = checked(client.responses.create(model=MODEL, input="plan:hello", instructions="Be kind."))
        assert 0 < again.usage.input_tokens_details.cached_tokens < again.usage.input_tokens, again.usage
        logprobs = client.responses.create(model=MODEL, input="plan:hello", include=["message.output_text.logprobs"], top_logprobs=2)
        tokens = checked(logprobs).output[1].content[0].logprobs
        assert "".join(token.token for token in tokens).lstrip() == "Hello, world.", tokens
        streamed = events_of(client.responses.create(model=MODEL, input="plan:hello", include=["message.output_text.logprobs"],
                                                     top_logprobs=2, stream=True))
        deltas = [token.token for event in streamed if event.type == "response.output_text.delta" for token in event.logprobs]
        assert deltas == [token.token for token in tokens], deltas
        assert all(len(token.top_logprobs) == 2 for token in tokens), tokens


def test_events():
    """Each event is what the package declares, in the order that OpenAI documents; together they are the whole answer."""
    text = ["content_part.added", "{}.delta", "{}.done", "content_part.done"]
    item = {"reasoning": [kind.format("reasoning_text") for kind in text], "message": [kind.format("output_text") for kind in text],
            "function_call": ["function_call_arguments.delta", "function_call_arguments.done"]}
    with scripted() as (_, client):
        for plan, outputs in (("hello", ["reasoning", "message"]), ("unicode", ["reasoning", "message"]),
                              ("quoted", ["reasoning", "message"]), ("tool", ["reasoning", "message", "function_call"]),
                              ("two_tools", ["reasoning"] + ["function_call"] * 2)):
            ask = {"model": MODEL, "input": "plan:" + plan, "tools": [TOOL]}
            whole = checked(client.responses.create(**ask))
            assert kinds(whole) == outputs, whole
            events = events_of(client.responses.create(**ask, stream=True))
            expected = ["created", "in_progress"]
            for kind in outputs:
                expected += ["output_item.added", *item[kind], "output_item.done"]
            assert grammar(events) == [*expected, "completed"], (plan, grammar(events))
            assert without_identity(events[-1].response) == without_identity(whole), plan
            assert events[0].response.usage is None and events[0].response.status == "in_progress", events[0]
            deltas = {}
            for event in events:
                if event.type.endswith(".delta"):
                    assert event.item_id == whole.output[event.output_index].id.replace(whole.id[5:], events[0].response.id[5:]), event
                    deltas[event.output_index] = deltas.get(event.output_index, "") + event.delta
            said = [output.arguments if output.type == "function_call" else output.content[0].text for output in whole.output]
            assert [deltas[index] for index in range(len(outputs))] == said, deltas


def test_helpers():
    """What the package puts together out of events, and what it makes of them with types."""

    class Sum(pydantic.BaseModel):
        n: int
        kind: str

    with scripted() as (_, client):
        with client.responses.stream(model=MODEL, input="plan:tool", tools=[TOOL]) as stream:
            snapshots = [event.snapshot for event in stream if event.type == "response.output_text.delta"]
            final = stream.get_final_response()
        assert snapshots[-1] == "One moment." and json.loads(final.output[2].arguments) == {"city": "Paris", "days": 3}, final
    with Server() as server, OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=PATIENCE) as client:
        ask = {"model": MODEL, "input": "What is 12 + 30?", "temperature": 0, "max_output_tokens": 400, "text_format": Sum, **QUIET,
               "extra_body": {"seed": 1}}
        # A tiny model does not end a string by itself: the bound of the form does.
        schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 99}, "kind": {"type": "string", "maxLength": 8}},
                  "required": ["n", "kind"], "additionalProperties": False}
        form = {"type": "json_schema", "name": "sum", "schema": schema, "strict": True}
        plain = {**ask, "text": {"format": form}}
        del plain["text_format"]
        answer = checked(client.responses.create(**plain))
        value = Sum.model_validate_json(answer.output_text)
        assert value.n <= 99 and len(value.kind) <= 8 and answer.status == "completed", answer
        assert answer.text.format.type == "json_schema" and answer.text.format.name == "sum", answer.text
        events = client.responses.create(**plain, stream=True)
        streamed = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        assert streamed == answer.output_text, streamed


def test_tool_round_trip():
    with scripted() as (_, client):
        ask = {"model": MODEL, "tools": [TOOL]}
        turn = [{"role": "user", "content": "plan:two_tools"}]
        first = checked(client.responses.create(**ask, input=turn))
        calls = [item for item in first.output if item.type == "function_call"]
        assert [json.loads(call.arguments) for call in calls] == [{"city": "Oslo", "days": 1}, {"city": ODD_TEXT, "days": 2}], calls
        assert all(call.call_id and call.name == "get_weather" and call.status == "completed" for call in calls), calls
        assert first.tools[0].name == "get_weather" and first.tools[0].parameters == WEATHER_SCHEMA, first.tools
        # As the package's guide has it: the items as they came, then the results; text, or parts.
        results = [{"type": "function_call_output", "call_id": calls[0].call_id, "output": "rain"},
                   {"type": "function_call_output", "call_id": calls[1].call_id, "output": [{"type": "input_text", "text": "plan:done"}]}]
        for items in (first.output, [item.to_dict() for item in first.output], [item.model_dump() for item in first.output]):
            after = checked(client.responses.create(**ask, input=[*turn, *items, *results]))
            assert after.output_text == "Take an umbrella.", after
            assert after.usage.input_tokens_details.cached_tokens > first.usage.input_tokens, (after.usage, first.usage)
        one = checked(client.responses.create(**ask, input=turn, parallel_tool_calls=False))
        assert kinds(one) == ["reasoning", "function_call"] and one.parallel_tool_calls is False, one
        named = client.responses.create(**ask, input="plan:tool", tool_choice={"type": "function", "name": "get_weather"})
        assert checked(named).tool_choice.name == "get_weather", named
        none = checked(client.responses.create(**ask, input="plan:tool", tool_choice="none"))
        assert kinds(none) == ["reasoning", "message"] and "<function=get_weather>" in none.output_text, none
        # A tool without what the package leaves out by default.
        bare = checked(client.responses.create(model=MODEL, input="plan:hello", tools=[{"type": "function", "name": "now"}]))
        assert bare.output_text == "Hello, world.", bare
        error = raises(openai.BadRequestError, lambda: client.responses.create(**ask, input=[*turn, results[0]]))
        assert error.param == "input[1].call_id", error


def test_custom_tools():
    with scripted() as (_, client):
        ask = {"model": MODEL, "tools": [{"type": "custom", "name": "apply_patch", "description": "Edits files"}]}
        turn = [{"role": "user", "content": "plan:patch"}]
        first = checked(client.responses.create(**ask, input=turn))
        call = first.output[1]
        assert call.type == "custom_tool_call" and call.input == PATCH and call.name == "apply_patch", first
        events = events_of(client.responses.create(**ask, input=turn, stream=True))
        assert grammar(events)[-5:] == ["output_item.added", "custom_tool_call_input.delta", "custom_tool_call_input.done",
                                        "output_item.done", "completed"], grammar(events)
        after = client.responses.create(**ask, input=[*turn, *first.output, {"type": "custom_tool_call_output", "call_id": call.call_id,
                                                                             "output": "plan:done"}])
        assert checked(after).output_text == "Take an umbrella.", after


def test_effort():
    with scripted() as (_, client):
        for effort in ("none", "minimal", "low", "medium", "high", "xhigh", "max"):
            plan = "plain" if effort == "none" else "hello"
            answer = checked(client.responses.create(model=MODEL, input="plan:" + plan, reasoning={"effort": effort}))
            assert answer.output_text == "Hello, world.", (effort, answer)
            assert kinds(answer) == (["message"] if effort == "none" else ["reasoning", "message"]), (effort, answer)
            assert answer.reasoning.effort == effort, (effort, answer.reasoning)
        raises(openai.BadRequestError, lambda: client.responses.create(model=MODEL, input="a", reasoning={"effort": "huge"}),
               param="reasoning.effort")
        # Summaries are asked for by agents; there are none, and the reasoning itself comes.
        summed = client.responses.create(model=MODEL, input="plan:hello", reasoning={"effort": "low", "summary": "auto"},
                                         include=["reasoning.encrypted_content"])
        assert checked(summed).output[0].encrypted_content is None and summed.output[0].content[0].text == "They greet me.", summed


def test_cut_off():
    with scripted() as (_, client):
        ask = {"model": MODEL, "input": "plan:tool", "tools": [TOOL]}
        tokens = client.responses.create(**ask).usage.output_tokens
        for most in (2, tokens - 12, tokens - 3):
            answer = checked(client.responses.create(**ask, max_output_tokens=most))
            assert answer.status == "incomplete" and answer.incomplete_details.reason == "max_output_tokens", (most, answer)
            assert answer.output[-1].status == "incomplete" and answer.max_output_tokens == most, answer
            events = events_of(client.responses.create(**ask, max_output_tokens=most, stream=True))
            assert events[-1].type == "response.incomplete", events[-1]
            assert without_identity(events[-1].response) == without_identity(answer), most
            # What was cut off may be sent back.
            turn = [{"role": "user", "content": "q"}, *answer.output, {"role": "user", "content": "plan:done"}]
            assert checked(client.responses.create(model=MODEL, input=turn, tools=[TOOL])).output_text == "Take an umbrella."


def test_errors():
    with scripted("--api-key", "secret") as (server, client):
        raises(openai.AuthenticationError, lambda: client.responses.create(model=MODEL, input="a"), code="invalid_api_key")
        create = client.with_options(api_key="secret").responses.create
        raises(openai.NotFoundError, lambda: create(model="other", input="a"), code="model_not_found")
        for param, ask in (("previous_response_id", {"previous_response_id": "resp_1"}), ("conversation", {"conversation": "conv_1"}),
                           ("background", {"background": True}), ("prompt", {"prompt": {"id": "pmpt_1"}}),
                           ("temperature", {"temperature": -1}), ("truncation", {"truncation": "auto"}),
                           ("tools[0].type", {"tools": [{"type": "file_search", "vector_store_ids": ["a"]}]}),
                           ("text.verbosity", {"text": {"verbosity": "high"}}), ("include[0]", {"include": ["file_search_call.results"]}),
                           ("input", {"input": []})):
            raises(openai.BadRequestError, lambda body=ask: create(**{"model": MODEL, "input": "a", **body}), param=param)
        image = [{"role": "user", "content": [{"type": "input_image", "image_url": "data:,", "detail": "auto"}]}]
        raises(openai.BadRequestError, lambda: create(model=MODEL, input=image), param="input[0].content[0].type")
        error = raises(openai.BadRequestError, lambda: create(model=MODEL, input="a " * 6000), code="context_length_exceeded")
        assert "maximum context length is 4096 tokens" in error.message, error
        good = client.with_options(api_key="secret").responses
        raises(openai.NotFoundError, lambda: good.retrieve("resp_1"), code="response_not_found")
        raises(openai.NotFoundError, lambda: good.delete("resp_1"), code="response_not_found")
        raises(openai.NotFoundError, lambda: good.cancel("resp_1"), code="response_not_found")
        server.expect_all_free()


def test_failing_requests():
    with scripted() as (server, client):
        ask = {"model": MODEL, **QUIET}
        raises(openai.InternalServerError, lambda: client.responses.create(**ask, input="plan:fault_at_once"), code="numeric_error")
        events = []

        def read(plan):
            events.clear()
            events.extend(events_of(client.responses.create(**ask, input="plan:" + plan, stream=True)))

        read("fault")
        assert events[-1].type == "response.failed" and events[-1].response.status == "failed", events[-1]
        assert events[-1].response.error.code and "req-" in events[-1].response.error.message, events[-1]
        with contextlib.suppress(openai.APIError):
            read("fault_at_once")
            assert events[-1].type == "response.failed", events
        server.expect_all_free()


def test_leaving_and_pings():
    with scripted("--sse-ping-interval", "1") as (server, client):
        ask = {"model": MODEL, "input": "plan:forever", "max_output_tokens": 4000}
        with client.responses.create(**ask, stream=True) as stream:
            next(iter(stream))
        server.expect_all_free()
        stream = iter(client.responses.create(model=MODEL, input="plan:hello", stream=True))
        server.tell("hold")
        timer = threading.Timer(2.2, server.tell, ("go",))
        timer.start()
        with client.responses.stream(model=MODEL, input="plan:hello") as helper:
            assert helper.get_final_response().output_text == "Hello, world."
        assert list(stream)[-1].response.output_text == "Hello, world."
        timer.join()

        async def cancelled():
            async with AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as async_client:
                task = asyncio.create_task(async_client.responses.create(**ask))
                await asyncio.sleep(0.05)
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
                events = await async_client.responses.create(**ask, stream=True)
                await anext(aiter(events))
                await events.close()

        asyncio.run(cancelled())
        server.expect_all_free()


if __name__ == "__main__":
    assert ARGS
    main("__main__")
