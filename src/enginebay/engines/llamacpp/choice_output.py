"""Output of one choice: complete token ids, text in whole characters, stop strings and stop tokens."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from enginebay.contract import FinishReason, Sampling, TokenLogprobs
from enginebay.text.tokenization.detokenizer import StopScanner

# (text, id of its last token, number of unreported tokens before it) -> ids of the unreported tokens
FindUnreported = Callable[[str, int, int], list[int]]
OutputPiece = tuple[str, list[int], Sequence[TokenLogprobs]]


class ConstraintFollower(Protocol):
    def consume(self, text: str, tokens: Sequence[int]) -> bool: ...

    def is_accepting(self) -> bool: ...

    def is_complete(self) -> bool: ...


class ChoiceOutput:
    """Collects the library's chunks for one choice. `finish_reason` is set once the output is complete."""

    __slots__ = (
        "_attempt_tokens",
        "_constraint",
        "_find_unreported",
        "_stop_ids",
        "_stop_scanner",
        "_top_logprobs",
        "choice",
        "count",
        "finish_reason",
        "ids",
        "limit",
        "min_tokens",
        "restored",
        "stop_reason",
    )  # fmt: skip

    def __init__(self, choice: int, sampling: Sampling, limit: int, find_unreported: FindUnreported) -> None:
        self.choice = choice
        self.limit = limit
        # A constraint decides where the output ends.
        self.min_tokens = 0 if sampling.guided is not None else min(sampling.min_tokens or 0, limit)
        self._constraint: ConstraintFollower | None = None
        self.ids: list[int] = []
        self.count = 0
        self.restored = 0  # tokens that another worker generated
        self.finish_reason: FinishReason | None = None
        self.stop_reason: str | int | None = None
        self._attempt_tokens = 0  # tokens the library has counted in this attempt
        self._stop_scanner = StopScanner(sampling.stop)
        self._stop_ids = frozenset(sampling.stop_token_ids)
        self._top_logprobs = sampling.logprobs or 0
        self._find_unreported = find_unreported

    @property
    def attempt_limit(self) -> int:
        """Token count at which the current attempt ends: min_tokens first, since end tokens are banned until then."""
        return self.min_tokens if self.count < self.min_tokens else self.limit

    def restore(self, ids: Sequence[int], get_piece: Callable[[int], bytes]) -> None:
        """Take over the output of another worker, which has sent its text."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for count, token in enumerate(ids, 1):
            if self.finish_reason is None:
                self.add_chunk(decoder.decode(get_piece(token)), token, count)
        self.restored = self.count

    def follow(self, constraint: ConstraintFollower) -> None:
        """Follow the output with its constraint, which the library may give up."""
        self._constraint = constraint

    def end_if_complete(self) -> bool:
        """Finish the output if its constraint allows nothing more."""
        if self._constraint is None or not self._constraint.is_complete():
            return False
        self._finish(FinishReason.STOP, None)
        return True

    def is_restored_complete(self) -> bool:
        """Return whether another worker completed the output, and did not send its end."""
        return bool(self.restored) and (self.finish_reason is not None or self.count >= self.limit)

    def allows(self, text: str, tokens: Sequence[int]) -> bool:
        """Return whether the constraint allows this text to follow."""
        return self._constraint is None or not text or self._constraint.consume(text, tokens)

    def may_end(self) -> bool:
        return self._constraint is None or self._constraint.is_accepting()

    def begin_attempt(self) -> None:
        self._attempt_tokens = 0

    def add_chunk(
        self, text: str, token_id: int, tokens_made: int, logprobs: Sequence[Mapping[str, Any]] = ()
    ) -> OutputPiece:
        """Add one chunk and return what to send. `tokens_made` counts the tokens of this attempt."""
        missing = tokens_made - self._attempt_tokens - 1
        self._attempt_tokens = tokens_made
        ids = [token_id] if missing <= 0 else [*self._find_unreported(text, token_id, missing), token_id]
        remaining = self.limit - self.count
        if len(ids) > remaining:  # the limit cuts a character, whose text is dropped
            ids, text, logprobs = ids[:remaining], "", ()
        self.ids += ids
        self.count += len(ids)
        searching = self.count > self.min_tokens
        stopped = [token for token in ids if token in self._stop_ids] if self._stop_ids and searching else ()
        if stopped:
            self._finish(FinishReason.STOP, stopped[0])
            return self._stop_scanner.finish(), ids, _parse_logprobs(logprobs, self._top_logprobs)
        ready = self._stop_scanner.feed(text) if searching else text
        if self._stop_scanner.matched is not None:
            self._finish(FinishReason.STOP, self._stop_scanner.matched)
        return ready, ids, _parse_logprobs(logprobs, self._top_logprobs)

    def end_attempt(self, stop_type: str, out_of_context: bool) -> str:
        """Handle the end of an attempt: return held text and decide whether the output is complete.

        It is incomplete if only min_tokens is reached, or if the last tokens ended inside a character and were not
        reported. Those are generated again.
        """
        if self.finish_reason is not None:
            return ""
        if stop_type in ("eos", "word"):
            self._finish(FinishReason.STOP, None)
        elif out_of_context or self.count >= self.limit:
            self._finish(FinishReason.LENGTH, None)
        return self._stop_scanner.finish() if self.finish_reason is not None else ""

    def give_up(self) -> str:
        """End the output, because attempts make no more progress."""
        self._finish(FinishReason.LENGTH, None)
        return self._stop_scanner.finish()

    def _finish(self, reason: FinishReason, stop_reason: str | int | None) -> None:
        self.finish_reason = reason
        self.stop_reason = stop_reason


def _parse_logprobs(tokens: Sequence[Mapping[str, Any]], top: int) -> Sequence[TokenLogprobs]:
    return [
        TokenLogprobs(
            token["id"],
            token["logprob"],
            tuple((other["id"], other["logprob"]) for other in token["top_logprobs"][:top]),
        )
        for token in tokens
    ]
