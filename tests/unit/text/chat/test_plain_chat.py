"""Chats as plain text: what engines without weights get, and what a script reads out of it."""

from __future__ import annotations

from typing import Any

from enginebay.text.chat.plain_chat import PlainChat, read_plain_chat, render_plain

TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in ("read", "edit")
]
CALL = {"id": "call_1", "type": "function", "function": {"name": "read", "arguments": {"path": "a.txt"}}}
ASK: dict[str, Any] = {"role": "user", "content": "What is in a.txt?"}
CALLED: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": [CALL]}
RESULT: dict[str, Any] = {"role": "tool", "tool_call_id": "call_1", "content": "hello"}


def test_a_chat_without_tools_is_its_text() -> None:
    turns = [ASK, {"role": "assistant", "content": "No idea."}, {"role": "user", "content": "Guess."}]
    assert render_plain(turns) == render_plain(turns, []) == "What is in a.txt?\nNo idea.\nGuess."
    assert read_plain_chat(render_plain(turns)) == PlainChat()


def test_tools_are_part_of_the_prompt() -> None:
    text = render_plain([ASK], TOOLS)
    assert text.endswith("<|user|>\nWhat is in a.txt?") and '"parameters"' in text
    assert read_plain_chat(text) == PlainChat(frozenset(("read", "edit")), 1, "")


def test_each_answer_of_the_assistant_is_a_turn() -> None:
    turns = [ASK, CALLED, RESULT]
    assert read_plain_chat(render_plain(turns, TOOLS)) == PlainChat(frozenset(("read", "edit")), 2, "read")
    turns += [{"role": "assistant", "content": "hello"}, {"role": "user", "content": "Thanks."}]
    assert read_plain_chat(render_plain(turns, TOOLS)) == PlainChat(frozenset(("read", "edit")), 3, "")


def test_a_result_is_named_by_its_call_and_needs_no_tools() -> None:
    text = render_plain([ASK, CALLED, RESULT])
    assert text.splitlines()[-3:] == ['{"name": "read", "arguments": {"path": "a.txt"}}', "<|tool read|>", "hello"]
    assert read_plain_chat(text) == PlainChat(frozenset(), 2, "read")


def test_the_result_of_an_unknown_call() -> None:
    assert read_plain_chat(render_plain([ASK, {**RESULT, "tool_call_id": "call_9"}], TOOLS)).last_tool == ""
