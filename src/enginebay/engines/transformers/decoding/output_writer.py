"""Writes sampled tokens to the sink: text, log probabilities, and the end of choices and requests."""

from __future__ import annotations

from enginebay.contract import FinishReason, Sink
from enginebay.engines.compile_trial import get_kind
from enginebay.engines.transformers.decoding.sequence_state import SampledToken, SequenceState
from enginebay.errors import EnginebayError, InvalidRequest


class OutputWriter:
    """Writes tokens to the worker's sink and tracks open requests. The queries are thread-safe."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._choices_left: dict[int, int] = {}

    @property
    def open_count(self) -> int:
        """Number of requests that have neither ended nor been cancelled."""
        return len(self._choices_left)

    def get_request_numbers(self) -> set[int]:
        """Return the open requests."""
        return set(self._choices_left.copy())

    def open(self, number: int, choices: int, prompt_tokens: int) -> None:
        self._choices_left[number] = choices
        self._sink.accepted(number, prompt_tokens)

    def is_open(self, number: int) -> bool:
        return number in self._choices_left

    def close(self, number: int) -> None:
        self._choices_left.pop(number, None)

    def add_token(self, sequence: SequenceState, sampled: SampledToken) -> None:
        """Append a token to a sequence and emit it; finish the choice if it was the last."""
        sequence.append_token(sampled.token)
        self.emit_token(sequence, sampled)

    def emit_token(self, sequence: SequenceState, sampled: SampledToken) -> None:
        """Emit the last appended token. Fail the request if no token could follow within its constraint."""
        if sequence.has_left_constraint:
            sequence.finish_reason = FinishReason.STOP
            self.fail(sequence.number, _make_dead_end_error(sequence))
            return
        self._sink.token(sequence.number, sequence.take_text(), (sampled.token,), sequence.choice, sampled.logprobs)
        if sequence.finish_reason is not None:
            self._finish_choice(sequence)

    def finish(self, sequence: SequenceState, reason: FinishReason) -> None:
        """Finish a sequence without another token."""
        sequence.finish_reason = reason
        self._finish_choice(sequence)

    def fail(self, number: int, error: EnginebayError) -> None:
        if self.is_open(number):
            self.close(number)
            self._sink.error(number, error)
            self._sink.flush()

    def flush(self) -> None:
        self._sink.flush()

    def _finish_choice(self, sequence: SequenceState) -> None:
        assert sequence.finish_reason is not None
        self._sink.finish(sequence.number, sequence.finish_reason, sequence.choice, sequence.stop_reason)
        left = self._choices_left.get(sequence.number, 0) - 1
        if left > 0:
            self._choices_left[sequence.number] = left
        else:
            self.close(sequence.number)


def _make_dead_end_error(sequence: SequenceState) -> InvalidRequest:
    assert sequence.sampling.guided is not None
    return InvalidRequest(
        "the output reached a dead end: no token of this model satisfies the constraint",
        "allow more characters at this point",
        param=f"guided_{get_kind(sequence.sampling.guided)}",
    )
