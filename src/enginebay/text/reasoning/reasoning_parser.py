"""Base of the reasoning parsers: what they pass on, and how they count tokens."""

from __future__ import annotations

from enginebay.text.output_events import AnswerText, OutputEvent, OutputEventParser, ReasoningText, merge_events


class ReasoningParser:
    """Splits one output into thoughts and the rest, which the inner parser gets."""

    def __init__(self, inner: OutputEventParser | None) -> None:
        self._inner = inner
        self._undecided_tokens = 0
        self.reasoning_tokens = 0  # of thoughts, with their tags
        self.uncounted_pieces = 0  # of thoughts, without tokens, as from remote engines
        self.thought_began = False
        self.thought_ended = False  # the answer is next, or has begun
        self.rest = ""  # what the text that ended the thought has after its end

    @property
    def is_plain(self) -> bool:
        """Whether all that follows is answer text, unchanged."""
        return False

    def feed(self, text: str, tokens: int = 1) -> list[OutputEvent]:
        """Parse a piece of so many tokens."""
        had_ended, out = self.thought_ended, list[OutputEvent]()
        self._read(text, out)
        if not had_ended:
            self._count(tokens)
        return merge_events(out)

    def end(self) -> list[OutputEvent]:
        """Return the events held back, at the end of the output. Call it once."""
        out: list[OutputEvent] = []
        self._finish(out)
        if self._inner is not None:
            out += self._inner.end()
        return merge_events(out)

    def _count(self, tokens: int) -> None:
        if self.thought_began:
            self.reasoning_tokens += tokens + self._undecided_tokens
            self._undecided_tokens = 0
            self.uncounted_pieces += not tokens
        else:
            self._undecided_tokens += tokens

    def _read(self, text: str, out: list[OutputEvent]) -> None:
        raise NotImplementedError

    def _finish(self, out: list[OutputEvent]) -> None:
        raise NotImplementedError

    def _emit_thought(self, text: str, out: list[OutputEvent]) -> None:
        if text:
            out.append(ReasoningText(text))

    def _emit_answer(self, text: str, out: list[OutputEvent]) -> None:
        if not text:
            return
        if self._inner is None:
            out.append(AnswerText(text))
        else:
            out += self._inner.feed(text)


def count_partial(text: str, full: str) -> int:
    """Return how many of the text's last characters may begin `full`, which it does not end with."""
    for size in range(min(len(text), len(full) - 1), 0, -1):
        if text.endswith(full[:size]):
            return size
    return 0
