"""A simulated energy meter with constant idle and busy power."""

from __future__ import annotations

import time

from enginebay.meters.sample import Sample


class FakeEnergyMeter:
    """A meter. The engine thread calls `set_busy`; another thread reads."""

    name = "fake"

    def __init__(self, idle_w: float, busy_w: float) -> None:
        self._idle_w, self._extra_busy_w = idle_w, busy_w - idle_w
        self._started = time.monotonic()
        # Busy seconds up to the last idle period, and the start of the current busy period. One tuple: readers never see half.
        self._busy_time: tuple[float, float | None] = (0.0, None)

    def set_busy(self, busy: bool) -> None:
        busy_s, busy_since = self._busy_time
        if busy and busy_since is None:
            self._busy_time = (busy_s, time.monotonic())
        elif not busy and busy_since is not None:
            self._busy_time = (busy_s + time.monotonic() - busy_since, None)

    def read(self) -> list[Sample]:
        now, (busy_s, busy_since) = time.monotonic(), self._busy_time
        busy_s += now - busy_since if busy_since is not None else 0.0
        return [Sample(now, "fake:0", energy_j=self._idle_w * (now - self._started) + self._extra_busy_w * busy_s)]

    def close(self) -> None:
        pass
