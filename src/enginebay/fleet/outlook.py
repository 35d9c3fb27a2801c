"""What whoever waits for a model is told."""

from __future__ import annotations

from dataclasses import dataclass

from enginebay.fleet.place import Place
from enginebay.fleet.residency import Depth


@dataclass(frozen=True, slots=True)
class Outlook:
    model: str
    state: str
    seconds: float  # until it should be awake
    waiting: int  # requests that wait for it

    def __str__(self) -> str:
        about = f", about {self.seconds:.0f} s" if self.seconds >= 1 else ""
        return f"{self.model} is {self.state}{about}"


def told(place: Place) -> str:
    """The state of a variant in one or two words."""
    if place.moving:
        if place.depth is Depth.AWAKE:
            return "waking" if place.came_from is Depth.ASLEEP else "loading"
        return "falling asleep" if place.depth is Depth.ASLEEP else "unloading"
    if place.changing:
        return "being replaced"
    if place.variant.plan is None:
        return "unavailable"
    if place.refusal() is not None:
        return "failing"
    if place.closed:
        return "draining"
    return place.depth.value
