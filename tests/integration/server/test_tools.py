"""Calls in the answers of chats and responses: whole, streamed, cut off, and answered. See `tool_recordings`."""

from __future__ import annotations

from typing import Any

import httpx2 as httpx
import pytest
from openai import OpenAI

from enginebay.text.chat.chat_messages import normalize_messages
from enginebay.text.chat.plain_chat import render_plain
from enginebay.text.tool_calls import TOOL_CALL_FORMATS
from tests.integration.server.bay_process import BayProcess
from tests.integration.server.tool_recordings import (
    RECORDINGS,
    TOOLS,
    ReceivedAnswer,
    build_chat_body,
    build_response_body,
    check_counts,
    collect_choice,
    collect_stream,
    each,
    prompt,
)
from tests.integration.server.tool_recordings import client as client
from tests.integration.server.tool_recordings import server as server

# Chat


@each
def test_chat(client: OpenAI, name: str) -> None:
    answer = client.chat.completions.create(**build_chat_body(name))
    [choice] = answer.choices
    collect_choice(choice).expect(name)
    assert answer.usage is not None
    check_counts(name, answer.usage.prompt_tokens, answer.usage.completion_tokens)


@each
def test_chat_streamed(client: OpenAI, name: str) -> None:
    chunks = client.chat.completions.create(
        **build_chat_body(name), stream=True, stream_options={"include_usage": True}
    )
    [heard], usage = collect_stream(chunks)
    heard.expect(name)
    check_counts(name, usage.prompt_tokens, usage.completion_tokens)


@each
def test_the_helper_of_the_sdk_reads_the_stream(client: OpenAI, name: str) -> None:
    """It puts the deltas together by its own rules, and fails where they do not fit."""
    with client.chat.completions.stream(**build_chat_body(name)) as stream:
        kinds = {event.type for event in stream}
        [choice] = stream.get_final_completion().choices
    collect_choice(choice).expect(name)
    assert ("tool_calls.function.arguments.delta" in kinds) == bool(RECORDINGS[name]["expect"]["calls"])


@pytest.mark.parametrize(
    "name", ["hermes-parallel", "json-single", "llama3-parallel", "mistral-parallel", "qwen-text-first"]
)
def test_arguments_are_streamed_while_they_are_made(client: OpenAI, name: str) -> None:
    deltas = [
        call
        for chunk in client.chat.completions.create(**build_chat_body(name), stream=True)
        for choice in chunk.choices
        for call in choice.delta.tool_calls or ()
    ]
    written = sum(len(call["arguments"]) for call in RECORDINGS[name]["expect"]["calls"])
    assert len(deltas) > written / 4, "not in one piece at the end"


@pytest.mark.parametrize("name", ["hermes-text-around", "json-parallel", "llama3-no-call", "qwen-parallel"])
def test_several_choices(client: OpenAI, name: str) -> None:
    answer = client.chat.completions.create(**build_chat_body(name), n=2)
    apart = [collect_choice(choice) for choice in answer.choices]
    chunks = client.chat.completions.create(
        **build_chat_body(name), n=2, stream=True, stream_options={"include_usage": True}
    )
    together, usage = collect_stream(chunks, choices=2)
    for heard in (*apart, *together):
        heard.expect(name)
    ids = [one for heard in (*apart, *together) for one in heard.ids]
    assert len(set(ids)) == len(ids)
    assert usage.completion_tokens == 2 * len(RECORDINGS[name]["output"].encode())


def test_ids_are_unique_in_all_answers(client: OpenAI) -> None:
    answers = [client.chat.completions.create(**build_chat_body("hermes-parallel")) for _ in range(20)]
    ids = [one for answer in answers for one in collect_choice(answer.choices[0]).ids]
    assert len(ids) == 60 and len(set(ids)) == 60


@pytest.mark.parametrize("name", ["hermes-parallel", "json-single", "llama3-nested", "mistral-single", "qwen-single"])
def test_an_answer_that_ends_inside_a_call(client: OpenAI, name: str) -> None:
    """The length decides the reason, and what came of the call stays a call, streamed or not."""
    output = RECORDINGS[name]["output"]
    first = RECORDINGS[name]["expect"]["calls"][0]
    value = "Paris" if "Paris" in output else "say"
    most = len(output[: output.index(value) + 3].encode())
    cut = collect_choice(client.chat.completions.create(**build_chat_body(name), max_tokens=most).choices[0])
    [heard], _ = collect_stream(client.chat.completions.create(**build_chat_body(name), max_tokens=most, stream=True))
    for one in (cut, heard):
        [(called, arguments)] = one.calls
        assert called == first["name"] and arguments and arguments != first["arguments"]
        assert first["arguments"].startswith(arguments)
        assert one.finish == "length"


@pytest.mark.parametrize("name", ["hermes-single", "json-single", "llama3-single", "mistral-single", "qwen-single"])
def test_a_conversation_with_results_of_tools(client: OpenAI, name: str) -> None:
    """The SDK's own message goes back as it came, then the results; the model sees both and goes on."""
    first = build_chat_body(name)
    called = client.chat.completions.create(**first).choices[0].message
    [call] = called.tool_calls or []
    result = {"role": "tool", "tool_call_id": call.id, "content": f"18 degrees {prompt('hermes-no-call')}"}
    # The result decides what comes next: the first key in the prompt is the first question's no more.
    history = [{"role": "user", "content": "What is it like there?"}, called, result]
    answer = client.chat.completions.create(**{**first, "model": "hermes", "messages": history})
    collect_choice(answer.choices[0]).expect("hermes-no-call")
    assert answer.usage is not None
    seen = normalize_messages([history[0], called.model_dump(), result], keep_parts=False)
    assert answer.usage.prompt_tokens == len(render_plain(seen, first["tools"]).encode())


def test_a_model_says_which_format_it_writes(server: BayProcess) -> None:
    for name in TOOL_CALL_FORMATS:
        described = httpx.get(f"{server.url}/v1/models/{name}", timeout=60).json()
        assert described["enginebay"]["tool_format"] == name


# Responses


def read_response(response: Any) -> ReceivedAnswer:
    items = [item for item in response.output if item.type == "function_call"]
    assert all(item.status == "completed" for item in response.output)
    assert response.status == "completed"
    return ReceivedAnswer(
        response.output_text,
        [(item.name, item.arguments) for item in items],
        [item.call_id for item in items],
        "tool_calls" if items else "stop",
    )


@each
def test_response(client: OpenAI, name: str) -> None:
    response = client.responses.create(**build_response_body(name))
    read_response(response).expect(name)
    assert response.usage is not None
    check_counts(name, response.usage.input_tokens, response.usage.output_tokens)


@each
def test_response_streamed(client: OpenAI, name: str) -> None:
    heard = ReceivedAnswer()
    open_item: Any = None
    numbers = []
    for event in client.responses.create(**build_response_body(name), stream=True):
        numbers.append(event.sequence_number)
        if event.type == "response.output_item.added":
            assert open_item is None, "one item after the other"
            open_item = event.item
            if open_item.type == "function_call":
                heard.calls.append((open_item.name, open_item.arguments))
                heard.ids.append(open_item.call_id)
        elif event.type == "response.function_call_arguments.delta":
            assert event.item_id == open_item.id
            heard.calls[-1] = (heard.calls[-1][0], heard.calls[-1][1] + event.delta)
        elif event.type == "response.function_call_arguments.done":
            assert (event.item_id, event.arguments) == (open_item.id, heard.calls[-1][1])
        elif event.type == "response.output_text.delta":
            assert event.item_id == open_item.id
            heard.text += event.delta
        elif event.type == "response.output_item.done":
            assert event.item.id == open_item.id
            open_item = None
    assert open_item is None and event.type == "response.completed"
    assert numbers == list(range(len(numbers)))
    final = read_response(event.response)
    assert (final.text, final.calls, final.ids) == (heard.text, heard.calls, heard.ids)
    final.expect(name)
    check_counts(name, event.response.usage.input_tokens, event.response.usage.output_tokens)


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_with_a_tool_that_must_be_called(client: OpenAI, stream: bool) -> None:
    tools = [{"type": "function", **tool["function"]} for tool in TOOLS]
    named = {"type": "function", "name": "get_time"}
    given: dict[str, Any] = {"model": "llama3", "input": "Go on.", "tools": tools}
    given["extra_body"] = {"seed": 1}  # some words of this engine's go on for as long as they may
    some = {"type": "allowed_tools", "mode": "required", "tools": [named]}
    for choice, name in (("required", "get_weather"), (named, "get_time"), (some, "get_time"), ("none", None)):
        if stream:
            with client.responses.stream(**given, tool_choice=choice) as events:
                response: Any = events.get_final_response()
        else:
            response = client.responses.create(**given, tool_choice=choice)
        assert [called for called, _ in read_response(response).calls] == ([name] if name else [])


def test_a_response_that_ends_inside_a_call(client: OpenAI) -> None:
    for stream in (False, True):
        given = build_response_body("hermes-single", max_output_tokens=60)
        if stream:
            response: Any = list(client.responses.create(**given, stream=True))[-1].response
        else:
            response = client.responses.create(**given)
        assert response.status == "incomplete" and response.incomplete_details.reason == "max_output_tokens"
        [item] = response.output
        assert item.type == "function_call" and item.status == "incomplete" and item.name == "get_weather"


def test_a_conversation_of_responses_with_results_of_tools(client: OpenAI) -> None:
    first = client.responses.create(**build_response_body("mistral-parallel"))
    calls = [item for item in first.output if item.type == "function_call"]
    results = [{"type": "function_call_output", "call_id": one.call_id, "output": "18 degrees"} for one in calls]
    question = {"role": "user", "content": f"And now {prompt('mistral-no-call')}?"}
    given = build_response_body("mistral-parallel")
    second = client.responses.create(
        **{**given, "input": [*(one.model_dump() for one in first.output), *results, question]}
    )
    read_response(second).expect("mistral-no-call")
