"""Parser of thoughts between an opening and a closing tag."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from enginebay.text.output_events import OutputEvent, OutputEventParser
from enginebay.text.reasoning.reasoning_parser import ReasoningParser, count_partial
from enginebay.text.tool_calls.json_scanner import WHITESPACE


@dataclass(frozen=True)
class ThoughtTags:
    """One way to mark a thought, and the answer after it."""

    opening: str
    closing: str
    answer_opening: str = ""  # optional in the output
    answer_closing: str = ""  # only after an `answer_opening`


class TagReasoningParser(ReasoningParser):
    """A state machine over a buffer. A state is a method that returns False when it needs more text.

    `opened`: the prompt ends with its opening tag, so the output starts within the thought.
    """

    def __init__(
        self, variants: tuple[ThoughtTags, ...], inner: OutputEventParser | None, opened: ThoughtTags | None = None
    ) -> None:
        super().__init__(inner)
        self._variants = variants
        self._tags = opened or variants[0]
        self._gap: list[str] = []  # whitespace whose use depends on what follows
        self._buffer = ""
        self._closer = ""  # after the answer
        self._state: Callable[[list[OutputEvent]], bool] = self._read_opening
        if opened is not None:
            self.thought_began = True
            self._state = self._read_repeated_opening

    @property
    def is_plain(self) -> bool:
        return self._inner is None and self._state == self._read_answer and not self._closer

    def _read(self, text: str, out: list[OutputEvent]) -> None:
        if self._state == self._read_answer and not self._closer:
            return self._emit_answer(text, out)
        if self._state == self._read_thought and self._is_certain(text):
            self._emit_thought("".join(self._gap) + text, out)
            return self._gap.clear()
        if not self._buffer and self._state != self._read_answer:
            stripped = text.lstrip(WHITESPACE)
            self._gap.append(text[: len(text) - len(stripped)])
            text = stripped
            if not text:
                return None
        self._buffer += text
        while self._state(out):
            pass
        return None

    def _is_certain(self, text: str) -> bool:
        """Return whether a piece of the thought can be emitted at once. Most can."""
        return not self._buffer and self._tags.closing[0] not in text and text[-1:] not in WHITESPACE

    def _read_opening(self, out: list[OutputEvent]) -> bool:
        """At the start of the output."""
        text = self._buffer
        for tags in self._variants:
            if text.startswith(tags.opening):
                self._tags = tags
                self.thought_began = True
                return self._skip(len(tags.opening), self._read_start)
        if any(tags.opening.startswith(text) for tags in self._variants):
            return False
        return self._begin_answer("".join(self._gap), out)

    def _read_repeated_opening(self, out: list[OutputEvent]) -> bool:
        """At the start of an output whose prompt has opened the thought: some models open it again."""
        opening = self._tags.opening
        if self._buffer.startswith(opening):
            return self._skip(len(opening), self._read_start)
        if opening.startswith(self._buffer):
            return False
        return self._skip(0, self._read_thought)

    def _read_start(self, out: list[OutputEvent]) -> bool:
        """After the opening tag."""
        return self._skip(0, self._read_thought) if self._buffer else False

    def _read_thought(self, out: list[OutputEvent]) -> bool:
        """Within the thought. `_gap` precedes the buffer."""
        closing = self._tags.closing
        at = self._buffer.find(closing)
        if at >= 0:
            thought = self._buffer[:at].rstrip(WHITESPACE)
            if thought:
                self._emit_thought("".join(self._gap) + thought, out)
            self._gap.clear()
            self.thought_ended = True
            self.rest = self._buffer[at + len(closing) :]
            return self._skip(at + len(closing), self._read_answer_opening)
        certain = self._buffer[: len(self._buffer) - count_partial(self._buffer, closing)].rstrip(WHITESPACE)
        if certain:
            self._emit_thought("".join(self._gap) + certain, out)
            self._gap.clear()
            held = self._buffer[len(certain) :]
            self._buffer = held.lstrip(WHITESPACE)
            self._gap.append(held[: len(held) - len(self._buffer)])
        return False

    def _read_answer_opening(self, out: list[OutputEvent]) -> bool:
        """Between the thought and the answer."""
        opening = self._tags.answer_opening
        if opening and self._buffer.startswith(opening):
            self._closer = self._tags.answer_closing
            return self._skip(len(opening), self._read_answer_start)
        if not self._buffer or (opening and opening.startswith(self._buffer)):
            return False
        return self._begin_answer("", out)

    def _read_answer_start(self, out: list[OutputEvent]) -> bool:
        return self._begin_answer("", out) if self._buffer else False

    def _begin_answer(self, before: str, out: list[OutputEvent]) -> bool:
        self.thought_ended = True
        self._gap.clear()
        self._state = self._read_answer
        self._buffer = before + self._buffer
        return True

    def _read_answer(self, out: list[OutputEvent]) -> bool:
        """Within the answer. Its closer is dropped at the end of the output."""
        text, closer, held = self._buffer, self._closer, 0
        if closer:
            end = len(text.rstrip(WHITESPACE))
            held = count_partial(text, closer)
            if text.endswith(closer, 0, end):
                held = len(text) - end + len(closer)
        self._emit_answer(text[: len(text) - held], out)
        self._buffer = text[len(text) - held :]
        return False

    def _skip(self, size: int, state: Callable[[list[OutputEvent]], bool]) -> bool:
        """Drop the start of the buffer and the whitespace around it, and enter a state."""
        self._buffer = self._buffer[size:].lstrip(WHITESPACE)
        self._gap.clear()
        self._state = state
        return True

    def _finish(self, out: list[OutputEvent]) -> None:
        if self._state == self._read_opening:
            self._begin_answer("".join(self._gap), out)
        if self._state in (self._read_repeated_opening, self._read_start):
            self._skip(0, self._read_thought)
        if self._state == self._read_thought:
            thought = self._buffer.rstrip(WHITESPACE)
            self._emit_thought("".join(self._gap) + thought if thought else "", out)
        elif not (self._closer and self._buffer.rstrip(WHITESPACE) == self._closer):
            self._emit_answer(self._buffer, out)
