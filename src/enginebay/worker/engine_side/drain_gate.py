"""Who is in: requests that a worker has taken and not finished. Closed, it lets nobody in, and tells when it is empty."""

from __future__ import annotations

import threading
import time

from enginebay.errors import Draining


class DrainGate:
    """Any thread may use it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._open = True
        self._since = time.monotonic()  # of the last one to come into an empty house, or to leave one
        self.running = 0
        self.total_entered = 0

    @property
    def is_open(self) -> bool:
        return self._open

    def enter(self) -> None:
        """Raises `Draining` when it is closed."""
        with self._changed:
            if not self._open:
                raise Draining("this worker takes no more requests", "send the request again")
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
        """Let nobody in, and wait so long for those who are. Gives back how many are left."""
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
        """Since it was last empty."""
        with self._changed:
            return time.monotonic() - self._since if self.running else 0.0
