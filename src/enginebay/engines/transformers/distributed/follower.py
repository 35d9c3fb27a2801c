"""What ranks above 0 do: the same forward passes as rank 0, on their part of the model."""

from __future__ import annotations

from typing import Any

from enginebay.engines.transformers.continuous.scheduler import ScheduledStep
from enginebay.engines.transformers.distributed.ranks import LeaderGone, Resume, Shutdown
from enginebay.engines.transformers.engine_builder import EngineComponents
from enginebay.engines.transformers.static.generate_loop import GenerateCall, ScoreCall, follow_generate


def run_follower(parts: EngineComponents) -> None:
    """Take messages until rank 0 closes or is gone."""
    try:
        while True:
            message = parts.ranks.receive()
            if isinstance(message, Shutdown):
                parts.ranks.close()
                return
            _handle_message(parts, message)
    except LeaderGone:
        return


def _handle_message(parts: EngineComponents, message: Any) -> list[bool] | None:
    """Do one message; a verdict on generate() is handed back to it."""
    match message:
        case Resume(done):
            return done
        case ScheduledStep():
            assert parts.runner is not None
            parts.runner.run(message)
        case GenerateCall():
            assert parts.generator is not None
            follow_generate(parts.generator, parts.ranks, message, lambda inner: _handle_message(parts, inner))
        case ScoreCall():
            assert parts.generator is not None
            parts.generator.score(message)
    return None
