"""Parser of harmony messages, which gpt-oss writes: each has a channel, which says whether it is a thought, a call or the answer."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum, auto

from enginebay.text.output_events import (
    AnswerText,
    OutputEvent,
    OutputEventParser,
    ReasoningText,
    ToolCallArguments,
    ToolCallStart,
)
from enginebay.text.reasoning.reasoning_parser import ReasoningParser, count_partial

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
ENDS = ("<|end|>", "<|call|>", "<|return|>")
MARKERS = (START, CHANNEL, MESSAGE, *ENDS, "<|constrain|>")

_FIRST = (CHANNEL, START, " to=")  # the prompt ends with "<|start|>assistant"
_NEXT = (START, CHANNEL)
_MAX_HEADER = 256
_FUNCTIONS = "functions."
_CHANNEL_NAME = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_END = re.compile("|".join(map(re.escape, ENDS)))


class _Kind(Enum):
    THOUGHT = auto()
    ANSWER = auto()
    CALL = auto()


class HarmonyReasoningParser(ReasoningParser):
    """A state machine over a buffer. A state is a method that returns False when it needs more text.

    Calls are emitted if the request has tools, for which there is an inner parser. It gets the text of the answer.
    """

    def __init__(self, inner: OutputEventParser | None, prompt_end: str = "") -> None:
        super().__init__(inner)
        self._buffer = ""
        self._marker = ""  # that may end the message
        self._kind = _Kind.ANSWER
        self._separator = ""  # before the next piece of the message
        self._emitted: set[_Kind] = set()
        self._calls = 0
        self._inner_calls: dict[int, int] = {}  # number of an inner call: its number in the output
        self._has_arguments = False
        self._state: Callable[[list[OutputEvent]], bool] = self._read_first
        _, begun, header = prompt_end.rpartition(f"{START}assistant")
        if begun and header:
            self._read(header, [])

    def _read(self, text: str, out: list[OutputEvent]) -> None:
        self._buffer += text
        while self._state(out):
            pass

    def _read_first(self, out: list[OutputEvent]) -> bool:
        """At the start of the output. Without a header it is an answer."""
        if self._buffer.startswith(_FIRST):
            return self._enter(self._read_header)
        if any(first.startswith(self._buffer) for first in _FIRST):
            return False
        return self._begin_message(_Kind.ANSWER)

    def _read_header(self, out: list[OutputEvent]) -> bool:
        at = self._buffer.find(MESSAGE)
        if at < 0 and len(self._buffer) < _MAX_HEADER + len(MESSAGE):
            return False
        if not 0 <= at <= _MAX_HEADER:
            return self._begin_message(_Kind.ANSWER)
        header, self._buffer = self._buffer[:at], self._buffer[at + len(MESSAGE) :]
        channel, recipient = _CHANNEL_NAME.search(header), _RECIPIENT.search(header)
        name = recipient[1] if recipient else ""
        if name.startswith(_FUNCTIONS) and self._inner is not None:
            out.append(ToolCallStart(self._calls, name.removeprefix(_FUNCTIONS)))
            self._calls += 1
            self._has_arguments = False
            return self._begin_message(_Kind.CALL)
        is_thought = (channel is not None and channel[1] == "analysis") or (name and not name.startswith(_FUNCTIONS))
        return self._begin_message(_Kind.THOUGHT if is_thought else _Kind.ANSWER)

    def _begin_message(self, kind: _Kind) -> bool:
        self._kind = kind
        self._separator = "\n\n" if kind in self._emitted and kind is not _Kind.CALL else ""
        self.thought_began |= kind is _Kind.THOUGHT
        self.thought_ended = kind is not _Kind.THOUGHT
        return self._enter(self._read_message)

    def _read_message(self, out: list[OutputEvent]) -> bool:
        end = _END.search(self._buffer)
        if end is None:
            held = max(count_partial(self._buffer, marker) for marker in ENDS)
            self._emit(self._buffer[: len(self._buffer) - held], out)
            self._buffer = self._buffer[len(self._buffer) - held :]
            return False
        self._emit(self._buffer[: end.start()], out)
        self._marker, self._buffer = end.group(), self._buffer[end.end() :]
        if self._kind is _Kind.THOUGHT:
            self.thought_ended, self.rest = True, self._buffer
        return self._enter(self._read_next)

    def _read_next(self, out: list[OutputEvent]) -> bool:
        """After a marker that ends a message if another one follows, or nothing. Else it is text."""
        if self._buffer.startswith(_NEXT):
            self._end_call(out)
            return self._enter(self._read_header)
        if any(following.startswith(self._buffer) for following in _NEXT):
            return False
        self._emit(self._marker, out)
        self.thought_ended = self._kind is not _Kind.THOUGHT
        return self._enter(self._read_message)

    def _enter(self, state: Callable[[list[OutputEvent]], bool]) -> bool:
        self._state = state
        return True

    def _emit(self, text: str, out: list[OutputEvent]) -> None:
        if not text:
            return
        if self._kind is _Kind.CALL:
            text = text if self._has_arguments else text.lstrip()
            if text:
                self._has_arguments = True
                out.append(ToolCallArguments(self._calls - 1, text))
            return
        text, self._separator = self._separator + text, ""
        self._emitted.add(self._kind)
        if self._kind is _Kind.THOUGHT:
            out.append(ReasoningText(text))
        else:
            self._emit_answer(text, out)

    def _emit_answer(self, text: str, out: list[OutputEvent]) -> None:
        if self._inner is None:
            out.append(AnswerText(text))
        else:
            out += map(self._number_call, self._inner.feed(text))

    def _number_call(self, event: OutputEvent) -> OutputEvent:
        """Number an inner parser's call among all calls."""
        if isinstance(event, ToolCallStart):
            self._inner_calls[event.index] = self._calls
            self._calls += 1
            return ToolCallStart(self._inner_calls[event.index], event.name)
        if isinstance(event, ToolCallArguments):
            return ToolCallArguments(self._inner_calls[event.index], event.fragment)
        return event

    def _end_call(self, out: list[OutputEvent]) -> None:
        if self._kind is _Kind.CALL and not self._has_arguments:
            out.append(ToolCallArguments(self._calls - 1, "{}"))
            self._has_arguments = True

    def end(self) -> list[OutputEvent]:
        out: list[OutputEvent] = []
        if self._state == self._read_first:
            self._begin_message(_Kind.ANSWER)
        if self._state == self._read_message:
            self._emit(self._buffer, out)
        if self._state in (self._read_message, self._read_next):
            self._end_call(out)
        if self._inner is not None:
            out += map(self._number_call, self._inner.end())
        return out
