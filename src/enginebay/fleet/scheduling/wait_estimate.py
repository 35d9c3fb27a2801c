"""Wait estimates and state labels, as clients see them while a model loads."""

from __future__ import annotations

from dataclasses import dataclass

from enginebay.fleet.lifecycle.replica import Replica
from enginebay.fleet.scheduling.planner import ReplicaState


@dataclass(frozen=True, slots=True)
class WaitEstimate:
    model: str
    state: str
    seconds: float  # until it is awake
    waiting: int  # requests waiting for it

    def __str__(self) -> str:
        about = f", about {self.seconds:.0f} s" if self.seconds >= 1 else ""
        return f"{self.model} is {self.state}{about}"


def state_label(replica: Replica) -> str:
    """Return the state of a replica in one or two words."""
    if replica.in_transition:
        if replica.state is ReplicaState.AWAKE:
            return "waking" if replica.previous_state is ReplicaState.ASLEEP else "loading"
        return "falling asleep" if replica.state is ReplicaState.ASLEEP else "unloading"
    if replica.updating:
        return "being replaced"
    if replica.variant.plan is None:
        return "unavailable"
    if replica.get_rejection() is not None:
        return "failing"
    if replica.draining:
        return "draining"
    return replica.state.value
