"""Chats as plain text, for engines without weights: they have no chat template.

A chat is its messages' text line by line. One with tools also says who wrote what, so that its prompt counts the tools and
a script can follow the turns:

    <|tools|>
    {"type": "function", "function": {"name": "read", ...}}
    <|user|>
    What is in a.txt?
    <|assistant|>
    {"name": "read", "arguments": {"path": "a.txt"}}
    <|tool read|>
    hello
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_TOOLS = "<|tools|>"
_MARK = re.compile(r"^<\|(\w+)(?: (.*))?\|>$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class PlainChat:
    """What the text of a chat says about it. Without tools it has no marks: one turn, no tools."""

    tools: frozenset[str] = frozenset()  # the names of those offered
    turn: int = 1  # of the assistant: 1 is its first
    last_tool: str = ""  # whose result is the last message; empty if that is another one


def render_plain(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None) -> str:
    """Return the text of normalized messages and tools."""
    if not tools and not any(message["role"] == "tool" or message.get("tool_calls") for message in messages):
        return "\n".join(str(message["content"]) for message in messages)
    lines = [_TOOLS, *(json.dumps(tool, ensure_ascii=False) for tool in tools)] if tools else []
    names: dict[str, str] = {}
    for message in messages:
        lines.extend(_render_message(message, names))
    return "\n".join(lines)


def _render_message(message: Mapping[str, Any], names: dict[str, str]) -> Iterator[str]:
    """Yield the lines of a message. `names`: of the tools by call, which its calls extend."""
    tool = message.get("name") or names.get(str(message.get("tool_call_id")), "")
    yield f"<|tool {tool}|>" if message["role"] == "tool" else f"<|{message['role']}|>"
    if message["content"]:
        yield str(message["content"])
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {}
        names[str(call.get("id"))] = str(function.get("name"))
        yield json.dumps(
            {"name": function.get("name"), "arguments": function.get("arguments")}, ensure_ascii=False, default=str
        )


def read_plain_chat(text: str) -> PlainChat:
    """Return what the text of a chat says about it."""
    marks = list(_MARK.finditer(text))
    if not marks:
        return PlainChat()
    end = marks[1].start() if len(marks) > 1 else len(text)
    tools = _read_tool_names(text[len(_TOOLS) : end]) if text.startswith(_TOOLS) else frozenset()
    last = marks[-1]
    return PlainChat(
        tools=tools,
        turn=1 + sum(mark[1] == "assistant" for mark in marks),
        last_tool=last[2] or "" if last[1] == "tool" else "",
    )


def _read_tool_names(lines: str) -> frozenset[str]:
    return frozenset(json.loads(line)["function"]["name"] for line in lines.splitlines() if line)
