"""What a request may say about its tools: which may be called, which must, and what else the output is held to."""

from __future__ import annotations

import json
from typing import Any

import httpx2 as httpx
import pytest
from openai import BadRequestError, OpenAI

from enginebay.text.tool_calls import TOOL_CALL_FORMATS
from tests.integration.server.bay_process import BayProcess
from tests.integration.server.tool_recordings import (
    RECORDINGS,
    TOOLS,
    ReceivedAnswer,
    build_chat_body,
    collect_choice,
    collect_stream,
)
from tests.integration.server.tool_recordings import client as client
from tests.integration.server.tool_recordings import server as server


@pytest.mark.parametrize("name", ["hermes-single", "json-single", "llama3-tagged", "mistral-single", "qwen-single"])
@pytest.mark.parametrize("more", [{"tool_choice": "none"}, {"tools": None}, {"tools": None, "tool_choice": "auto"}])
def test_without_tools_the_answer_is_text(client: OpenAI, name: str, more: dict[str, Any]) -> None:
    given = {key: value for key, value in {**build_chat_body(name), **more}.items() if value is not None}
    expected = ReceivedAnswer(RECORDINGS[name]["output"], finish="stop")
    assert collect_choice(client.chat.completions.create(**given).choices[0]) == expected
    [heard], _ = collect_stream(client.chat.completions.create(**given, stream=True))
    assert heard == expected


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", TOOL_CALL_FORMATS)
def test_a_tool_that_must_be_called(client: OpenAI, model: str, stream: bool) -> None:
    """Held to a schema, every model writes the same, whatever its own format is."""
    given: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": "Go on."}], "tools": TOOLS}
    named = {"type": "function", "function": {"name": "get_time"}}
    for choice, name in (("required", "get_weather"), (named, "get_time")):
        answer = client.chat.completions.create(**given, tool_choice=choice, stream=stream)
        heard = collect_stream(answer)[0][0] if stream else collect_choice(answer.choices[0])
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
    heard = collect_stream(answer)[0][0] if stream else collect_choice(answer.choices[0])
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
    given = {**(build_chat_body(name) if name else free), "model": "hermes", "response_format": FORMAT}
    answer = client.chat.completions.create(**given, stream=stream)
    heard = collect_stream(answer)[0][0] if stream else collect_choice(answer.choices[0])
    if name:
        heard.expect(name)
    else:
        assert json.loads(heard.text).keys() == {"sum"} and heard.calls == []


def test_a_refusal_of_the_engine_names_the_field_of_the_request(server: BayProcess) -> None:
    """It knows of one kind of constraint on the output, whoever asks for it."""
    endless = {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}
    form, tool = {"name": "list", "schema": endless}, {"name": "f", "parameters": endless}
    chats: dict[str, Any] = {
        "response_format": {"response_format": {"type": "json_schema", "json_schema": form}},
        "guided_json": {"guided_json": endless},
        "tools": {"tools": [{"type": "function", "function": tool}], "tool_choice": "required"},
    }
    responses: dict[str, Any] = {
        "text.format": {"text": {"format": {"type": "json_schema", **form}}},
        "tools": {"tools": [{"type": "function", **tool}], "tool_choice": "required"},
    }
    hello = {"messages": [{"role": "user", "content": "Go on."}]}
    for place, prompted, asked_for in (
        ("chat/completions", hello, chats),
        ("responses", {"input": "Go on."}, responses),
    ):
        for param, fields in asked_for.items():
            body = {"model": "hermes", **prompted, **fields}
            answer = httpx.post(f"{server.url}/v1/{place}", json=body, timeout=60)
            assert answer.status_code == 400
            assert "no finite value" in answer.json()["error"]["message"] and answer.json()["error"]["param"] == param


def test_an_answer_by_a_schema_where_a_tool_must_be_called(server: BayProcess, client: OpenAI) -> None:
    """The schema is for text, and there is none."""
    given: dict[str, Any] = {"model": "hermes", "messages": [{"role": "user", "content": "Go on."}], "tools": TOOLS}
    raw = client.chat.completions.with_raw_response.create(**given, tool_choice="required", response_format=FORMAT)
    assert "response_format" in raw.headers["x-enginebay-translated"]
    assert [call[0] for call in collect_choice(raw.parse().choices[0]).calls] == ["get_weather"]
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


def test_parallel_calls_can_be_refused_where_calls_are_forced(server: BayProcess, client: OpenAI) -> None:
    given: dict[str, Any] = {"model": "hermes", "messages": [{"role": "user", "content": "Go on."}], "tools": TOOLS}
    answer = client.chat.completions.with_raw_response.create(
        **given, tool_choice="required", parallel_tool_calls=False
    )
    assert "parallel_tool_calls" not in answer.headers.get("x-enginebay-translated", "")
    assert len(collect_choice(answer.parse().choices[0]).calls) == 1
    free = client.chat.completions.with_raw_response.create(
        **build_chat_body("hermes-parallel"), parallel_tool_calls=False
    )
    assert "parallel_tool_calls" in free.headers["x-enginebay-translated"], "what is not enforced is said"
    collect_choice(free.parse().choices[0]).expect("hermes-parallel")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_time"}}])
def test_a_choice_without_tools_is_refused(client: OpenAI, choice: Any) -> None:
    with pytest.raises(BadRequestError) as error:
        client.chat.completions.create(model="hermes", messages=[{"role": "user", "content": "hi"}], tool_choice=choice)
    assert error.value.param == "tool_choice"
