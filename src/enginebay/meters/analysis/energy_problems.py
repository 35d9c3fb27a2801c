"""What can be wrong with measured energy."""

from __future__ import annotations

from dataclasses import dataclass

PROBLEM_CODES = {
    "no_samples": "nothing was read from the device",
    "no_counter": "the device has no energy counter",
    "no_power": "the device does not tell its power",
    "wrapped": "the counter started again at 0 where it is known to; the energy is right",
    "reset": "the counter went backwards where it should not",
    "jump": "the counter rose by more than the device can draw",
    "stall": "the counter stood still while power was drawn",
    "gap": "for too long no sample was taken",
    "uncovered": "the window reaches beyond the samples",
    "window_short": "the window is too short for how often the counter is updated",
    "apart": "counter and sampled power do not agree",
    "unsteady": "the idle power changed while it was measured",
    "below_idle": "less energy than the idle power alone would need",
    "unresolved": "the phases change faster than the energy can be told",
}

COUNTER = "counter"
POWER = "power"


@dataclass(frozen=True, slots=True)
class EnergyProblem:
    """One thing found, when, and which source of energy can no longer be trusted because of it."""

    code: str  # one of PROBLEMS
    message: str
    start_s: float | None = None
    end_s: float | None = None
    untrusted_sources: tuple[str, ...] = ()

    def overlaps(self, start_s: float, end_s: float) -> bool:
        """Whether it happened in the window, at least in part."""
        if self.start_s is None or self.end_s is None:
            return True
        return self.start_s < end_s and self.end_s > start_s
