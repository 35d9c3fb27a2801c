"""Energy metering of requests: the engine's thread counts tokens, and a second thread reads the meter."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from enginebay.contract.engine_messages import Done, Energy
from enginebay.meters.joule_counter import JouleCounter
from enginebay.meters.sample import Absent, Meter
from enginebay.worker.engine_side.energy_attribution import IDLE_LEARN_S, SETTLE_S, EnergyAttribution
from enginebay.worker.engine_side.output_queue import OutputQueue

POLL_INTERVAL_S = 0.05
UNUSED_TIMEOUT_S = 600.0  # metering stops if no request asks for energy for this long
_READING_TIMEOUT_S = 1.0  # a finished request waits this long for a reading
_SHARING_CHECK_INTERVAL_S = 2.0

METER_STARTING = "the meter is starting"
IDLE_POWER_UNKNOWN = (
    f"the idle power is not known yet: measuring it takes {SETTLE_S + IDLE_LEARN_S:g} s without requests after the first "
    "one that asks for energy"
)
COUNTER_STALLED = "the meter's counter has stalled"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PendingDone:
    """The `Done` of a request that waits for its energy."""

    queue: OutputQueue
    request: int  # the client's number
    done: Done
    on_sent: Callable[[], None]  # the request counts as running until then

    def send(self, energy: Energy) -> None:
        self.queue.put_done(self.request, replace(self.done, energy=energy))
        self.on_sent()


class Metering:
    """Created by the first request that asks for energy.

    `count_tokens`, `finish_request` and `end_step` are for the engine's threads, the rest for any thread.
    """

    def __init__(
        self,
        open_meter: Callable[[], Meter | Absent],
        idle_s: Callable[[], float],
        step_tokens: Callable[[], int | None] = lambda: None,
        idle_w: float | None = None,
        *,
        unused_timeout_s: float = UNUSED_TIMEOUT_S,
    ) -> None:
        self._open_meter = open_meter
        self._idle_s = idle_s
        self._step_tokens = step_tokens
        self._unused_timeout_s = unused_timeout_s
        self._attribution = EnergyAttribution(idle_w=idle_w)
        self._lock = threading.Lock()  # guards the attribution and the next four; not taken per token
        self._unanswered: set[int] = set()  # asked for energy, and not answered yet
        self._pending: dict[int, PendingDone] = {}
        self._shared = ("", float("-inf"))  # why the device was shared, and until when
        self._last_asked_s = time.monotonic()
        self.absent = METER_STARTING  # why there are no readings at all
        self._token_counts: deque[tuple[int, int]] = deque()  # (request, tokens) since the last step
        self._finished: deque[tuple[int, PendingDone | None]] = deque()
        self.stopped = False
        threading.Thread(target=self._run, name="joules", daemon=True).start()

    @property
    def idle_w(self) -> float | None:
        return self._attribution.idle_w

    def add_request(self, number: int, prompt_tokens: int, *, wants_energy: bool) -> bool:
        """Add a request. Return False if metering has stopped."""
        with self._lock:
            if not self.stopped:
                now = time.monotonic()
                self._last_asked_s = now if wants_energy else self._last_asked_s
                self._attribution.add_request(number, now, prompt_tokens)
                if wants_energy:
                    self._unanswered.add(number)
            return not self.stopped

    def drop_request(self, number: int) -> None:
        """Remove a request that was cancelled or failed."""
        with self._lock:
            self._attribution.drop_request(number)
            self._unanswered.discard(number)

    def count_tokens(self, number: int, tokens: int) -> None:
        """Count the tokens of a request in this step."""
        if not self.stopped:
            self._token_counts.append((number, tokens))

    def finish_request(self, number: int, pending: PendingDone | None = None) -> None:
        """Finish a request. `pending` is sent at the end of the step or after the next reading."""
        if pending is not None or not self.stopped:
            self._finished.append((number, pending))

    def end_step(self) -> None:
        """Attribute the energy of the step that ends now."""
        if self.stopped and not self._finished:
            return
        now = time.monotonic()
        with self._lock:
            tokens: dict[int, int] = {}
            while self._token_counts:
                number, count = self._token_counts.popleft()
                tokens[number] = tokens.get(number, 0) + count
            if self.absent:
                self._attribution.skip_step(now)
            else:
                self._attribution.record_step(now, tokens)
            while self._finished:
                self._attribute_request(*self._finished.popleft(), now)

    def _attribute_request(self, number: int, pending: PendingDone | None, now: float) -> None:
        absent = self._explain_absence(self._attribution.get_entered_s(number))
        if absent:
            self._attribution.drop_request(number)
            if pending is not None:
                self._send_energy(number, pending, Energy(None, self._attribution.idle_w, absent))
            return
        joules = self._attribution.finish_request(number, now)
        if joules is not None and pending is not None:
            self._send_energy(number, pending, self._build_energy(joules))
        elif joules is None and pending is not None:
            self._pending[number] = pending

    def _send_energy(self, number: int, pending: PendingDone, energy: Energy) -> None:
        pending.send(energy)
        self._unanswered.discard(number)

    def _build_energy(self, joules: float) -> Energy:
        return Energy(max(joules, 0.0), self._attribution.idle_w)

    def _explain_absence(self, entered_s: float | None) -> str:
        if self.absent:
            return self.absent
        if self._attribution.idle_w is None:
            return IDLE_POWER_UNKNOWN
        shared, until_s = self._shared
        return shared if entered_s is None or until_s >= entered_s else ""

    # Meter thread

    def _run(self) -> None:
        try:
            meter = self._open_meter()
            if isinstance(meter, Absent):
                self.absent = meter.reason
            else:
                with self._lock:
                    self._attribution.max_step_tokens = self._step_tokens()
                self._poll_meter(meter)
        except Exception as error:  # a broken meter must not delay responses
            _log.exception("the meter failed")
            self.absent = f"the meter failed: {type(error).__name__}: {error}"
        self._release_overdue(float("inf"), self.absent)
        while not self._stop_if_unused(_READING_TIMEOUT_S):  # the first request may not be added yet
            time.sleep(POLL_INTERVAL_S)

    def _poll_meter(self, meter: Meter) -> None:
        counter, last_j, check_s = JouleCounter(meter), -1.0, 0.0
        explain_sharing: Callable[[], str | None] | None = getattr(meter, "explain_sharing", None)
        self.absent = ""
        while not self._stop_if_unused(self._unused_timeout_s):
            reading = counter.read()
            if reading is not None and reading[1] != last_j:  # only changes carry information
                last_j = reading[1]
                self._apply_reading(*reading)
            now = time.monotonic()
            if explain_sharing is not None and now >= check_s:
                check_s = now + _SHARING_CHECK_INTERVAL_S
                self._update_sharing(explain_sharing(), now)
            self._release_overdue(
                float("inf") if self._drop_stale_steps(now) else now - _READING_TIMEOUT_S, COUNTER_STALLED
            )
            time.sleep(POLL_INTERVAL_S)
        meter.close()

    def _update_sharing(self, shared: str | None, now: float) -> None:
        if shared:
            self._shared = (shared, float("inf"))
        elif self._shared[1] > now:
            self._shared = (self._shared[0], now)

    def _drop_stale_steps(self, now: float) -> bool:
        """Drop steps that waited too long for a reading: the energy of running requests is then incomplete."""
        with self._lock:
            lost = self._attribution.drop_uncovered_steps(now - _READING_TIMEOUT_S)
            if lost and self._shared[1] < now:
                self._shared = (COUNTER_STALLED, now)
            return lost

    def _apply_reading(self, time_s: float, joules: float) -> None:
        with self._lock:
            known = self._attribution.record_reading(time_s, joules, self._idle_s())
            ready = {number: self._pending.pop(number) for number in known if number in self._pending}
            for number, pending in ready.items():
                self._send_energy(number, pending, self._build_energy(known[number]))
        for pending in ready.values():
            pending.queue.flush()

    def _release_overdue(self, before_s: float, absent: str) -> None:
        """Answer requests that have waited for a reading since before `before_s` without their energy."""
        with self._lock:
            released = []
            for number in self._attribution.list_overdue(before_s):
                self._attribution.drop_request(number)
                if number in self._pending:
                    released.append(self._pending.pop(number))
                    self._send_energy(number, released[-1], Energy(None, self._attribution.idle_w, absent))
        for pending in released:
            pending.queue.flush()

    def _stop_if_unused(self, unused_timeout_s: float) -> bool:
        """Stop metering once every request is answered and none has asked for energy for the timeout."""
        with self._lock:
            self.stopped = self.stopped or (
                not self._unanswered and time.monotonic() - self._last_asked_s > unused_timeout_s
            )
            return self.stopped
