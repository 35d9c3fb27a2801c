"""A meter that replays a known power trace, with the faults of real counters."""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from enginebay.meters.sample import Sample


@dataclass(frozen=True, slots=True)
class PowerTrace:
    """Piecewise constant power: (time, watts) in time order, starting at 0 or before."""

    steps: tuple[tuple[float, float], ...]

    def power_w(self, time_s: float) -> float:
        index = bisect_right([start for start, _ in self.steps], time_s) - 1
        return self.steps[max(index, 0)][1]

    def energy_j(self, start_s: float, end_s: float) -> float:
        """Return the energy drawn between two times."""
        ends = [start for start, _ in self.steps[1:]] + [math.inf]
        return sum(
            watts * max(min(end, end_s) - max(start, start_s), 0.0)
            for (start, watts), end in zip(self.steps, ends, strict=True)
        )


@dataclass(frozen=True, slots=True)
class Stall:
    """The counter stops, then continues from there or catches up."""

    start_s: float
    end_s: float
    catches_up: bool = False


@dataclass(frozen=True, slots=True)
class Jump:
    """The counter changes by joules that were not drawn, up or down."""

    at_s: float
    joules: float


class ReplayMeter:
    """One device that draws power by the trace, from the creation of the meter."""

    name = "replay"

    def __init__(
        self,
        trace: PowerTrace,
        *,
        device: str = "gpu:0",
        period_s: float = 0.0,  # update period of the counter; 0: always fresh
        first_j: float = 0.0,  # initial counter value
        wraps_at_j: float | None = None,
        limit_w: float | None = None,
        faults: Sequence[Stall | Jump] = (),
        reports_power: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._trace = trace
        self._device = device
        self._period_s = period_s
        self._first_j = first_j
        self._wraps_at_j = wraps_at_j
        self._limit_w = limit_w
        self._faults = tuple(faults)
        self._reports_power = reports_power
        self._clock = clock
        self.origin_s = clock()  # time 0 of the trace

    def read(self) -> list[Sample]:
        now_s = self._clock()
        return [
            Sample(
                now_s,
                self._device,
                energy_j=self._compute_counter_j(now_s - self.origin_s),
                power_w=self._trace.power_w(now_s - self.origin_s) if self._reports_power else None,
                wraps_at_j=self._wraps_at_j,
                limit_w=self._limit_w,
            )
        ]

    def close(self) -> None:
        pass

    def _compute_counter_j(self, time_s: float) -> float:
        updated_s = math.floor(time_s / self._period_s) * self._period_s if self._period_s else time_s
        joules = self._first_j + self._trace.energy_j(0.0, updated_s)
        for fault in self._faults:
            joules += self._compute_fault_j(fault, updated_s)
        shown = joules % self._wraps_at_j if self._wraps_at_j else joules
        return round(shown, 3)  # real counters have millijoule resolution

    def _compute_fault_j(self, fault: Stall | Jump, time_s: float) -> float:
        if isinstance(fault, Jump):
            return fault.joules if time_s >= fault.at_s else 0.0
        if time_s < fault.start_s or (fault.catches_up and time_s >= fault.end_s):
            return 0.0
        return -self._trace.energy_j(fault.start_s, min(time_s, fault.end_s))
