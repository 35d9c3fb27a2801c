"""The energy counter of a device whose power is known: so much when idle, so much at work."""

from __future__ import annotations

import time

from enginebay.meters.sample import Sample


class FakeEnergyMeter:
    """A meter. The engine says when it works; another thread reads."""

    name = "fake"

    def __init__(self, idle_w: float, busy_w: float) -> None:
        self._idle_w, self._extra_busy_w = idle_w, busy_w - idle_w
        self._started = time.monotonic()
        self._busy_time: tuple[float, float | None] = (
            0.0,
            None,
        )  # seconds until it last rested, and since when it works

    def set_busy(self, busy: bool) -> None:
        worked_s, since = self._busy_time
        if busy and since is None:
            self._busy_time = (worked_s, time.monotonic())
        elif not busy and since is not None:
            self._busy_time = (worked_s + time.monotonic() - since, None)

    def read(self) -> list[Sample]:
        now, (worked_s, since) = time.monotonic(), self._busy_time
        worked_s += now - since if since is not None else 0.0
        return [Sample(now, "fake:0", energy_j=self._idle_w * (now - self._started) + self._extra_busy_w * worked_s)]

    def close(self) -> None:
        pass
