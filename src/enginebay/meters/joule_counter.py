"""A meter as one monotonic joule counter."""

from __future__ import annotations

from enginebay.meters.sample import Meter, Sample


class JouleCounter:
    """All devices of a meter together, from 0 at the first reading: by energy counters, else by power."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._last: dict[str, Sample] = {}
        self._total_j = 0.0

    def read(self) -> tuple[float, float] | None:
        """Return the time and the joules since the first reading; None if a device did not report, in which case its energy is in the next reading."""
        samples = self._meter.read()
        steps = [_compute_step_j(self._last.get(sample.device), sample) for sample in samples]
        drawn_j = [step_j for step_j in steps if step_j is not None]
        if not samples or len(drawn_j) < len(steps):
            return None
        self._total_j += sum(drawn_j)
        self._last = {sample.device: sample for sample in samples}
        return sum(sample.time_s for sample in samples) / len(samples), self._total_j


def _compute_step_j(before: Sample | None, now: Sample) -> float | None:
    """Return the energy between two readings of a device."""
    if now.energy_j is None and now.power_w is None:
        return None
    if before is None:
        return 0.0
    if now.energy_j is not None and before.energy_j is not None:
        rise_j = now.energy_j - before.energy_j
        return rise_j if rise_j >= 0 else max(rise_j + (now.wraps_at_j or 0.0), 0.0)
    if now.power_w is not None and before.power_w is not None:
        return (now.power_w + before.power_w) / 2 * (now.time_s - before.time_s)
    return None
