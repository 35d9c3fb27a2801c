"""The follower loop of ranks above 0: the same forward passes as rank 0, on their shard."""

from __future__ import annotations

from typing import Any

from enginebay.engines.transformers.continuous.scheduler import ScheduledStep
from enginebay.engines.transformers.distributed.ranks import LeaderGone, Resume, Shutdown
from enginebay.engines.transformers.engine_builder import EngineComponents
from enginebay.engines.transformers.static.library_generator import GenerateCall, ScoreCall


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
            _follow_generate(components, message)
        case ScoreCall():
            assert components.generator is not None
            components.generator.score(message)
    return None


def _follow_generate(components: EngineComponents, call: GenerateCall) -> None:
    """Run generate() with rank 0's scores and stop flags; other messages are handled in between."""
    assert components.generator is not None

    def check_stop(ids: Any) -> list[bool]:
        while True:
            done = _handle_message(components, components.ranks.receive())
            if done is not None:
                return done

    components.generator.run(call, lambda ids, scores: components.ranks.broadcast_tensor(scores), check_stop)
