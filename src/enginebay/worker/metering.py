"""Joules for the requests that ask for them: what the engine's thread counts, and a thread that reads the meter."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from enginebay.contract.messages import Done, Energy
from enginebay.meters.joules import Joules
from enginebay.meters.sample import Absent, Meter
from enginebay.worker.energy import LEARN_S, SETTLE_S, EnergyBook
from enginebay.worker.outbox import Outbox

INTERVAL_S = 0.05
KEEP_S = 600.0  # nobody has asked for so long: no more is counted or read
_PATIENCE_S = 1.0  # for a reading, when a request has ended
_LOOK_S = 2.0  # between two looks at who else is on the device

STARTING = "the meter has just been asked for the first time"
IDLE_UNKNOWN = (
    f"the idle power is not known yet: it is learned in {SETTLE_S + LEARN_S:g} s without requests after the first one "
    "that asks for energy"
)
STILL = "the meter's counter stands still"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Answer:
    """The last word on a request, which waits for its joules."""

    outbox: Outbox
    request: int  # as its session knows it
    done: Done
    leave: Callable[[], None]  # it is in the house until it is told

    def tell(self, energy: Energy) -> None:
        self.outbox.done(self.request, replace(self.done, energy=energy))
        self.leave()


class Metering:
    """Exists from the first request that asks on. `count`, `end` and `flush` are for the engine's threads, the rest for any."""

    def __init__(
        self,
        find: Callable[[], Meter | Absent],
        idle_s: Callable[[], float],
        step_tokens: Callable[[], int | None] = lambda: None,
        idle_w: float | None = None,
        *,
        keep_s: float = KEEP_S,
    ) -> None:
        self._find = find
        self._idle_s = idle_s
        self._step_tokens = step_tokens
        self._keep_s = keep_s
        self._book = EnergyBook(idle_w=idle_w)
        self._lock = threading.Lock()  # over the book and the four below; a token does not take it
        self._asking: set[int] = set()  # they want to know, and have not been told
        self._late: dict[int, Answer] = {}
        self._shared = ("", float("-inf"))  # why the joules were not ours alone, and until when
        self._asked_s = time.monotonic()
        self.absent = STARTING  # why nothing can be told at all
        self._made: deque[tuple[int, int]] = deque()  # request, tokens: since the last flush
        self._ended: deque[tuple[int, Answer | None]] = deque()
        self.over = False  # it counts no more
        threading.Thread(target=self._run, name="joules", daemon=True).start()

    @property
    def idle_w(self) -> float | None:
        return self._book.idle_w

    def enter(self, number: int, prompt_tokens: int, *, asks: bool) -> bool:
        """A request came. False: nothing is counted any more."""
        with self._lock:
            if not self.over:
                now = time.monotonic()
                self._asked_s = now if asks else self._asked_s
                self._book.enter(number, now, prompt_tokens)
                if asks:
                    self._asking.add(number)
            return not self.over

    def drop(self, number: int) -> None:
        """It was cancelled or has failed."""
        with self._lock:
            self._book.forget(number)
            self._asking.discard(number)

    def count(self, number: int, tokens: int) -> None:
        """Tokens that a request had in this step."""
        if not self.over:
            self._made.append((number, tokens))

    def end(self, number: int, answer: Answer | None = None) -> None:
        """It is over. Whoever asked is told at the next flush, when the step has ended, too."""
        if answer is not None or not self.over:
            self._ended.append((number, answer))

    def flush(self) -> None:
        """A step has ended."""
        if self.over and not self._ended:
            return
        now = time.monotonic()
        with self._lock:
            tokens: dict[int, int] = {}
            while self._made:
                number, count = self._made.popleft()
                tokens[number] = tokens.get(number, 0) + count
            if self.absent:
                self._book.skip(now)
            else:
                self._book.step(now, tokens)
            while self._ended:
                self._leave(*self._ended.popleft(), now)

    def _leave(self, number: int, answer: Answer | None, now: float) -> None:
        absent = self._why_absent(self._book.entered_s(number))
        if absent:
            self._book.forget(number)
            if answer is not None:
                self._tell(number, answer, Energy(None, self._book.idle_w, absent))
            return
        joules = self._book.leave(number, now)
        if joules is not None and answer is not None:
            self._tell(number, answer, self._energy(joules))
        elif joules is None and answer is not None:
            self._late[number] = answer

    def _tell(self, number: int, answer: Answer, energy: Energy) -> None:
        answer.tell(energy)
        self._asking.discard(number)

    def _energy(self, joules: float) -> Energy:
        return Energy(max(joules, 0.0), self._book.idle_w)

    def _why_absent(self, entered_s: float | None) -> str:
        if self.absent:
            return self.absent
        if self._book.idle_w is None:
            return IDLE_UNKNOWN
        shared, until_s = self._shared
        return shared if entered_s is None or until_s >= entered_s else ""

    # The meter's thread

    def _run(self) -> None:
        try:
            meter = self._find()
            if isinstance(meter, Absent):
                self.absent = meter.reason
            else:
                with self._lock:
                    self._book.step_tokens = self._step_tokens()
                self._watch(meter)
        except Exception as error:  # a meter must not keep answers waiting
            _log.exception("the meter failed")
            self.absent = f"the meter failed: {type(error).__name__}: {error}"
        self._release(float("inf"), self.absent)
        while not self._rest(_PATIENCE_S):  # whoever asked first has yet to enter
            time.sleep(INTERVAL_S)

    def _watch(self, meter: Meter) -> None:
        joules, last_j, look_s = Joules(meter), -1.0, 0.0
        shared: Callable[[], str | None] | None = getattr(meter, "shared", None)
        self.absent = ""
        while not self._rest(self._keep_s):
            reading = joules.read()
            if reading is not None and reading[1] != last_j:  # a counter is only worth reading where it has moved
                last_j = reading[1]
                self._take(*reading)
            now = time.monotonic()
            if shared is not None and now >= look_s:
                look_s = now + _LOOK_S
                self._look(shared(), now)
            self._release(float("inf") if self._gives_up(now) else now - _PATIENCE_S, STILL)
            time.sleep(INTERVAL_S)
        meter.close()

    def _look(self, shared: str | None, now: float) -> None:
        if shared:
            self._shared = (shared, float("inf"))
        elif self._shared[1] > now:
            self._shared = (self._shared[0], now)

    def _gives_up(self, now: float) -> bool:
        """No reading came for too long: whoever is here cannot be told all that was used."""
        with self._lock:
            lost = self._book.give_up(now - _PATIENCE_S)
            if lost and self._shared[1] < now:
                self._shared = (STILL, now)
            return lost

    def _take(self, time_s: float, joules: float) -> None:
        with self._lock:
            known = self._book.read(time_s, joules, self._idle_s())
            told = {number: self._late.pop(number) for number in known if number in self._late}
            for number, answer in told.items():
                self._tell(number, answer, self._energy(known[number]))
        for answer in told.values():
            answer.outbox.wake()

    def _release(self, before_s: float, absent: str) -> None:
        """Who has waited for a reading since then is told that there is none."""
        with self._lock:
            told = []
            for number in self._book.late(before_s):
                self._book.forget(number)
                if number in self._late:
                    told.append(self._late.pop(number))
                    self._tell(number, told[-1], Energy(None, self._book.idle_w, absent))
        for answer in told:
            answer.outbox.wake()

    def _rest(self, keep_s: float) -> bool:
        """Count no more, once all who asked were told and nobody has asked for so long."""
        with self._lock:
            self.over = self.over or (not self._asking and time.monotonic() - self._asked_s > keep_s)
            return self.over
