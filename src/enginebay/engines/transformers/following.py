"""What ranks above 0 do: the same forward passes as rank 0, on their part of the model."""

from __future__ import annotations

from typing import Any

from enginebay.engines.transformers.assembly import Parts
from enginebay.engines.transformers.generation import GenerateCall, ScoreCall, follow_generate
from enginebay.engines.transformers.parallel import Closing, LeaderGone, Resume
from enginebay.engines.transformers.schedule import Step


def follow(parts: Parts) -> None:
    """Take messages until rank 0 closes or is gone."""
    try:
        while True:
            message = parts.peers.receive()
            if isinstance(message, Closing):
                parts.peers.close()
                return
            _handle(parts, message)
    except LeaderGone:
        return


def _handle(parts: Parts, message: Any) -> list[bool] | None:
    """Do one message; a verdict on generate() is handed back to it."""
    match message:
        case Resume(done):
            return done
        case Step():
            assert parts.runner is not None
            parts.runner.run(message)
        case GenerateCall():
            assert parts.generator is not None
            follow_generate(parts.generator, parts.peers, message, lambda inner: _handle(parts, inner))
        case ScoreCall():
            assert parts.generator is not None
            parts.generator.score(message)
    return None
