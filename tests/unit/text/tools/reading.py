"""Feeds a parser and collects what comes out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from enginebay.text.tools import CallArguments, CallStart, Text, ToolEvent, ToolParser


@dataclass
class Answer:
    """The joined events of one answer."""

    text: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)

    def add(self, event: ToolEvent) -> None:
        match event:
            case Text(text):
                assert text, "an empty text was given out"
                self.text += text
            case CallStart(index, name):
                assert index == len(self.calls), "calls are numbered from 0 on"
                self.calls.append((name, ""))
            case CallArguments(index, fragment):
                assert fragment, "an empty fragment was given out"
                assert index == len(self.calls) - 1, "arguments belong to the call that is open"
                name, arguments = self.calls[index]
                self.calls[index] = (name, arguments + fragment)


def read(parser: ToolParser, pieces: Iterable[str]) -> Answer:
    answer = Answer()
    for piece in pieces:
        for event in parser.feed(piece):
            answer.add(event)
    for event in parser.end():
        answer.add(event)
    return answer


def tool(name: str, **properties: object) -> dict[str, object]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}}
