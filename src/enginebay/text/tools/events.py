"""What a tool parser gives out, and what a tool parser is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of the answer that is not a call."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """Call number `index` (from 0) begins, and this is its name."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A piece of the JSON text of the arguments of call number `index`."""

    index: int
    fragment: str


ToolEvent = Text | CallStart | CallArguments


class ToolParser(Protocol):
    """Parses one answer; the events, joined, do not depend on how the answer was cut into pieces."""

    def feed(self, text: str) -> list[ToolEvent]: ...

    def end(self) -> list[ToolEvent]:
        """The answer is complete: what was held back comes out. Call it once."""
        ...


def joined(events: list[ToolEvent]) -> list[ToolEvent]:
    """The same events with neighbouring pieces of one kind put together, so that they cost one message."""
    if len(events) < 2:
        return events
    out = [events[0]]
    for event in events[1:]:
        last = out[-1]
        if isinstance(event, Text) and isinstance(last, Text):
            out[-1] = Text(last.text + event.text)
        elif isinstance(event, CallArguments) and isinstance(last, CallArguments) and event.index == last.index:
            out[-1] = CallArguments(event.index, last.fragment + event.fragment)
        else:
            out.append(event)
    return out
