"""Messages of the Messages API become messages of a chat."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.config.sections.server_section import ServerLimits
from enginebay.errors import InvalidRequest, RequestError, Unsupported
from enginebay.server.api.anthropic.conversation_input import sign_hidden_thinking, to_chat_messages
from enginebay.server.api.anthropic.input_notes import InputNotes
from enginebay.server.api.anthropic.schemas import CountTokensBody

CALL = {"type": "tool_use", "id": "toolu_1", "name": "get_time", "input": {"city": "Århus"}}
BILLING = "x-anthropic-billing-header: cc_version=2.1.177.01c; cc_entrypoint=cli; cch=36ee5;"


def translate(
    messages: list[Any], system: Any = None, *, images: bool = False, limits: ServerLimits | None = None
) -> tuple[list[dict[str, Any]], InputNotes]:
    notes = InputNotes()
    body = CountTokensBody(model="m", messages=messages, system=system)
    return to_chat_messages(body, limits or ServerLimits(), notes, images), notes


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def text(content: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": content, **more}


def result(content: Any, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "toolu_1", "content": content, **more}


def test_strings_and_single_blocks_are_the_same() -> None:
    asked = [{"role": "user", "content": "hi"}]
    assert translate([user(text("hi"))])[0] == asked == translate(asked)[0]


def test_the_system_prompt_comes_first() -> None:
    chat, _ = translate([user(text("hi"))], [text("one"), text("two")])
    assert chat == [{"role": "system", "content": "one\n\ntwo"}, {"role": "user", "content": "hi"}]
    assert translate([user(text("hi"))], "one")[0][0] == {"role": "system", "content": "one"}
    assert translate([user(text("hi"))], "")[0][0]["role"] == "user"


def test_exactly_the_attribution_block_is_dropped() -> None:
    quoting = f"Never write {BILLING}"
    chat, notes = translate([user(text("hi"))], [text(BILLING), text("You are an agent."), text(quoting)])
    assert chat[0]["content"] == f"You are an agent.\n\n{quoting}"
    assert list(notes.ignored) == ["x-anthropic-billing-header"]
    other, _ = translate(
        [user(text("hi"))], [text(BILLING.replace("36ee5", "0aaa9")), text("You are an agent."), text(quoting)]
    )
    assert other == chat, "the prompts of two requests share their prefix"
    longer = f"{BILLING}\nYou are an agent."
    assert translate([user(text("hi"))], [text(longer)])[0][0]["content"] == longer


def test_a_turn_with_text_thinking_and_calls() -> None:
    thinking = {"type": "thinking", "thinking": "Hm.", "signature": "from-another-server"}
    turns = [
        user(text("The time?")),
        assistant(thinking, text("Let me see."), CALL),
        user(result("12:00"), text("And?")),
    ]
    chat, notes = translate(turns)
    assert chat[1]["content"] == "Let me see." and chat[1]["reasoning_content"] == "Hm."
    [call] = chat[1]["tool_calls"]
    assert call["id"] == "toolu_1" and call["function"]["name"] == "get_time"
    assert json.loads(call["function"]["arguments"]) == {"city": "Århus"}
    assert chat[2] == {"role": "tool", "tool_call_id": "toolu_1", "name": "get_time", "content": "12:00"}
    assert chat[3] == {"role": "user", "content": "And?"}
    assert not notes.ignored and not notes.translated


def test_results_precede_the_text_beside_them() -> None:
    """A template puts them right after the call."""
    chat, _ = translate([user(text("?")), assistant(CALL), user(text("And?"), result("12:00"))])
    assert [message["role"] for message in chat] == ["user", "assistant", "tool", "user"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("gone", "Error: gone"),
        ([text("gone")], "Error: gone"),
        ("Error: gone", "Error: gone"),
        (None, "Error"),
    ],
)
def test_a_failed_call_says_so(content: Any, expected: str) -> None:
    chat, notes = translate([user(text("?")), assistant(CALL), user(result(content, is_error=True))])
    assert chat[-1]["content"] == expected
    assert "tool_result.is_error" in notes.translated


def test_nested_blocks_of_a_result() -> None:
    blocks = [
        text("one", cache_control={"type": "ephemeral"}),
        {"type": "document", "title": "T", "source": {"type": "text", "media_type": "text/plain", "data": "two"}},
        {"type": "search_result", "title": "S", "source": "https://x", "content": [text("three")]},
        {"type": "tool_reference", "tool_name": "four"},
    ]
    chat, notes = translate([user(text("?")), assistant(CALL), user(result(blocks))])
    assert [part["text"] for part in chat[-1]["content"]] == ["one", "T\ntwo", "S\nhttps://x\nthree", "four"]
    assert list(notes.ignored) == ["cache_control"]
    assert translate([user(text("?")), assistant(CALL), user(result(None))])[0][-1]["content"] == ""


def test_consecutive_turns_of_a_role_become_one() -> None:
    chat, _ = translate(
        [user(text("a")), user(text("b")), assistant(text("c")), assistant(text("d"), CALL), user(result("e"))]
    )
    assert [message["role"] for message in chat] == ["user", "assistant", "tool"]
    assert chat[0]["content"] == [text("a"), text("b")]
    assert chat[1]["content"] == "c\nd" and len(chat[1]["tool_calls"]) == 1


def test_system_messages_within_the_conversation() -> None:
    first = {"role": "system", "content": "two"}
    chat, notes = translate([first, user(text("hi"))], "one")
    assert chat[0] == {"role": "system", "content": "one\n\ntwo"} and not notes.translated
    chat, notes = translate([user(text("hi")), {"role": "system", "content": [text("now")]}])
    assert chat == [{"role": "user", "content": [text("hi"), text("<system-reminder>\nnow\n</system-reminder>")]}]
    assert "message.system" in notes.translated


def test_thinking_that_was_not_shown_comes_back() -> None:
    hidden = {"type": "thinking", "thinking": "", "signature": sign_hidden_thinking("Grüß Gott")}
    chat, _ = translate([user(text("?")), assistant(hidden, text("!")), user(text("?"))])
    assert chat[1]["reasoning_content"] == "Grüß Gott"
    with pytest.raises(InvalidRequest, match=r"messages\[1\].content\[0\].signature is damaged"):
        translate([user(text("?")), assistant({**hidden, "signature": "enginebay:%%%"})])
    redacted = {"type": "redacted_thinking", "data": "xyz"}
    chat, notes = translate([user(text("?")), assistant(redacted, text("!")), user(text("?"))])
    assert "reasoning_content" not in chat[1] and "redacted_thinking" in notes.ignored


def test_images_by_capability() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    with pytest.raises(Unsupported, match=r"messages\[0\].content\[1\] is an image"):
        translate([user(text("?"), image)])
    with pytest.raises(Unsupported, match="is an image"):
        translate([user(text("?")), assistant(CALL), user(result([image]))])
    chat, _ = translate([user(text("?"), image)], images=True)
    assert chat[0]["content"][1] == {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    web = {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}}
    assert translate([user(web)], images=True)[0][0]["content"][0]["image_url"]["url"] == "https://x/y.png"
    with pytest.raises(Unsupported, match="stores no files") as raised:
        translate([user({"type": "image", "source": {"type": "file", "file_id": "f"}})], images=True)
    assert raised.value.param == "messages"


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([{"role": "robot", "content": "x"}], r"messages\[0\].role is 'robot'"),
        ([{"content": "x"}], r"messages\[0\].role is missing"),
        ([{"role": "user"}], r"messages\[0\].content is missing"),
        ([{"role": "user", "content": 3}], r"messages\[0\].content is 3"),
        ([{"role": "user", "content": []}], r"messages\[0\].content is empty"),
        ([user("x")], r"messages\[0\].content\[0\] is 'x'"),
        ([user({"type": "video"})], r"messages\[0\].content\[0\].type is 'video'"),
        ([user({"type": {"a": 1}})], r"messages\[0\].content\[0\].type is an object"),
        ([user({"type": "text"})], r"messages\[0\].content\[0\].text is missing"),
        ([user(result("x"))], r"tool_use_id is 'toolu_1', which no tool_use block before it has"),
        ([user({"type": "tool_result"})], r"tool_use_id is missing"),
        ([user(text("x")), assistant(CALL), user(result("x", is_error="yes"))], "is_error is 'yes'"),
        ([user(text("x")), assistant(CALL)], "the last message has tool_use blocks"),
        ([user(text("x")), assistant({**CALL, "input": [1]})], r"messages\[1\].content\[0\].input is a list"),
        ([user(text("x")), assistant({"type": "server_tool_use"})], "type is 'server_tool_use'"),
        ([user({"type": "image"})], "is an image"),
        ([user({"type": "document", "source": {"type": "base64", "data": "x"}})], "source.type is 'base64'"),
        ([{"role": "system", "content": ""}], "messages have no text"),
    ],
)
def test_what_is_refused(messages: list[Any], problem: str) -> None:
    with pytest.raises(RequestError, match=problem) as raised:
        translate(messages)
    assert raised.value.param == "messages"


def test_a_wrong_system_prompt() -> None:
    with pytest.raises(InvalidRequest, match=r"system\[0\] is not a text block") as raised:
        translate([user(text("hi"))], [{"type": "image"}])
    assert raised.value.param == "system"


def test_the_number_of_messages_is_limited() -> None:
    with pytest.raises(InvalidRequest, match="messages has 3 entries; the maximum is 2"):
        translate([user(text("x"))] * 3, limits=ServerLimits(messages=2))


def test_unknown_fields_are_named_and_bounded() -> None:
    many = {f"key-{number}\n": 1 for number in range(100)}
    _, notes = translate([user(text("hi", citations=None, **many))])
    assert len(notes.ignored) == 24
    assert "text.key-0?" in notes.ignored
    assert list(notes.list_ignored().items())[-1] == ("and 76 more", "")
    _, few = translate([user(text("hi", some_new_field=1))])
    assert few.list_ignored() == {"text.some_new_field": "unknown"}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(
        ["type", "text", "role", "content", "id", "name", "input", "source", "tool_use_id", "is_error", "thinking", "signature"]
    ), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
KINDS = st.sampled_from(
    ["text", "image", "tool_use", "tool_result", "thinking", "redacted_thinking", "document", "search_result"]
)
BLOCKS = st.builds(
    lambda kind, more: {**more, "type": kind},
    KINDS,
    st.dictionaries(
        st.sampled_from(
            [
                "text",
                "id",
                "name",
                "input",
                "source",
                "tool_use_id",
                "content",
                "is_error",
                "thinking",
                "signature",
                "title",
            ]
        ),
        JSON,
        max_size=5,
    ),
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "system"]) | JSON, "content": st.lists(BLOCKS, max_size=3) | JSON}
    ),
    min_size=1, max_size=4,
)  # fmt: skip


@given(MESSAGES, st.booleans())
def test_any_messages_become_a_chat_or_an_error_with_its_field(messages: list[Any], images: bool) -> None:
    try:
        chat, _ = translate(messages, images=images)
    except RequestError as error:
        assert error.param == "messages" and error.hint
        return
    assert chat and all(isinstance(message["content"], (str, list)) for message in chat)
    roles = [message["role"] for message in chat]
    assert ("user", "user") not in itertools.pairwise(roles) and ("assistant", "assistant") not in itertools.pairwise(
        roles
    )
