"""What a model's output consists of: reasoning, answer text and tool calls. And the interface of their parsers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class AnswerText:
    """A piece of the answer outside of calls."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningText:
    """A piece of the reasoning before the answer, without its tags."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """The start of call number `index` (from 0)."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """A piece of the JSON arguments of call number `index`."""

    index: int
    fragment: str


OutputEvent = AnswerText | ReasoningText | ToolCallStart | ToolCallArguments


class OutputEventParser(Protocol):
    """Parses one answer. The joined events do not depend on how the answer was split."""

    def feed(self, text: str) -> list[OutputEvent]: ...

    def end(self) -> list[OutputEvent]:
        """Return the events held back, at the end of the answer. Call it once."""
        ...


def merge_events(events: list[OutputEvent]) -> list[OutputEvent]:
    """Merge adjacent events of the same kind, to save messages."""
    if len(events) < 2:
        return events
    out = [events[0]]
    for event in events[1:]:
        last = out[-1]
        if isinstance(event, AnswerText) and isinstance(last, AnswerText):
            out[-1] = AnswerText(last.text + event.text)
        elif isinstance(event, ReasoningText) and isinstance(last, ReasoningText):
            out[-1] = ReasoningText(last.text + event.text)
        elif isinstance(event, ToolCallArguments) and isinstance(last, ToolCallArguments) and event.index == last.index:
            out[-1] = ToolCallArguments(event.index, last.fragment + event.fragment)
        else:
            out.append(event)
    return out
