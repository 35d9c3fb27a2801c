"""Background thread that samples meters."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from enginebay.meters.sample import Meter, Sample


class MeterSampler:
    """Reads all meters every `interval_s`.

    A burst briefly reads energy meters much more often, to find out exactly when their counters update. Bursts run at the
    start and at the end; call `burst` before a window that starts later.
    """

    def __init__(
        self, meters: Sequence[Meter], interval_s: float = 0.1, *, burst_s: float = 0.5, burst_interval_s: float = 0.005
    ) -> None:
        self._meters = tuple(meters)
        self._interval_s = interval_s
        self._burst_s = burst_s
        self._burst_interval_s = burst_interval_s
        self._lock = threading.Lock()  # guards the next three
        self._samples: list[Sample] = []
        self._latest: dict[str, Sample] = {}
        self._failures: dict[str, str] = {}
        self._energy_meters: set[str] = set()  # names; used by the thread only
        self._burst_until_s = 0.0
        self._stopping = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="meters", daemon=True)

    def start(self) -> None:
        """Read every meter once, then start the thread."""
        for meter in self._meters:
            self._read(meter)
        self.burst()
        self._thread.start()

    def burst(self) -> None:
        """Start a burst and return at once."""
        self._burst_until_s = time.monotonic() + self._burst_s
        self._wake.set()

    def stop(self) -> list[Sample]:
        """Stop after a last burst and return the samples not yet drained. The meters stay open."""
        if self._thread.is_alive():
            self.burst()
            self._stopping = True
            self._wake.set()
            self._thread.join()
        return self.drain()

    def drain(self) -> list[Sample]:
        """Return the samples since the last drain, in reading order."""
        with self._lock:
            drained, self._samples = self._samples, []
        return drained

    def latest(self) -> dict[str, Sample]:
        """Return the newest sample of each device."""
        with self._lock:
            return dict(self._latest)

    def failures(self) -> dict[str, str]:
        """Return the last error of each meter that failed."""
        with self._lock:
            return dict(self._failures)

    def _run(self) -> None:
        due_s = time.monotonic() + self._interval_s
        while True:
            now_s = time.monotonic()
            bursting = bool(self._energy_meters) and now_s < self._burst_until_s
            ending = self._stopping and not bursting
            all_due = now_s >= due_s or ending
            for meter in self._meters:
                if all_due or (bursting and meter.name in self._energy_meters):
                    self._read(meter)
            if ending:
                return
            if all_due:
                due_s = _compute_next_due(due_s, self._interval_s, time.monotonic())
            self._sleep(min(due_s - time.monotonic(), self._burst_interval_s if bursting else self._interval_s))

    def _sleep(self, seconds: float) -> None:
        if seconds > 0 and self._wake.wait(seconds):
            self._wake.clear()

    def _read(self, meter: Meter) -> None:
        try:
            samples = meter.read()
        except Exception as error:  # one meter's failure must not stop the others
            samples = []
            with self._lock:
                self._failures[meter.name] = f"{type(error).__name__}: {error}"
        if any(sample.energy_j is not None for sample in samples):
            self._energy_meters.add(meter.name)
        with self._lock:
            self._samples.extend(samples)
            self._latest.update({sample.device: sample for sample in samples})


def _compute_next_due(due_s: float, interval_s: float, now_s: float) -> float:
    """Return the next moment on the grid; missed ones are skipped."""
    missed = max(int((now_s - due_s) // interval_s), 0)
    return due_s + (missed + 1) * interval_s
