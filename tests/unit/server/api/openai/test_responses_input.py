"""The translation of /v1/responses requests to chat requests."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from enginebay.config.sections.server_section import ServerLimits
from enginebay.errors import ContextOverflow, EnginebayError, InvalidRequest, Unsupported
from enginebay.server.api.openai.encoders.responses_output import encrypt_thought
from enginebay.server.api.openai.responses_input import (
    check_item,
    check_stream_options,
    list_input_items,
    note_includes,
    read_logprobs,
    to_chat_messages,
    to_chat_tool_choice,
    to_chat_tools,
    to_generation_fields,
    to_response_format,
    to_responses_error,
)
from enginebay.server.api.openai.schemas import ResponsesBody
from enginebay.server.api.openai.template_options import build_template_options


def make_body(**fields: Any) -> ResponsesBody:
    return msgspec.convert({"model": "m", "input": "hi", **fields}, ResponsesBody)


def translate(items: Any, **fields: Any) -> list[dict[str, Any]]:
    body = make_body(input=items, **fields)
    return to_chat_messages(body.instructions, list_input_items(body), ServerLimits(messages=10))


def call(call_id: str = "c1", **fields: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "f", "arguments": '{"a": 1}', **fields}


def chat_call(call_id: str = "c1") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}


def test_sdk_fields_and_invalid_arguments_are_accepted() -> None:
    part = {"type": "output_text", "text": "yes", "annotations": [], "parsed": {"a": 1}}
    message = {"type": "message", "role": "assistant", "content": [part]}
    translated = translate([message, call(arguments="{", parsed_arguments=None), call("c2", parsed_arguments={"a": 1})])
    assert translated[0]["content"] == "yes"
    assert [call_["function"]["arguments"] for call_ in translated[0]["tool_calls"]] == ["{", '{"a": 1}']


def test_a_string_is_a_user_message() -> None:
    assert translate("hi") == [{"role": "user", "content": "hi"}]


def test_instructions_come_first() -> None:
    translated = translate("hi", instructions="be brief")
    assert translated == [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]


def test_instructions_and_a_first_system_message_are_merged() -> None:
    items = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}]
    translated = translate(items, instructions="be brief")
    assert translated[0] == {"role": "system", "content": "be brief\n\nbe kind"}
    assert [message["role"] for message in translated] == ["system", "user"]


def test_parts_are_joined() -> None:
    parts = [{"type": "input_text", "text": "one"}, {"type": "input_text", "text": "two"}]
    assert translate([{"type": "message", "role": "user", "content": parts}])[0]["content"] == "one\ntwo"


def test_an_output_message_can_be_sent_back() -> None:
    part = {"type": "output_text", "text": "yes", "annotations": [], "logprobs": []}
    item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
    assert translate([{"role": "user", "content": "?"}, item])[1] == {"role": "assistant", "content": "yes"}


def test_calls_of_one_turn_are_one_message_and_outputs_get_their_name() -> None:
    translated = translate(
        [
            {"role": "assistant", "content": "wait"},
            call("c1", id="fc_1", status="completed"),
            call("c2"),
            {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "two"}]},
            {"type": "function_call_output", "call_id": "c1", "output": "one"},
            call("c3"),
        ]
    )
    assert translated == [
        {"role": "assistant", "content": "wait", "tool_calls": [chat_call("c1"), chat_call("c2")]},
        {"role": "tool", "tool_call_id": "c2", "name": "f", "content": "two"},
        {"role": "tool", "tool_call_id": "c1", "name": "f", "content": "one"},
        {"role": "assistant", "content": "", "tool_calls": [chat_call("c3")]},
    ]


def thought(text: str = "hm", **fields: Any) -> dict[str, Any]:
    return {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": text}],
        **fields,
    }


def test_a_thought_belongs_to_the_turn_that_follows_it() -> None:
    user = {"role": "user", "content": "?"}
    answer = {"type": "message", "role": "assistant", "content": "yes"}
    assert translate([user, thought(), answer])[1] == {"role": "assistant", "content": "yes", "reasoning_content": "hm"}
    called = {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [chat_call("c1")]}
    assert translate([user, thought(), call("c1")])[1] == called
    both = translate([user, thought("one"), thought("two"), answer, call("c1")])
    assert len(both) == 2 and both[1]["reasoning_content"] == "one\n\ntwo" and both[1]["content"] == "yes"
    assert translate([user, thought(), user]) == [user, user], "its turn was cut off"


def test_a_thought_comes_back_in_each_of_its_forms() -> None:
    answer = {"type": "message", "role": "assistant", "content": "yes"}
    summary = [{"type": "summary_text", "text": "short"}]
    assert translate([thought(content=None, summary=summary), answer])[0]["reasoning_content"] == "short"
    encrypted = thought(content=None, encrypted_content=encrypt_thought("größer"))
    assert translate([encrypted, answer])[0]["reasoning_content"] == "größer"
    for foreign in ("gAAAAAB", "enginebay:%%%", "enginebay:/w=="):
        assert translate([thought(content=None, encrypted_content=foreign), answer]) == [
            {"role": "assistant", "content": "yes"}
        ]


@pytest.mark.parametrize(
    ("item", "error", "message"),
    [
        ({"type": "reasoning", "summary": []}, InvalidRequest, "no message"),
        ({"type": "reasoning", "summary": "x"}, InvalidRequest, "input[0].summary is not a list"),
        ({"type": "reasoning", "content": [{"type": "text", "text": "x"}]}, InvalidRequest, "input[0].content[0]"),
        ({"type": "web_search_call", "id": "x"}, Unsupported, "'web_search_call'"),
        ({"type": "item_reference", "id": "x"}, Unsupported, "'item_reference'"),
        ({"type": {}, "role": "user", "content": ""}, Unsupported, "input[0] has type an object"),
        ({"type": "reasoning", "content": "text"}, InvalidRequest, "input[0].content is not a list"),
        ({"type": "reasoning", "summary": ["text"]}, InvalidRequest, "input[0].summary[0]"),
        ({"type": "compaction", "encrypted_content": "bay1.!"}, InvalidRequest, "did not make"),
        ({"role": "user", "content": [{"type": "input_image"}]}, InvalidRequest, "input[0].content[0]"),
        ({"role": "user", "content": [{"type": "input_file"}]}, Unsupported, "input[0].content[0]"),
        ({"role": "user", "content": [{"type": "input_text"}]}, InvalidRequest, "has no text"),
        ({"role": "user", "content": ["text"]}, InvalidRequest, "not an object"),
        ({"role": "user", "content": None}, InvalidRequest, "content is missing"),
        ({"role": "robot", "content": "x"}, InvalidRequest, "'robot'"),
        ({"role": "user", "content": "x", "name": "Ann"}, InvalidRequest, "input[0].name"),
        ({"type": "function_call_output", "call_id": "c9", "output": "x"}, InvalidRequest, "'c9'"),
        (call(name=3), InvalidRequest, "input[0].name is 3"),
    ],
)
def test_unsupported_items_are_refused(item: Any, error: type[EnginebayError], message: str) -> None:
    with pytest.raises(error) as caught:
        translate([item])
    assert message in caught.value.message
    assert caught.value.param == "input"


def test_reasoning_joins_the_assistant_message_that_follows() -> None:
    def reasoning(text: str) -> dict[str, Any]:
        return {"type": "reasoning", "id": "rs", "summary": [], "content": [{"type": "reasoning_text", "text": text}]}

    summary = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "short"}], "encrypted_content": "x"}
    translated = translate(
        [
            {"role": "user", "content": "?"},
            reasoning("first"),
            {"role": "assistant", "content": "one"},
            call("c1"),
            {"type": "function_call_output", "call_id": "c1", "output": "x"},
            summary,
            call("c2"),
            reasoning("about nothing"),
            {"role": "user", "content": "!"},
            {"type": "reasoning", "summary": [], "encrypted_content": "only this"},
        ]
    )
    assert translated == [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": "one", "reasoning_content": "first", "tool_calls": [chat_call("c1")]},
        {"role": "tool", "tool_call_id": "c1", "name": "f", "content": "x"},
        {"role": "assistant", "content": "", "reasoning_content": "short", "tool_calls": [chat_call("c2")]},
        {"role": "user", "content": "!"},
    ]


def test_calls_of_custom_and_namespace_tools_are_calls_of_functions() -> None:
    custom = {"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": 'a "b"\n'}
    output = {"type": "custom_tool_call_output", "call_id": "c1", "output": "done"}
    first, answer, second = translate([custom, output, call("c2", namespace="crm")])
    assert first["tool_calls"][0]["function"] == {"name": "patch", "arguments": '{"input": "a \\"b\\"\\n"}'}
    assert (answer["role"], answer["name"], answer["content"]) == ("tool", "patch", "done")
    assert second["tool_calls"][0]["function"]["name"] == "crm__f"
    assert to_chat_tool_choice({"type": "custom", "name": "patch"}) == {
        "type": "function",
        "function": {"name": "patch"},
    }


def test_images_are_left_to_the_engine() -> None:
    parts = [{"type": "input_text", "text": "what?"}, {"type": "input_image", "image_url": "data:x", "detail": "low"}]
    assert translate([{"role": "user", "content": parts}])[0]["content"] == [
        {"type": "text", "text": "what?"},
        {"type": "image_url", "image_url": {"url": "data:x", "detail": "low"}},
    ]


def test_history_comes_first_and_its_calls_are_known() -> None:
    history = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "?"}]}, call("c1")]
    own = [{"type": "function_call_output", "call_id": "c1", "output": "x"}]
    found = to_chat_messages("be brief", own, ServerLimits(), history)
    assert [message["role"] for message in found] == ["system", "user", "assistant", "tool"]
    with pytest.raises(InvalidRequest, match="3 entries"):
        to_chat_messages(None, own, ServerLimits(messages=2), history)


def test_an_item_is_checked_alone() -> None:
    check_item({"type": "function_call_output", "call_id": "c1", "output": "x"}, "items[0]")
    with pytest.raises(InvalidRequest, match=r"items\[0\]"):
        check_item({"role": "user"}, "items[0]")


def test_too_many_items() -> None:
    with pytest.raises(InvalidRequest, match="the maximum is 10"):
        translate([{"role": "user", "content": "x"}] * 11)


def test_stream_options_need_a_stream() -> None:
    check_stream_options(make_body(stream=True, stream_options={}))
    with pytest.raises(InvalidRequest) as caught:
        check_stream_options(make_body(stream_options={}))
    assert caught.value.param == "stream_options" and caught.value.hint


def test_unknown_keys_of_items_and_tools_are_noted() -> None:
    unknown: dict[str, str] = {}
    items = [{"role": "user", "content": [{"type": "input_text", "text": "x", "zzz": 1}], "name": "Ann"}] * 100
    assert len(to_chat_messages(None, items, ServerLimits(), unknown=unknown)) == 100
    to_chat_tools([{"type": "function", "name": "f", "defer_loading": True}], unknown)
    assert unknown.keys() == {"input[].name", "input[].content[].zzz", "tools[].defer_loading"}


def test_a_misspelled_key_of_an_item_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="contents") as caught:
        to_chat_messages(None, [{"role": "user", "contents": "x"}], ServerLimits(), unknown={})
    assert caught.value.param == "input" and "content" in caught.value.hint


def test_what_is_not_included_is_noted() -> None:
    ignored: dict[str, str] = {}
    note_includes(make_body(include=["message.output_text.logprobs"]), ignored)
    assert ignored == {}
    note_includes(
        make_body(
            include=["message.output_text.logprobs", "reasoning.encrypted_content", "file_search_call.results", "é\r\n"]
        ),
        ignored,
    )
    assert ignored["include"].startswith("file_search_call.results, ???: ")


def test_include_enables_log_probabilities() -> None:
    include = ["message.output_text.logprobs"]
    assert read_logprobs(make_body()) is None
    assert read_logprobs(make_body(include=include)) == 0
    assert read_logprobs(make_body(include=include, top_logprobs=4)) == 4
    with pytest.raises(InvalidRequest) as caught:
        read_logprobs(make_body(top_logprobs=4))
    assert caught.value.param == "top_logprobs"


def test_flat_tools_become_tools_of_a_chat() -> None:
    schema = {"type": "object", "properties": {}}
    flat = {"type": "function", "name": "f", "description": "d", "parameters": schema, "strict": True}
    function = {"name": "f", "description": "d", "parameters": schema, "strict": True}
    assert to_chat_tools([flat]) == [{"type": "function", "function": function}]
    assert to_chat_tools([{"type": "function", "name": "f", "parameters": None, "defer_loading": False}]) == [
        {"type": "function", "function": {"name": "f"}}
    ]
    assert to_chat_tools(None) is None


@pytest.mark.parametrize("tool", [{"type": "web_search"}, {}, {"type": "function", "name": "f", "defer_loading": True}])
def test_other_tools_are_refused(tool: dict[str, Any]) -> None:
    with pytest.raises((Unsupported, InvalidRequest)) as caught:
        to_chat_tools([tool])
    assert caught.value.param == "tools"


def test_tool_choice() -> None:
    assert to_chat_tool_choice("required") == "required"
    assert to_chat_tool_choice(None) is None
    assert to_chat_tool_choice({"type": "function", "name": "f"}) == {"type": "function", "function": {"name": "f"}}
    some = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]}
    named = [{"type": "function", "function": {"name": "f"}}]
    assert to_chat_tool_choice(some) == {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": named}}


@pytest.mark.parametrize(
    "choice", [{"type": "mcp"}, {}, {"type": "allowed_tools", "tools": [{"type": "mcp", "server_label": "x"}]},
               {"type": "allowed_tools", "tools": ["f"]}]
)  # fmt: skip
def test_a_choice_of_other_tools_is_refused(choice: dict[str, Any]) -> None:
    with pytest.raises(Unsupported) as caught:
        to_chat_tool_choice(choice)
    assert caught.value.param == "tool_choice"


@pytest.mark.parametrize("tool", [{"type": "function", "function": {"name": "f"}}, {"type": "function", "name": 7}])
def test_a_tool_choice_in_chat_format_gets_a_hint(tool: dict[str, Any]) -> None:
    for choice in (tool, {"type": "allowed_tools", "mode": "auto", "tools": [tool]}):
        with pytest.raises(InvalidRequest, match="has no name") as caught:
            to_chat_tool_choice(choice)
        assert caught.value.param == "tool_choice" and '{"type": "function", "name": "…"}' in caught.value.hint


def test_invalid_allowed_tools_are_passed_through() -> None:
    found = to_chat_tool_choice({"type": "allowed_tools", "tools": 7})
    assert found == {"type": "allowed_tools", "allowed_tools": {"mode": None, "tools": 7}}


def test_format_becomes_a_response_format() -> None:
    schema = {"type": "object"}
    flat = {"type": "json_schema", "name": "n", "schema": schema, "strict": True}
    nested = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": True}}
    assert to_response_format(make_body(text={"format": flat})) == nested
    assert to_response_format(make_body(text={"format": {"type": "json_object"}})) == {"type": "json_object"}
    assert to_response_format(make_body(text={})) is None
    assert to_response_format(make_body()) is None


def test_shared_fields_reach_the_sampling() -> None:
    found = to_generation_fields(
        make_body(temperature=0.5, top_k=3, seed=7, stop=["x"], text={"format": {"type": "text"}})
    )
    assert (found.temperature, found.top_k, found.seed, found.stop) == (0.5, 3, 7, ["x"])
    assert found.response_format == {"type": "text"}


def test_template_options() -> None:
    assert build_template_options({"enable_thinking": False}, tools=[1]) == {"enable_thinking": False, "tools": [1]}
    assert build_template_options(None, tools=None) == {}
    for reserved in ("messages", "tools", "request", "self"):
        with pytest.raises(InvalidRequest, match=reserved):
            build_template_options({reserved: 1})


def test_errors_name_the_fields_of_this_api() -> None:
    found = to_responses_error(ContextOverflow("max_tokens 9 is too much", "lower max_tokens", param="max_tokens"))
    assert isinstance(found, ContextOverflow)
    assert (found.message, found.hint, found.param) == (
        "max_output_tokens 9 is too much", "lower max_output_tokens", "max_output_tokens"
    )  # fmt: skip
    tool = to_responses_error(InvalidRequest("tools[0].function.name is 3", param="tools"))
    assert (tool.message, tool.param) == ("tools[0].name is 3", "tools")
    schema = to_responses_error(InvalidRequest("response_format.json_schema has no schema", param="response_format"))
    assert (schema.message, schema.param) == ("text.format has no schema", "text.format")
