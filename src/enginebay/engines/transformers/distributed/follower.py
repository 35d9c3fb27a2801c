"""The follower loop of ranks above 0: the same forward passes as rank 0, on their shard."""

from __future__ import annotations

from typing import Any

from enginebay.engines.transformers.continuous.scheduler import ScheduledStep
from enginebay.engines.transformers.distributed.ranks import LeaderGone, Resume, Shutdown
from enginebay.engines.transformers.engine_builder import EngineComponents
from enginebay.engines.transformers.static.generate_loop import GenerateCall, ScoreCall, follow_generate


def run_follower(components: EngineComponents) -> None:
    """Handle messages until rank 0 shuts down or disappears."""
    try:
        while True:
            message = components.ranks.receive()
            if isinstance(message, Shutdown):
                components.ranks.close()
                return
            _handle_message(components, message)
    except LeaderGone:
        return


def _handle_message(components: EngineComponents, message: Any) -> list[bool] | None:
    """Handle one message. Return the finished rows if the message resumes generate()."""
    match message:
        case Resume(done):
            return done
        case ScheduledStep():
            assert components.runner is not None
            components.runner.run(message)
        case GenerateCall():
            assert components.generator is not None
            follow_generate(
                components.generator, components.ranks, message, lambda inner: _handle_message(components, inner)
            )
        case ScoreCall():
            assert components.generator is not None
            components.generator.score(message)
    return None
