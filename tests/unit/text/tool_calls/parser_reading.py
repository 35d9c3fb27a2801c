"""Feeds a parser and collects what comes out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from enginebay.text.output_events import AnswerText, OutputEvent, OutputEventParser, ToolCallArguments, ToolCallStart


@dataclass
class ParsedAnswer:
    """The joined events of one answer."""

    text: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)

    def add(self, event: OutputEvent) -> None:
        match event:
            case AnswerText(text):
                assert text, "an empty text was given out"
                self.text += text
            case ToolCallStart(index, name):
                assert index == len(self.calls), "calls are numbered from 0 on"
                self.calls.append((name, ""))
            case ToolCallArguments(index, fragment):
                assert fragment, "an empty fragment was given out"
                assert index == len(self.calls) - 1, "arguments belong to the call that is open"
                name, arguments = self.calls[index]
                self.calls[index] = (name, arguments + fragment)


def parse_pieces(parser: OutputEventParser, pieces: Iterable[str]) -> ParsedAnswer:
    answer = ParsedAnswer()
    for piece in pieces:
        for event in parser.feed(piece):
            answer.add(event)
    for event in parser.end():
        answer.add(event)
    return answer


def make_tool(name: str, **properties: object) -> dict[str, object]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}}
