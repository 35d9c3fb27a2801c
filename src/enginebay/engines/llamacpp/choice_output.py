"""One choice's output as it grows: token ids complete, text in whole characters, stop strings and stop tokens found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from enginebay.contract import FinishReason, Sampling, TokenLogprobs
from enginebay.text.tokenization.detokenizer import StopScanner

# (text, id of the token that completed it, how many tokens before it were not reported) -> their ids
FindUnreported = Callable[[str, int, int], list[int]]
OutputPiece = tuple[str, list[int], Sequence[TokenLogprobs]]


class ChoiceOutput:
    """Takes the library's chunks for one choice. `finish_reason` is set when nothing more is wanted."""

    __slots__ = (
        "_attempt_tokens",
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
        "stop_reason",
    )  # fmt: skip

    def __init__(self, choice: int, sampling: Sampling, limit: int, find_unreported: FindUnreported) -> None:
        self.choice = choice
        self.limit = limit
        self.min_tokens = min(sampling.min_tokens or 0, limit)
        self.ids: list[int] = []
        self.count = 0
        self.finish_reason: FinishReason | None = None
        self.stop_reason: str | int | None = None
        self._attempt_tokens = 0  # tokens of this attempt that the library has counted
        self._stop_scanner = StopScanner(sampling.stop)
        self._stop_ids = frozenset(sampling.stop_token_ids)
        self._top_logprobs = sampling.logprobs or 0
        self._find_unreported = find_unreported

    @property
    def attempt_limit(self) -> int:
        """Where the current attempt ends: min_tokens first, since end tokens are banned until then."""
        return self.min_tokens if self.count < self.min_tokens else self.limit

    def begin_attempt(self) -> None:
        self._attempt_tokens = 0

    def add_chunk(
        self, text: str, token_id: int, tokens_made: int, logprobs: Sequence[Mapping[str, Any]] = ()
    ) -> OutputPiece:
        """One chunk: what to send on. `made` is how many tokens this attempt has made so far."""
        missing = tokens_made - self._attempt_tokens - 1
        self._attempt_tokens = tokens_made
        ids = [token_id] if missing <= 0 else [*self._find_unreported(text, token_id, missing), token_id]
        room = self.limit - self.count
        if len(ids) > room:  # the limit falls inside a character, which then has no text
            ids, text, logprobs = ids[:room], "", ()
        self.ids += ids
        self.count += len(ids)
        searching = self.count > self.min_tokens
        stopped = [one for one in ids if one in self._stop_ids] if self._stop_ids and searching else ()
        if stopped:
            self._finish(FinishReason.STOP, stopped[0])
            return self._stop_scanner.finish(), ids, _parse_logprobs(logprobs, self._top_logprobs)
        ready = self._stop_scanner.feed(text) if searching else text
        if self._stop_scanner.matched is not None:
            self._finish(FinishReason.STOP, self._stop_scanner.matched)
        return ready, ids, _parse_logprobs(logprobs, self._top_logprobs)

    def end_attempt(self, stop_type: str, out_of_context: bool) -> str:
        """The library has ended the attempt. Gives back text that was held; decides whether the output is finished.

        It is not when only min_tokens are reached, or when the last tokens ended inside a character and were never
        reported: those are made again.
        """
        if self.finish_reason is not None:
            return ""
        if stop_type in ("eos", "word"):
            self._finish(FinishReason.STOP, None)
        elif out_of_context or self.count >= self.limit:
            self._finish(FinishReason.LENGTH, None)
        return self._stop_scanner.finish() if self.finish_reason is not None else ""

    def give_up(self) -> str:
        """No attempt makes progress any more: the output ends here."""
        self._finish(FinishReason.LENGTH, None)
        return self._stop_scanner.finish()

    def _finish(self, reason: FinishReason, stop_reason: str | int | None) -> None:
        self.finish_reason = reason
        self.stop_reason = stop_reason


def _parse_logprobs(found: Sequence[Mapping[str, Any]], top: int) -> Sequence[TokenLogprobs]:
    return [
        TokenLogprobs(
            one["id"],
            one["logprob"],
            tuple((other["id"], other["logprob"]) for other in one["top_logprobs"][:top]),
        )
        for one in found
    ]
