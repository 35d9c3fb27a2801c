"""Problems of measured energy."""

from __future__ import annotations

from dataclasses import dataclass

PROBLEM_CODES = {
    "no_samples": "nothing was read from the device",
    "no_counter": "the device has no energy counter",
    "no_power": "the device does not report its power",
    "wrapped": "the counter wrapped to 0 at its known limit; the energy is correct",
    "reset": "the counter went backwards unexpectedly",
    "jump": "the counter rose by more than the device can draw",
    "stall": "the counter stalled while power was drawn",
    "gap": "no sample was taken for too long",
    "uncovered": "the window extends beyond the samples",
    "window_short": "the window is too short for the counter's update period",
    "apart": "counter and sampled power disagree",
    "unsteady": "the idle power changed while being measured",
    "below_idle": "less energy than idle power alone would use",
    "unresolved": "the phases change faster than energy can be resolved",
}

COUNTER = "counter"
POWER = "power"


@dataclass(frozen=True, slots=True)
class EnergyProblem:
    """One problem, its time, and the energy sources that it makes untrustworthy."""

    code: str  # one of PROBLEM_CODES
    message: str
    start_s: float | None = None
    end_s: float | None = None
    untrusted_sources: tuple[str, ...] = ()

    def overlaps(self, start_s: float, end_s: float) -> bool:
        """Return whether it overlaps the window."""
        if self.start_s is None or self.end_s is None:
            return True
        return self.start_s < end_s and self.end_s > start_s
