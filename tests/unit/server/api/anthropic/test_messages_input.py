"""Requests of the Messages API become chat requests: tools, thinking, output and sampling."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from enginebay.config.sections.server_section import ServerLimits
from enginebay.errors import ContextOverflow, InvalidRequest, RequestError, Unsupported
from enginebay.server.api.anthropic.messages_input import (
    TranslatedMessages,
    read_session,
    rename_notes,
    to_messages_error,
    translate_messages,
)
from enginebay.server.api.anthropic.schemas import MessagesBody
from enginebay.server.api.body_decoder import decode_body

ASKED: dict[str, Any] = {"model": "m", "max_tokens": 64, "messages": [{"role": "user", "content": "hi"}]}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"name": "get_time", "description": "The time", "input_schema": SCHEMA}


def translate(limits: ServerLimits | None = None, **fields: Any) -> TranslatedMessages:
    body = decode_body(MessagesBody, msgspec.json.encode({**ASKED, **fields}))
    return translate_messages(body, limits or ServerLimits(), accepts_images=False)


def test_sampling() -> None:
    found = translate(temperature=0.5, top_p=0.9, top_k=5, stop_sequences=["END"], stream=True).chat
    assert (found.max_tokens, found.temperature, found.top_p, found.top_k) == (64, 0.5, 0.9, 5)
    assert found.stop == ["END"] and found.stream is True
    assert translate(stop_sequences=[]).chat.stop is None


def test_tools() -> None:
    found = translate(tools=[TOOL, {**TOOL, "name": "b", "type": "custom", "strict": True}]).chat
    assert found.tools is not None
    assert found.tools[0]["function"] == {"name": "get_time", "description": "The time", "parameters": SCHEMA}
    assert found.tools[1]["function"]["strict"] is True
    assert found.tool_choice is None and found.parallel_tool_calls is None


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "auto"}, "auto"),
        ({"type": "any"}, "required"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "get_time"}, {"type": "function", "function": {"name": "get_time"}}),
    ],
)
def test_tool_choice(choice: dict[str, Any], expected: Any) -> None:
    assert translate(tools=[TOOL], tool_choice=choice).chat.tool_choice == expected
    single = translate(tools=[TOOL], tool_choice={**choice, "disable_parallel_tool_use": True}).chat
    assert single.tool_choice == expected and single.parallel_tool_calls is False


def test_tools_of_anthropics_servers_are_ignored_by_name() -> None:
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}
    found = translate(tools=[search, TOOL])
    assert found.chat.tools is not None and len(found.chat.tools) == 1
    assert found.notes.ignored == {"tools.web_search": "it runs on Anthropic's servers"}
    with pytest.raises(InvalidRequest, match="'any', but there are no tools"):
        translate(tools=[search], tool_choice={"type": "any"})


def test_tools_without_a_schema_are_refused() -> None:
    with pytest.raises(Unsupported, match=r"tools\[0\].type is 'bash_20250124'"):
        translate(tools=[{"type": "bash_20250124", "name": "bash"}])


def test_thinking() -> None:
    found = translate(thinking={"type": "enabled", "budget_tokens": 2048}).chat
    assert (found.enable_thinking, found.max_reasoning_tokens) == (True, 2048)
    assert translate(thinking={"type": "disabled"}).chat.enable_thinking is False
    assert translate(thinking={"type": "adaptive"}).chat.enable_thinking is True
    assert translate().chat.enable_thinking is None
    assert translate(thinking={"type": "adaptive", "display": "omitted"}).hides_thinking
    assert translate(output_config={"effort": "high"}).chat.reasoning_effort == "high"


@pytest.mark.parametrize("field", ["output_config", "output_format"])
def test_a_json_schema(field: str) -> None:
    output_format = {"type": "json_schema", "schema": SCHEMA}
    fields: dict[str, Any] = {field: {"format": output_format} if field == "output_config" else output_format}
    assert translate(**fields).chat.response_format == {
        "type": "json_schema", "json_schema": {"name": "output", "schema": SCHEMA}
    }  # fmt: skip


def test_a_last_message_of_the_assistant_is_continued() -> None:
    prefilled = [*ASKED["messages"], {"role": "assistant", "content": "The answer is ("}]
    assert translate(messages=prefilled).chat.continue_final_message is True
    assert translate().chat.continue_final_message is None


def test_parts_that_cannot_change_the_response_are_named() -> None:
    found = translate(tools=[{**TOOL, "cache_control": {"type": "ephemeral"}, "eager_input_streaming": True}])
    assert set(found.notes.ignored) == {"cache_control", "tools.eager_input_streaming"}


@pytest.mark.parametrize(
    ("fields", "param", "similar"),
    [
        ({"thinking": {"type": "enabled", "budget_token": 9}}, "thinking", "budget_tokens"),
        ({"tools": [{**TOOL, "descripton": "x"}]}, "tools", "description"),
        ({"tools": [TOOL], "tool_choice": {"type": "auto", "disable_paralel_tool_use": True}}, "tool_choice",
         "disable_parallel_tool_use"),
        ({"output_config": {"efort": "low"}}, "output_config", "effort"),
        ({"output_format": {"type": "json_schema", "schema": SCHEMA, "shema": SCHEMA}}, "output_format", "schema"),
        ({"messages": [{"role": "user", "content": "hi", "contents": "x"}]}, "messages", "content"),
        ({"system": [{"type": "text", "text": "x", "citation": []}]}, "system", "citations"),
    ],
)  # fmt: skip
def test_a_misspelling_is_refused_with_the_name(fields: dict[str, Any], param: str, similar: str) -> None:
    with pytest.raises(InvalidRequest, match="unknown parameter") as caught:
        translate(**fields)
    assert caught.value.param == param and caught.value.hint == f"did you mean {similar}?"


def test_the_configuration_can_refuse_unknown_parts() -> None:
    def translate_strictly(**fields: Any) -> TranslatedMessages:
        body = decode_body(MessagesBody, msgspec.json.encode({**ASKED, **fields}))
        return translate_messages(body, ServerLimits(), accepts_images=False, refuses_unknown=True)

    known = translate_strictly(tools=[{**TOOL, "cache_control": {}, "defer_loading": True, "some_new_field": None}])
    assert set(known.notes.ignored) == {"cache_control", "tools.defer_loading"}
    for fields in (
        {"tools": [{**TOOL, "some_new_field": 1}]},
        {"messages": [{"role": "user", "content": "hi", "some_new_field": 1}]},
        {"thinking": {"type": "adaptive", "some_new_field": 1}},
    ):
        assert translate(**fields).notes.ignored
        with pytest.raises(InvalidRequest, match="some_new_field"):
            translate_strictly(**fields)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [3]}, "messages[0]"),
        ({"system": 3}, "system"),
        ({"system": ["x"]}, "system[0]"),
        ({"temperature": 9}, "temperature"),
        ({"stop_sequences": "END"}, "stop_sequences"),
        ({"stop_sequences": [""]}, "stop_sequences[0]"),
        ({"tools": {}}, "tools"),
        ({"tools": ["x"]}, "tools[0]"),
        ({"tools": [{}]}, "tools"),
        ({"tools": [{"name": "x"}]}, "tools"),
        ({"tools": [{"name": "x", "input_schema": "object"}]}, "tools"),
        ({"tools": [{"name": 3, "input_schema": SCHEMA}]}, "tools"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tool_choice": {"type": "required"}}, "tool_choice"),
        ({"tool_choice": {"type": {}}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "auto", "disable_parallel_tool_use": 1}}, "tool_choice"),
        ({"thinking": {"type": "enabled"}}, "thinking"),
        ({"thinking": {"type": "enabled", "budget_tokens": True}}, "thinking"),
        ({"thinking": {"type": "enabled", "budget_tokens": 10**30}}, "thinking"),
        ({"thinking": {"type": "much"}}, "thinking"),
        ({"thinking": {"type": "adaptive", "display": "loud"}}, "thinking"),
        ({"output_config": {"effort": "huge"}}, "output_config"),
        ({"output_config": {"effort": ["low"]}}, "output_config"),
        ({"output_config": {"format": "json"}}, "output_config"),
        ({"output_format": {"type": "json_schema"}}, "output_format"),
        (
            {"output_format": {"type": "json_schema", "schema": SCHEMA}, "output_config": {"format": {}}},
            "output_format",
        ),
    ],
)
def test_what_is_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as raised:
        translate(**fields)
    assert raised.value.param == param


def test_max_tokens_and_model_are_required() -> None:
    for name in ("max_tokens", "model", "messages"):
        with pytest.raises(InvalidRequest, match=f"{name} is missing"):
            decode_body(MessagesBody, json.dumps({key: value for key, value in ASKED.items() if key != name}).encode())


def test_huge_tool_lists_and_deep_nesting() -> None:
    with pytest.raises(InvalidRequest, match="tools has 1000 entries; the maximum is 128"):
        translate(tools=[{**TOOL, "name": f"tool_{number}"} for number in range(1000)])
    deep = b"[" * 100_000 + b"]" * 100_000
    with pytest.raises(InvalidRequest):
        decode_body(MessagesBody, b'{"model":"m","max_tokens":1,"messages":%b}' % deep)
    nested: Any = {}
    for _ in range(400):
        nested = {"a": nested}
    call = {"type": "tool_use", "id": "t", "name": "f", "input": nested}
    turns = [
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t"}]},
    ]
    translate(messages=turns)


@pytest.mark.parametrize(
    ("user_id", "session"),
    [
        ("user_abc_account_def_session_0f3c-77", "0f3c-77"),
        ('{"device_id":"d","account_uuid":"","session_id":"0f3c-77"}', "0f3c-77"),
        ("somebody", ""),
        ("{broken", ""),
        ('{"session_id":3}', ""),
        (7, ""),
        (None, ""),
    ],
)
def test_the_session_of_a_request(user_id: Any, session: str) -> None:
    assert read_session({"user_id": user_id}) == session
    assert (translate(metadata={"user_id": user_id}).chat.prompt_cache_key or "") == session
    assert read_session(None) == ""


def test_errors_and_notes_use_the_names_of_this_api() -> None:
    error = to_messages_error(
        InvalidRequest("tools[2].function.parameters is not an object", "see response_format", param="response_format")
    )
    assert error.message == "tools[2].input_schema is not an object"
    assert (error.hint, error.param) == ("see output_config.format", "output_config.format")
    assert to_messages_error(InvalidRequest("x", param="stop")).param == "stop_sequences"
    assert to_messages_error(InvalidRequest("x")).param is None
    overflow = to_messages_error(ContextOverflow("x", "set truncate_prompt_tokens", param="messages"))
    assert isinstance(overflow, ContextOverflow) and overflow.hint == "shorten the conversation"
    assert rename_notes({"parallel_tool_calls": "x", "top_k": "y"}) == {
        "tool_choice.disable_parallel_tool_use": "x", "top_k": "y"
    }  # fmt: skip
