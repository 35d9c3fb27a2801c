"""From drawn tokens to the sink: text, log probabilities, the end of a choice, the end of a request."""

from __future__ import annotations

from enginebay.contract import FinishReason, Sink
from enginebay.engines.transformers.decoding.sampled_token import SampledToken
from enginebay.engines.transformers.decoding.sequence_state import SequenceState
from enginebay.errors import EnginebayError


class OutputWriter:
    """Puts each row's tokens into the worker's sink, and knows which requests are open. Any thread may ask."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._choices_left: dict[int, int] = {}

    @property
    def open_count(self) -> int:
        """Requests that have neither ended nor been cancelled."""
        return len(self._choices_left)

    def get_request_numbers(self) -> set[int]:
        """The same, one by one."""
        return set(self._choices_left.copy())

    def open(self, number: int, choices: int, prompt_tokens: int) -> None:
        self._choices_left[number] = choices
        self._sink.accepted(number, prompt_tokens)

    def is_open(self, number: int) -> bool:
        return number in self._choices_left

    def close(self, number: int) -> None:
        self._choices_left.pop(number, None)

    def add_token(self, row: SequenceState, sampled: SampledToken) -> None:
        """One more token of a row; also tells when it was the last."""
        row.append_token(sampled.token)
        self.emit_token(row, sampled)

    def emit_token(self, row: SequenceState, sampled: SampledToken) -> None:
        """The token that the row has just noted."""
        self._sink.token(row.number, row.take_text(), (sampled.token,), row.choice, sampled.logprobs)
        if row.finish_reason is not None:
            self._finish_choice(row)

    def finish(self, row: SequenceState, reason: FinishReason) -> None:
        """The row ends without a further token."""
        row.finish_reason = reason
        self._finish_choice(row)

    def fail(self, number: int, error: EnginebayError) -> None:
        if self.is_open(number):
            self.close(number)
            self._sink.error(number, error)
            self._sink.flush()

    def flush(self) -> None:
        self._sink.flush()

    def _finish_choice(self, row: SequenceState) -> None:
        assert row.finish_reason is not None
        self._sink.finish(row.number, row.finish_reason, row.choice, row.stop_reason)
        left = self._choices_left.get(row.number, 0) - 1
        if left > 0:
            self._choices_left[row.number] = left
        else:
            self.close(row.number)
