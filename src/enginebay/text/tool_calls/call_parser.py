"""What the streaming parsers of all formats share: text until a call may begin, and back to text if it was none."""

from __future__ import annotations

from collections.abc import Callable

from enginebay.text.tool_calls.json_scanner import WHITESPACE
from enginebay.text.tool_calls.opening_finder import CallOpeningFinder
from enginebay.text.tool_calls.tool_call_events import AnswerText, ToolCallEvent, merge_events


class StreamingCallParser:
    """A state machine over a buffer. A state is a method that returns False when it needs more text.

    White space (space, tab, line ends) directly before what opens a call is not given out, nor is that directly after
    what closes it, unless it parts the text before the call from text after it. All other white space is text. What
    looked like a call and is none comes out as it was written. Once the name of a call is out, its punctuation is not
    text any more, even if the answer ends early.
    """

    def __init__(self, finder: CallOpeningFinder) -> None:
        self._finder = finder
        self._buffer = ""
        self._state: Callable[[list[ToolCallEvent]], bool] = self._read_text
        self._index = 0  # of the next call
        self._opening = ""
        self._opening_length = 0  # length of the white space and the opening in front of a possible call
        self._position = 0  # how far the possible call has been read
        self._after_call = False  # nothing but white space since the last call
        self._gap = ""  # that white space
        self._text_emitted = False  # some text has been given out
        self._line_start = True
        self._pieces: list[str] = []  # not in the buffer yet: white space changes nothing until more comes
        self._blank = True  # in text, with nothing but white space held back
        self._is_mid_line = False  # in the middle of a line of text, with nothing held back

    def feed(self, text: str) -> list[ToolCallEvent]:
        if self._is_mid_line and self._finder.is_plain_text(text):
            return [AnswerText(text)]
        self._pieces.append(text)
        if self._blank and not text.strip(WHITESPACE):
            self._is_mid_line = False
            return []
        out: list[ToolCallEvent] = []
        self._advance(out)
        in_text = self._state == self._read_text
        self._blank = in_text and not self._buffer.strip(WHITESPACE)
        in_line = not self._after_call and not (self._finder.bare and self._line_start)
        self._is_mid_line = in_text and not self._buffer and in_line
        return merge_events(out)

    def end(self) -> list[ToolCallEvent]:
        out: list[ToolCallEvent] = []
        self._advance(out)
        while self._state != self._read_text:
            self._finish_incomplete(out)
            self._advance(out)
        self._emit_text(self._buffer, out)
        self._buffer = ""
        return merge_events(out)

    def _advance(self, out: list[ToolCallEvent]) -> None:
        self._buffer += "".join(self._pieces)
        self._pieces.clear()
        while self._state(out):
            pass

    def _read_text(self, out: list[ToolCallEvent]) -> bool:
        if self._after_call:
            self._skip_gap()
        text = self._buffer
        found = self._finder.find(text, self._line_start)
        if found is None:
            certain = self._finder.count_certain_text(text, self._line_start)
            self._buffer = text[certain:]
            self._emit_text(text[:certain], out)
            return False
        at, self._opening = found
        before = text[:at].rstrip(WHITESPACE)
        self._emit_text(before, out)
        self._buffer = text[len(before) :]
        self._opening_length = self._position = at - len(before) + len(self._opening)
        self._state = self._read_opening
        return True

    def _read_opening(self, out: list[ToolCallEvent]) -> bool:
        """Behind an opening: find out which form the call has."""
        raise NotImplementedError

    def _finish_incomplete(self, out: list[ToolCallEvent]) -> None:
        """The text ended in another state than text: go back to text. In doubt what was held is text."""
        self._reject(out)

    def _reject(self, out: list[ToolCallEvent]) -> bool:
        """This was no call: its opening is text, and what follows is read again as text."""
        self._emit_text(self._buffer[: self._opening_length], out)
        self._buffer = self._buffer[self._opening_length :]
        self._state = self._read_text
        return True

    def _commit_call(self) -> None:
        """The call has begun: what was read of it cannot become text any more."""
        self._buffer = self._buffer[self._position :]
        self._position = self._opening_length = 0
        self._gap = ""

    def _skip_gap(self) -> None:
        """Take the white space behind a call out of the buffer."""
        rest = self._buffer.lstrip(WHITESPACE)
        self._gap += self._buffer[: len(self._buffer) - len(rest)]
        self._buffer = rest

    def _skip_closer(self, closer: str) -> None:
        """Take what closes a call out of the buffer."""
        self._buffer = self._buffer[len(closer) :]
        self._gap = ""

    def _finish_call(self) -> bool:
        """The call and what closes it have been read."""
        self._after_call = self._line_start = True
        self._state = self._read_text
        return True

    def _emit_text(self, text: str, out: list[ToolCallEvent]) -> None:
        if not text:
            return
        out.append(AnswerText(self._gap + text if self._text_emitted else text))
        self._text_emitted, self._after_call, self._gap = True, False, ""
        _, newline, line = text.rpartition("\n")
        self._line_start = (bool(newline) or self._line_start) and not line.strip(WHITESPACE)
