"""Recorded answers of tool-calling models through the fake engine and the whole server, read with the OpenAI SDK.

One server has one model for each tool format. A prompt names a recording, and the fake engine answers with its output,
one byte for each token: what is streamed is cut at every byte.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from openai import BadRequestError, OpenAI

from enginebay.text.tools import FORMATS
from tests.integration.server.serving import Server, serving

FOLDER = Path(__file__).parents[2] / "recordings" / "tools"
RECORDINGS: dict[str, Any] = {path.stem: json.loads(path.read_text("utf-8")) for path in sorted(FOLDER.glob("*.json"))}
each = pytest.mark.parametrize("name", RECORDINGS)
TOOLS = RECORDINGS["hermes-parallel"]["tools"]  # get_weather and get_time


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    scripts = {prompt(name): recording["output"] for name, recording in RECORDINGS.items()}
    models = {
        name: {"engine": "fake", "tool_format": name, "fake": {"script_by_prompt": scripts}}
        for name in FORMATS
        if name != "json"  # which is what a model without a chat template gets without being asked
    }
    models["json"] = {"engine": "fake", "fake": {"script_by_prompt": scripts}}
    with serving(config={"models": models}) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> OpenAI:
    return server.openai()


def prompt(name: str) -> str:
    return f"<<{name}>>"


def asked(name: str, **more: Any) -> dict[str, Any]:
    recording = RECORDINGS[name]
    messages = [{"role": "user", "content": f"Go on with {prompt(name)}"}]
    return {"model": recording["format"], "messages": messages, "tools": recording["tools"], **more}


def asked_response(name: str, **more: Any) -> dict[str, Any]:
    recording = RECORDINGS[name]
    tools = [{"type": "function", **tool["function"]} for tool in recording["tools"]]
    return {"model": recording["format"], "input": f"Go on with {prompt(name)}", "tools": tools, **more}


@dataclass
class Heard:
    """What a client has of one answer when it is over."""

    text: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    finish: str | None = None

    def expect(self, name: str) -> None:
        wanted = RECORDINGS[name]["expect"]
        assert self.text == wanted["text"]
        assert self.calls == [(call["name"], call["arguments"]) for call in wanted["calls"]]
        assert self.finish == ("tool_calls" if wanted["calls"] else "stop")
        assert len(set(self.ids)) == len(self.calls)


def whole(choice: Any) -> Heard:
    calls = choice.message.tool_calls or []
    assert all(call.type == "function" for call in calls)
    assert choice.message.content is not None or calls
    return Heard(
        choice.message.content or "",
        [(call.function.name, call.function.arguments) for call in calls],
        [call.id for call in calls],
        choice.finish_reason,
    )


def streamed(chunks: Any, choices: int = 1) -> tuple[list[Heard], Any]:
    """The choices of a stream, each delta checked on the way, and the usage at its end."""
    heard = [Heard() for _ in range(choices)]
    usage = None
    for chunk in chunks:
        assert usage is None, "nothing follows the usage"
        usage = chunk.usage
        for choice in chunk.choices:
            one = heard[choice.index]
            assert one.finish is None, "nothing follows the end of a choice"
            one.finish = choice.finish_reason
            one.text += choice.delta.content or ""
            for call in choice.delta.tool_calls or ():
                add_delta(one, call)
    return heard, usage


def add_delta(heard: Heard, call: Any) -> None:
    if call.index == len(heard.calls):
        assert call.id and call.type == "function" and call.function.name
        heard.ids.append(call.id)
        heard.calls.append((call.function.name, call.function.arguments or ""))
        return
    assert call.index == len(heard.calls) - 1, "arguments belong to the call that is open"
    assert call.id is None and call.function.name is None, "a call is named once"
    assert call.function.arguments, "an empty delta says nothing"
    name, arguments = heard.calls[-1]
    heard.calls[-1] = (name, arguments + call.function.arguments)


def check_counts(name: str, taken: int, made: int) -> None:
    assert taken == len(f"Go on with {prompt(name)}")
    assert made == len(RECORDINGS[name]["output"].encode())


# Chat


@each
def test_chat(client: OpenAI, name: str) -> None:
    answer = client.chat.completions.create(**asked(name))
    [choice] = answer.choices
    whole(choice).expect(name)
    assert answer.usage is not None
    check_counts(name, answer.usage.prompt_tokens, answer.usage.completion_tokens)


@each
def test_chat_streamed(client: OpenAI, name: str) -> None:
    chunks = client.chat.completions.create(**asked(name), stream=True, stream_options={"include_usage": True})
    [heard], usage = streamed(chunks)
    heard.expect(name)
    check_counts(name, usage.prompt_tokens, usage.completion_tokens)


@each
def test_the_helper_of_the_sdk_reads_the_stream(client: OpenAI, name: str) -> None:
    """It puts the deltas together by its own rules, and fails where they do not fit."""
    with client.chat.completions.stream(**asked(name)) as stream:
        kinds = {event.type for event in stream}
        [choice] = stream.get_final_completion().choices
    whole(choice).expect(name)
    assert ("tool_calls.function.arguments.delta" in kinds) == bool(RECORDINGS[name]["expect"]["calls"])


@pytest.mark.parametrize(
    "name", ["hermes-parallel", "json-single", "llama3-parallel", "mistral-parallel", "qwen-text-first"]
)
def test_arguments_are_streamed_while_they_are_made(client: OpenAI, name: str) -> None:
    deltas = [
        call
        for chunk in client.chat.completions.create(**asked(name), stream=True)
        for choice in chunk.choices
        for call in choice.delta.tool_calls or ()
    ]
    written = sum(len(call["arguments"]) for call in RECORDINGS[name]["expect"]["calls"])
    assert len(deltas) > written / 4, "not in one piece at the end"


@pytest.mark.parametrize("name", ["hermes-text-around", "json-parallel", "llama3-no-call", "qwen-parallel"])
def test_several_choices(client: OpenAI, name: str) -> None:
    answer = client.chat.completions.create(**asked(name), n=2)
    apart = [whole(choice) for choice in answer.choices]
    chunks = client.chat.completions.create(**asked(name), n=2, stream=True, stream_options={"include_usage": True})
    together, usage = streamed(chunks, choices=2)
    for heard in (*apart, *together):
        heard.expect(name)
    ids = [one for heard in (*apart, *together) for one in heard.ids]
    assert len(set(ids)) == len(ids)
    assert usage.completion_tokens == 2 * len(RECORDINGS[name]["output"].encode())


def test_ids_are_unique_in_all_answers(client: OpenAI) -> None:
    answers = [client.chat.completions.create(**asked("hermes-parallel")) for _ in range(20)]
    ids = [one for answer in answers for one in whole(answer.choices[0]).ids]
    assert len(ids) == 60 and len(set(ids)) == 60


# What a request may say about its tools


@pytest.mark.parametrize("name", ["hermes-single", "json-single", "llama3-tagged", "mistral-single", "qwen-single"])
@pytest.mark.parametrize("more", [{"tool_choice": "none"}, {"tools": None}, {"tools": None, "tool_choice": "auto"}])
def test_without_tools_the_answer_is_text(client: OpenAI, name: str, more: dict[str, Any]) -> None:
    given = {key: value for key, value in {**asked(name), **more}.items() if value is not None}
    expected = Heard(RECORDINGS[name]["output"], finish="stop")
    assert whole(client.chat.completions.create(**given).choices[0]) == expected
    [heard], _ = streamed(client.chat.completions.create(**given, stream=True))
    assert heard == expected


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", FORMATS)
def test_a_tool_that_must_be_called(client: OpenAI, model: str, stream: bool) -> None:
    """Held to a schema, every model writes the same, whatever its own format is."""
    given: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": "Go on."}], "tools": TOOLS}
    named = {"type": "function", "function": {"name": "get_time"}}
    for choice, name in (("required", "get_weather"), (named, "get_time")):
        answer = client.chat.completions.create(**given, tool_choice=choice, stream=stream)
        heard = streamed(answer)[0][0] if stream else whole(answer.choices[0])
        assert [call[0] for call in heard.calls] == [name]
        arguments = json.loads(heard.calls[0][1])
        assert isinstance(arguments["city"], str) if name == "get_weather" else arguments == {}
        assert heard.text == "" and heard.finish == "tool_calls"


@pytest.mark.parametrize("stream", [False, True])
def test_only_some_tools_are_allowed(client: OpenAI, stream: bool) -> None:
    """The first that may be called is taken here; get_weather comes before it."""
    named = {"type": "function", "function": {"name": "get_time"}}
    choice: Any = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named]}}
    given: dict[str, Any] = {"model": "hermes", "messages": [{"role": "user", "content": "Go on."}], "tools": TOOLS}
    answer = client.chat.completions.create(**given, tool_choice=choice, stream=stream)
    heard = streamed(answer)[0][0] if stream else whole(answer.choices[0])
    assert heard.calls == [("get_time", "{}")] and heard.finish == "tool_calls"


def test_tools_that_are_not_allowed_are_not_shown(client: OpenAI) -> None:
    given: dict[str, Any] = {"model": "hermes", "messages": [{"role": "user", "content": "Go on."}], "max_tokens": 1}
    named = [{"type": "function", "function": {"name": tool["function"]["name"]}} for tool in TOOLS]

    def prompt_tokens(**more: Any) -> int:
        usage = client.chat.completions.create(**given, **more).usage
        assert usage is not None
        return usage.prompt_tokens

    for one, tool in zip(named, TOOLS, strict=True):
        choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [one]}}
        assert prompt_tokens(tools=TOOLS, tool_choice=choice) == prompt_tokens(tools=[tool])
    every = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": named}}
    assert prompt_tokens(tools=TOOLS, tool_choice=every) == prompt_tokens(tools=TOOLS)
    raw = client.chat.completions.with_raw_response.create(**given, tools=TOOLS, tool_choice=every)
    assert "tool_choice" in raw.headers["x-enginebay-translated"]


FORMAT = {
    "type": "json_schema",
    "json_schema": {
        "name": "sum",
        "schema": {
            "type": "object",
            "properties": {"sum": {"type": "integer"}},
            "required": ["sum"],
            "additionalProperties": False,
        },
    },
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", ["json-single", None])
def test_an_answer_by_a_schema_or_a_call_instead(client: OpenAI, name: str | None, stream: bool) -> None:
    """As agents with a type for their last answer ask. Whatever a model's own format is, both are plain JSON then."""
    free = {"messages": [{"role": "user", "content": "Go on."}], "tools": TOOLS}
    given = {**(asked(name) if name else free), "model": "hermes", "response_format": FORMAT}
    answer = client.chat.completions.create(**given, stream=stream)
    heard = streamed(answer)[0][0] if stream else whole(answer.choices[0])
    if name:
        heard.expect(name)
    else:
        assert json.loads(heard.text).keys() == {"sum"} and heard.calls == []


def test_a_refusal_of_the_engine_names_the_field_of_the_request(client: OpenAI) -> None:
    """It knows of one kind of constraint on the output, whoever asks for it."""
    endless = {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}
    form = {"name": "list", "schema": endless}
    tool = {"name": "f", "parameters": endless}
    chat: dict[str, Any] = {"model": "hermes", "messages": [{"role": "user", "content": "Go on."}]}
    response: dict[str, Any] = {"model": "hermes", "input": "Go on."}
    must = {"tool_choice": "required"}
    asked: list[tuple[str, Any]] = [
        (
            "response_format",
            lambda: client.chat.completions.create(
                **chat, response_format={"type": "json_schema", "json_schema": form}
            ),
        ),  # type: ignore[arg-type]
        ("guided_json", lambda: client.chat.completions.create(**chat, extra_body={"guided_json": endless})),
        (
            "tools",
            lambda: client.chat.completions.create(**chat, **must, tools=[{"type": "function", "function": tool}]),
        ),  # type: ignore[call-overload]
        ("text.format", lambda: client.responses.create(**response, text={"format": {"type": "json_schema", **form}})),  # type: ignore[arg-type]
        ("tools", lambda: client.responses.create(**response, **must, tools=[{"type": "function", **tool}])),  # type: ignore[call-overload]
    ]
    for param, ask in asked:
        with pytest.raises(BadRequestError, match="finite size") as error:
            ask()
        assert error.value.param == param


def test_an_answer_by_a_schema_where_a_tool_must_be_called(server: Server, client: OpenAI) -> None:
    """The schema is for text, and there is none."""
    given: dict[str, Any] = {"model": "hermes", "messages": [{"role": "user", "content": "Go on."}], "tools": TOOLS}
    raw = client.chat.completions.with_raw_response.create(**given, tool_choice="required", response_format=FORMAT)
    assert "response_format" in raw.headers["x-enginebay-translated"]
    assert [call[0] for call in whole(raw.parse().choices[0]).calls] == ["get_weather"]
    flat = [{"type": "function", **tool["function"]} for tool in TOOLS]
    text = {"format": {"type": "json_schema", **FORMAT["json_schema"]}}  # type: ignore[dict-item]
    named: Any = {"type": "function", "name": "get_time"}
    made: Any = client.responses.create(model="hermes", input="Go on.", tools=flat, tool_choice=named, text=text)  # type: ignore[arg-type]
    assert [item.name for item in made.output] == ["get_time"]


def test_a_constraint_that_leaves_no_place_for_calls(client: OpenAI) -> None:
    given: dict[str, Any] = {"model": "hermes", "messages": [{"role": "user", "content": "Go on."}], "tools": TOOLS}
    held = {"guided_choice": ["yes", "no"]}
    raw = client.chat.completions.with_raw_response.create(**given, extra_body=held)
    assert "tools: none can be called" in raw.headers["x-enginebay-translated"]
    assert raw.parse().choices[0].message.content in held["guided_choice"]
    with pytest.raises(BadRequestError) as error:
        client.chat.completions.create(**given, tool_choice="required", extra_body=held)
    assert error.value.param == "tool_choice"


def test_messages_are_counted_as_they_were_sent(client: OpenAI) -> None:
    """Though the tools are told in a message before them."""
    with pytest.raises(BadRequestError, match=r"messages\[0\]"):
        client.chat.completions.create(model="hermes", messages=[{"role": "user"}], tools=TOOLS)  # type: ignore[typeddict-item]


def test_parallel_calls_can_be_refused_where_calls_are_forced(server: Server, client: OpenAI) -> None:
    given: dict[str, Any] = {"model": "hermes", "messages": [{"role": "user", "content": "Go on."}], "tools": TOOLS}
    answer = client.chat.completions.with_raw_response.create(
        **given, tool_choice="required", parallel_tool_calls=False
    )
    assert "parallel_tool_calls" not in answer.headers.get("x-enginebay-translated", "")
    assert len(whole(answer.parse().choices[0]).calls) == 1
    free = client.chat.completions.with_raw_response.create(**asked("hermes-parallel"), parallel_tool_calls=False)
    assert "parallel_tool_calls" in free.headers["x-enginebay-translated"], "what is not enforced is said"
    whole(free.parse().choices[0]).expect("hermes-parallel")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_time"}}])
def test_a_choice_without_tools_is_refused(client: OpenAI, choice: Any) -> None:
    with pytest.raises(BadRequestError) as error:
        client.chat.completions.create(model="hermes", messages=[{"role": "user", "content": "hi"}], tool_choice=choice)
    assert error.value.param == "tool_choice"


@pytest.mark.parametrize("name", ["hermes-parallel", "json-single", "llama3-nested", "mistral-single", "qwen-single"])
def test_an_answer_that_ends_inside_a_call(client: OpenAI, name: str) -> None:
    """The length decides the reason, and what came of the call stays a call, streamed or not."""
    output = RECORDINGS[name]["output"]
    first = RECORDINGS[name]["expect"]["calls"][0]
    value = "Paris" if "Paris" in output else "say"
    most = len(output[: output.index(value) + 3].encode())
    cut = whole(client.chat.completions.create(**asked(name), max_tokens=most).choices[0])
    [heard], _ = streamed(client.chat.completions.create(**asked(name), max_tokens=most, stream=True))
    for one in (cut, heard):
        [(called, arguments)] = one.calls
        assert called == first["name"] and arguments and arguments != first["arguments"]
        assert first["arguments"].startswith(arguments)
        assert one.finish == "length"


@pytest.mark.parametrize("name", ["hermes-single", "json-single", "llama3-single", "mistral-single", "qwen-single"])
def test_a_conversation_with_results_of_tools(client: OpenAI, name: str) -> None:
    """The SDK's own message goes back as it came, then the results; the model sees both and goes on."""
    first = asked(name)
    called = client.chat.completions.create(**first).choices[0].message
    [call] = called.tool_calls or []
    result = {"role": "tool", "tool_call_id": call.id, "content": f"18 degrees {prompt('hermes-no-call')}"}
    # The result decides what comes next: the first key in the prompt is the first question's no more.
    history = [{"role": "user", "content": "What is it like there?"}, called, result]
    answer = client.chat.completions.create(**{**first, "model": "hermes", "messages": history})
    whole(answer.choices[0]).expect("hermes-no-call")
    assert answer.usage is not None
    seen = ["What is it like there?", called.content or "", str(result["content"])]
    assert answer.usage.prompt_tokens == len("\n".join(seen))


def test_a_model_says_which_format_it_writes(server: Server) -> None:
    for name in FORMATS:
        described = httpx.get(f"{server.url}/v1/models/{name}", timeout=60).json()
        assert described["enginebay"]["tool_format"] == name


# Responses


def read_response(response: Any) -> Heard:
    items = [item for item in response.output if item.type == "function_call"]
    assert all(item.status == "completed" for item in response.output)
    assert response.status == "completed"
    return Heard(
        response.output_text,
        [(item.name, item.arguments) for item in items],
        [item.call_id for item in items],
        "tool_calls" if items else "stop",
    )


@each
def test_response(client: OpenAI, name: str) -> None:
    response = client.responses.create(**asked_response(name))
    read_response(response).expect(name)
    assert response.usage is not None
    check_counts(name, response.usage.input_tokens, response.usage.output_tokens)


@each
def test_response_streamed(client: OpenAI, name: str) -> None:
    heard = Heard()
    open_item: Any = None
    numbers = []
    for event in client.responses.create(**asked_response(name), stream=True):
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
        given = asked_response("hermes-single", max_output_tokens=60)
        if stream:
            response: Any = list(client.responses.create(**given, stream=True))[-1].response
        else:
            response = client.responses.create(**given)
        assert response.status == "incomplete" and response.incomplete_details.reason == "max_output_tokens"
        [item] = response.output
        assert item.type == "function_call" and item.status == "incomplete" and item.name == "get_weather"


def test_a_conversation_of_responses_with_results_of_tools(client: OpenAI) -> None:
    first = client.responses.create(**asked_response("mistral-parallel"))
    calls = [item for item in first.output if item.type == "function_call"]
    results = [{"type": "function_call_output", "call_id": one.call_id, "output": "18 degrees"} for one in calls]
    question = {"role": "user", "content": f"And now {prompt('mistral-no-call')}?"}
    given = asked_response("mistral-parallel")
    second = client.responses.create(
        **{**given, "input": [*(one.model_dump() for one in first.output), *results, question]}
    )
    read_response(second).expect("mistral-no-call")
