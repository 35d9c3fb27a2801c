"""Joules for the requests that ask for them: what the engine's thread counts, and a thread that reads the meter."""

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
UNUSED_TIMEOUT_S = 600.0  # nobody has asked for so long: no more is counted or read
_READING_TIMEOUT_S = 1.0  # for a reading, when a request has ended
_SHARING_CHECK_INTERVAL_S = 2.0  # between two looks at who else is on the device

METER_STARTING = "the meter has just been asked for the first time"
IDLE_POWER_UNKNOWN = (
    f"the idle power is not known yet: it is learned in {SETTLE_S + IDLE_LEARN_S:g} s without requests after the first one "
    "that asks for energy"
)
COUNTER_STALLED = "the meter's counter stands still"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PendingDone:
    """The last word on a request, which waits for its joules."""

    queue: OutputQueue
    request: int  # as its session knows it
    done: Done
    on_sent: Callable[[], None]  # it is in the house until it is told

    def send(self, energy: Energy) -> None:
        self.queue.put_done(self.request, replace(self.done, energy=energy))
        self.on_sent()


class Metering:
    """Exists from the first request that asks on. `count`, `end` and `flush` are for the engine's threads, the rest for any."""

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
        self._lock = threading.Lock()  # over the book and the four below; a token does not take it
        self._unanswered: set[int] = set()  # they want to know, and have not been told
        self._pending: dict[int, PendingDone] = {}
        self._shared = ("", float("-inf"))  # why the joules were not ours alone, and until when
        self._last_asked_s = time.monotonic()
        self.absent = METER_STARTING  # why nothing can be told at all
        self._token_counts: deque[tuple[int, int]] = deque()  # request, tokens: since the last flush
        self._finished: deque[tuple[int, PendingDone | None]] = deque()
        self.stopped = False  # it counts no more
        threading.Thread(target=self._run, name="joules", daemon=True).start()

    @property
    def idle_w(self) -> float | None:
        return self._attribution.idle_w

    def add_request(self, number: int, prompt_tokens: int, *, wants_energy: bool) -> bool:
        """A request came. False: nothing is counted any more."""
        with self._lock:
            if not self.stopped:
                now = time.monotonic()
                self._last_asked_s = now if wants_energy else self._last_asked_s
                self._attribution.add_request(number, now, prompt_tokens)
                if wants_energy:
                    self._unanswered.add(number)
            return not self.stopped

    def drop_request(self, number: int) -> None:
        """It was cancelled or has failed."""
        with self._lock:
            self._attribution.drop_request(number)
            self._unanswered.discard(number)

    def count_tokens(self, number: int, tokens: int) -> None:
        """Tokens that a request had in this step."""
        if not self.stopped:
            self._token_counts.append((number, tokens))

    def finish_request(self, number: int, pending: PendingDone | None = None) -> None:
        """It is over. Whoever asked is told at the next flush, when the step has ended, too."""
        if pending is not None or not self.stopped:
            self._finished.append((number, pending))

    def end_step(self) -> None:
        """A step has ended."""
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

    # The meter's thread

    def _run(self) -> None:
        try:
            meter = self._open_meter()
            if isinstance(meter, Absent):
                self.absent = meter.reason
            else:
                with self._lock:
                    self._attribution.max_step_tokens = self._step_tokens()
                self._poll_meter(meter)
        except Exception as error:  # a meter must not keep answers waiting
            _log.exception("the meter failed")
            self.absent = f"the meter failed: {type(error).__name__}: {error}"
        self._release_overdue(float("inf"), self.absent)
        while not self._stop_if_unused(_READING_TIMEOUT_S):  # whoever asked first has yet to enter
            time.sleep(POLL_INTERVAL_S)

    def _poll_meter(self, meter: Meter) -> None:
        joules, last_j, look_s = JouleCounter(meter), -1.0, 0.0
        shared: Callable[[], str | None] | None = getattr(meter, "shared", None)
        self.absent = ""
        while not self._stop_if_unused(self._unused_timeout_s):
            reading = joules.read()
            if reading is not None and reading[1] != last_j:  # a counter is only worth reading where it has moved
                last_j = reading[1]
                self._apply_reading(*reading)
            now = time.monotonic()
            if shared is not None and now >= look_s:
                look_s = now + _SHARING_CHECK_INTERVAL_S
                self._update_sharing(shared(), now)
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
        """No reading came for too long: whoever is here cannot be told all that was used."""
        with self._lock:
            lost = self._attribution.drop_uncovered_steps(now - _READING_TIMEOUT_S)
            if lost and self._shared[1] < now:
                self._shared = (COUNTER_STALLED, now)
            return lost

    def _apply_reading(self, time_s: float, joules: float) -> None:
        with self._lock:
            known = self._attribution.record_reading(time_s, joules, self._idle_s())
            told = {number: self._pending.pop(number) for number in known if number in self._pending}
            for number, answer in told.items():
                self._send_energy(number, answer, self._build_energy(known[number]))
        for answer in told.values():
            answer.queue.flush()

    def _release_overdue(self, before_s: float, absent: str) -> None:
        """Who has waited for a reading since then is told that there is none."""
        with self._lock:
            told = []
            for number in self._attribution.list_overdue(before_s):
                self._attribution.drop_request(number)
                if number in self._pending:
                    told.append(self._pending.pop(number))
                    self._send_energy(number, told[-1], Energy(None, self._attribution.idle_w, absent))
        for answer in told:
            answer.queue.flush()

    def _stop_if_unused(self, unused_timeout_s: float) -> bool:
        """Count no more, once all who asked were told and nobody has asked for so long."""
        with self._lock:
            self.stopped = self.stopped or (
                not self._unanswered and time.monotonic() - self._last_asked_s > unused_timeout_s
            )
            return self.stopped
