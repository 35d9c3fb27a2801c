"""The drain gate: counts running requests, rejects new ones while closed, and waits until none is left."""

from __future__ import annotations

import threading
import time

from enginebay.errors import Draining


class DrainGate:
    """Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._open = True
        self._since = time.monotonic()  # the last change between idle and busy
        self.running = 0
        self.total_entered = 0

    @property
    def is_open(self) -> bool:
        return self._open

    def enter(self) -> None:
        """Count a new request. Raises `Draining` if the gate is closed."""
        with self._changed:
            if not self._open:
                raise Draining("this worker is draining", "retry the request")
            if not self.running:
                self._since = time.monotonic()
            self.running += 1
            self.total_entered += 1

    def leave(self) -> None:
        with self._changed:
            self.running -= 1
            if not self.running:
                self._since = time.monotonic()
                self._changed.notify_all()

    def close(self, timeout_s: float = 0.0) -> int:
        """Reject new requests and wait for the running ones. Return how many still run."""
        with self._changed:
            self._open = False
            self._changed.wait_for(lambda: not self.running, timeout_s)
            return self.running

    def open(self) -> None:
        with self._changed:
            self._open = True

    def measure_idle_s(self) -> float:
        with self._changed:
            return 0.0 if self.running else time.monotonic() - self._since

    def measure_busy_s(self) -> float:
        """Return the seconds since it was last empty."""
        with self._changed:
            return time.monotonic() - self._since if self.running else 0.0
