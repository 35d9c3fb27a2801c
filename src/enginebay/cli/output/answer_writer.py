"""Writes an answer to the terminal as it comes: the answer on stdout, the thought before it dimmed on stderr."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from enginebay.contract import Delta
from enginebay.text.output_events import AnswerText, OutputEvent, ReasoningText

if TYPE_CHECKING:
    from enginebay.fleet.routing.output_markers import ThoughtSplitter

HideThinkingOption = Annotated[
    bool, typer.Option("--hide-thinking", "--hidethinking", help="Do not show what the model thinks before it answers")
]

_DIM, _NORMAL = "\x1b[2m", "\x1b[0m"


class AnswerWriter:
    """Splits one answer from its thought, and writes both unless it is `silent`."""

    def __init__(self, splitter: ThoughtSplitter | None, *, hide_thinking: bool = False, silent: bool = False) -> None:
        self._splitter = splitter
        self._shows_answer = not silent
        self._shows_thought = not silent and not hide_thinking
        self._answers: list[str] = []
        self._thoughts: list[str] = []
        self._is_thinking = False

    @property
    def answer(self) -> str:
        return "".join(self._answers)

    @property
    def thought(self) -> str:
        return "".join(self._thoughts)

    def write(self, delta: Delta) -> None:
        if self._splitter is None:
            self._write_event(AnswerText(delta.text))
        else:
            self._write_events(self._splitter.feed(delta))

    def end(self) -> None:
        """Write what was held back. Call it once, also after an error."""
        if self._splitter is not None:
            self._write_events(self._splitter.end())
        self._end_thought()

    def _write_events(self, events: list[OutputEvent]) -> None:
        for event in events:
            self._write_event(event)

    def _write_event(self, event: OutputEvent) -> None:
        if isinstance(event, ReasoningText):
            self._thoughts.append(event.text)
            if self._shows_thought:
                self._write_thought(event.text)
        elif isinstance(event, AnswerText) and event.text:
            self._end_thought()
            self._answers.append(event.text)
            if self._shows_answer:
                sys.stdout.write(event.text)
                sys.stdout.flush()

    def _write_thought(self, text: str) -> None:
        if not self._is_thinking:
            self._is_thinking = True
            text = f"Thinking...\n{text}"
        sys.stderr.write(_dim(text))
        sys.stderr.flush()

    def _end_thought(self) -> None:
        if self._is_thinking:
            self._is_thinking = False
            sys.stderr.write(_dim("\n...done thinking.\n\n"))
            sys.stderr.flush()


def _dim(text: str) -> str:
    plain = not sys.stderr.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return text if plain else f"{_DIM}{text}{_NORMAL}"
