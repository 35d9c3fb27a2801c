"""What the streaming parsers of all formats share: text until a call may begin, and back to text if it was none."""

from __future__ import annotations

from collections.abc import Callable

from enginebay.text.tools.events import Text, ToolEvent, joined
from enginebay.text.tools.finder import OpeningFinder
from enginebay.text.tools.scan import SPACE


class CallParser:
    """A state machine over a buffer. A state is a method that returns False when it needs more text.

    White space (space, tab, line ends) directly before what opens a call is not given out, nor is that directly after
    what closes it, unless it parts the text before the call from text after it. All other white space is text. What
    looked like a call and is none comes out as it was written. Once the name of a call is out, its punctuation is not
    text any more, even if the answer ends early.
    """

    def __init__(self, finder: OpeningFinder) -> None:
        self._finder = finder
        self._buffer = ""
        self._state: Callable[[list[ToolEvent]], bool] = self._text
        self._index = 0  # of the next call
        self._opening = ""
        self._lead = 0  # length of the white space and the opening in front of a possible call
        self._at = 0  # how far the possible call has been read
        self._after_call = False  # nothing but white space since the last call
        self._gap = ""  # that white space
        self._spoken = False  # some text has been given out
        self._line_start = True
        self._pieces: list[str] = []  # not in the buffer yet: white space changes nothing until more comes
        self._blank = True  # in text, with nothing but white space held back
        self._idle = False  # in the middle of a line of text, with nothing held back

    def feed(self, text: str) -> list[ToolEvent]:
        if self._idle and self._finder.is_harmless(text):
            return [Text(text)]
        self._pieces.append(text)
        if self._blank and not text.strip(SPACE):
            self._idle = False
            return []
        out: list[ToolEvent] = []
        self._run(out)
        in_text = self._state == self._text
        self._blank = in_text and not self._buffer.strip(SPACE)
        in_line = not self._after_call and not (self._finder.bare and self._line_start)
        self._idle = in_text and not self._buffer and in_line
        return joined(out)

    def end(self) -> list[ToolEvent]:
        out: list[ToolEvent] = []
        self._run(out)
        while self._state != self._text:
            self._give_up(out)
            self._run(out)
        self._say(self._buffer, out)
        self._buffer = ""
        return joined(out)

    def _run(self, out: list[ToolEvent]) -> None:
        self._buffer += "".join(self._pieces)
        self._pieces.clear()
        while self._state(out):
            pass

    def _text(self, out: list[ToolEvent]) -> bool:
        if self._after_call:
            self._skip_gap()
        text = self._buffer
        found = self._finder.find(text, self._line_start)
        if found is None:
            certain = self._finder.certain(text, self._line_start)
            self._buffer = text[certain:]
            self._say(text[:certain], out)
            return False
        at, self._opening = found
        before = text[:at].rstrip(SPACE)
        self._say(before, out)
        self._buffer = text[len(before) :]
        self._lead = self._at = at - len(before) + len(self._opening)
        self._state = self._opened
        return True

    def _opened(self, out: list[ToolEvent]) -> bool:
        """Behind an opening: find out which form the call has."""
        raise NotImplementedError

    def _give_up(self, out: list[ToolEvent]) -> None:
        """The text ended in another state than text: go back to text. In doubt what was held is text."""
        self._reject(out)

    def _reject(self, out: list[ToolEvent]) -> bool:
        """This was no call: its opening is text, and what follows is read again as text."""
        self._say(self._buffer[: self._lead], out)
        self._buffer = self._buffer[self._lead :]
        self._state = self._text
        return True

    def _started(self) -> None:
        """The call has begun: what was read of it cannot become text any more."""
        self._buffer = self._buffer[self._at :]
        self._at = self._lead = 0
        self._gap = ""

    def _skip_gap(self) -> None:
        """Take the white space behind a call out of the buffer."""
        rest = self._buffer.lstrip(SPACE)
        self._gap += self._buffer[: len(self._buffer) - len(rest)]
        self._buffer = rest

    def _skip_closer(self, closer: str) -> None:
        """Take what closes a call out of the buffer."""
        self._buffer = self._buffer[len(closer) :]
        self._gap = ""

    def _finished(self) -> bool:
        """The call and what closes it have been read."""
        self._after_call = self._line_start = True
        self._state = self._text
        return True

    def _say(self, text: str, out: list[ToolEvent]) -> None:
        if not text:
            return
        out.append(Text(self._gap + text if self._spoken else text))
        self._spoken, self._after_call, self._gap = True, False, ""
        _, newline, line = text.rpartition("\n")
        self._line_start = (bool(newline) or self._line_start) and not line.strip(SPACE)
