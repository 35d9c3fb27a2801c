"""An output that no token can continue within its constraint ends with an error."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from enginebay.contract import FinishReason, Guided, Sampling
from enginebay.engines.transformers.decoding.guided_decoding import GrammarConstraint
from enginebay.engines.transformers.decoding.output_writer import OutputWriter
from enginebay.engines.transformers.decoding.sequence_state import SampledToken
from enginebay.errors import InvalidRequest


class Matcher:
    """Accepts the token 1, any number of times."""

    def is_terminated(self) -> bool:
        return False

    def accept_token(self, token: int) -> bool:
        return token == 1


def test_the_constraint_knows_what_is_outside() -> None:
    constraint = GrammarConstraint(Matcher(), None)
    assert constraint.accepts([1, 1]) and not constraint.accepts([1, 1, 2]) and not constraint.accepts([1, 1, 2, 1])


def test_the_request_fails_and_nothing_is_sent() -> None:
    events: list[tuple[Any, ...]] = []
    sink: Any = SimpleNamespace(
        accepted=lambda *_: None, flush=lambda: None, error=lambda *found: events.append(found), token=events.append
    )
    writer = OutputWriter(sink)
    writer.open(7, 1, 3)
    sequence: Any = SimpleNamespace(
        number=7, has_left_constraint=True, sampling=Sampling(guided=Guided(regex="a")), finish_reason=None
    )
    writer.emit_token(sequence, SampledToken(2))
    [(number, error)] = events
    assert number == 7 and isinstance(error, InvalidRequest) and error.param == "guided_regex"
    assert sequence.finish_reason is FinishReason.STOP and not writer.is_open(7)
