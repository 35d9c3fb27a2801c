"""What a tool parser gives out, and what a tool parser is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class AnswerText:
    """A piece of the answer that is not a call."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """Call number `index` (from 0) begins, and this is its name."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """A piece of the JSON text of the arguments of call number `index`."""

    index: int
    fragment: str


ToolCallEvent = AnswerText | ToolCallStart | ToolCallArguments


class ToolCallParser(Protocol):
    """Parses one answer; the events, joined, do not depend on how the answer was cut into pieces."""

    def feed(self, text: str) -> list[ToolCallEvent]: ...

    def end(self) -> list[ToolCallEvent]:
        """The answer is complete: what was held back comes out. Call it once."""
        ...


def merge_events(events: list[ToolCallEvent]) -> list[ToolCallEvent]:
    """The same events with neighbouring pieces of one kind put together, so that they cost one message."""
    if len(events) < 2:
        return events
    out = [events[0]]
    for event in events[1:]:
        last = out[-1]
        if isinstance(event, AnswerText) and isinstance(last, AnswerText):
            out[-1] = AnswerText(last.text + event.text)
        elif isinstance(event, ToolCallArguments) and isinstance(last, ToolCallArguments) and event.index == last.index:
            out[-1] = ToolCallArguments(event.index, last.fragment + event.fragment)
        else:
            out.append(event)
    return out
