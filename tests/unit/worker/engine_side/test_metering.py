"""Joules from a meter to the answers, with a ledger and the meter's own thread."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from enginebay.contract import FinishReason, GenerateRequest, Sampling
from enginebay.errors import EngineFailed
from enginebay.meters.sample import Absent, Meter, Sample
from enginebay.worker.engine_side import energy_attribution as energy
from enginebay.worker.engine_side import engine_meter, metering
from enginebay.worker.engine_side.engine_meter import open_engine_meter, read_max_step_tokens
from enginebay.worker.engine_side.request_table import RequestTable

IDLE_W, BUSY_W = 100.0, 300.0


class Engine:
    """Is told of requests, and says how it is metered."""

    def __init__(self, meter: Meter | Absent | None = None, **effective: Any) -> None:
        self.found = meter
        self.effective = effective

    def submit(self, number: int, request: GenerateRequest) -> None:
        pass

    def cancel(self, number: int) -> None:
        pass

    def meter(self) -> Meter | Absent | None:
        return self.found

    def facts(self) -> Any:
        return SimpleNamespace(effective=self.effective)


class Switched:
    """A counter of a device that is idle until it is switched on; it is updated every `period_s`, unless it is stuck."""

    name = "switched"

    def __init__(self) -> None:
        self._power_w = IDLE_W
        self.period_s = 0.0
        self.stuck = False
        self._last = (time.monotonic(), 0.0)
        self._lock = threading.Lock()

    def switch_on(self) -> None:
        self.read()  # up to now it was idle
        self._power_w = BUSY_W

    def read(self) -> list[Sample]:
        with self._lock:
            now, (before, joules) = time.monotonic(), self._last
            if not self.stuck and now - before >= self.period_s:
                self._last = (now, joules + self._power_w * (now - before))
            return [Sample(now, "gpu:0", energy_j=self._last[1])]

    def close(self) -> None:
        pass


class Talk:
    """One session that asks for joules."""

    def __init__(self, meter: Meter | Absent) -> None:
        self.ledger = RequestTable(Engine(meter))  # type: ignore[arg-type]
        self.outbox = self.ledger.open_queue()
        self.number = 0

    def submit(self, *, energy: bool = True, prompt: int = 3) -> int:
        self.number += 1
        request = GenerateRequest(token_ids=(1,) * prompt, sampling=Sampling(), energy=energy)
        return self.ledger.submit(self.number, self.outbox, request)

    def run(self, *numbers: int, steps: int = 1, step_s: float = 0.02) -> None:
        for _ in range(steps):
            time.sleep(step_s)
            for number in numbers:
                self.ledger.token(number, "x", (5,))
            self.ledger.flush()

    def finish(self, *numbers: int) -> list[Any]:
        """The last words, in their order."""
        for number in numbers:
            self.ledger.finish(number, FinishReason.LENGTH)
        self.ledger.flush()
        return self.words(len(numbers))

    def words(self, count: int) -> list[Any]:
        found: list[Any] = []
        until(lambda: found.extend(flush.done if (flush := self.outbox.take()) else ()) or len(found) >= count)
        return found

    def learn(self) -> None:
        """Ask once, and be quiet until the idle power is known."""
        number = self.submit()
        self.run(number)
        assert self.finish(number)[0].energy_absent in (metering.IDLE_POWER_UNKNOWN, metering.METER_STARTING)
        until(lambda: self.ledger._metering is not None and self.ledger._metering.idle_w is not None)

    def learn_beside(self, other: int) -> None:
        """Ask once while another one runs: the idle power stays unknown."""
        number = self.submit()
        self.run(other, number)
        assert self.finish(number)[0].energy_absent in (metering.IDLE_POWER_UNKNOWN, metering.METER_STARTING)


def until(holds: Callable[[], Any], patience_s: float = 20.0) -> None:
    deadline = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.005)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "SETTLE_S", 0.1)
    monkeypatch.setattr(energy, "IDLE_LEARN_S", 0.2)


@pytest.fixture
def meter() -> Switched:
    return Switched()


def test_joules_come_with_the_last_word_to_whoever_asks(meter: Switched) -> None:
    talk = Talk(meter)
    talk.learn()
    began = time.monotonic()
    asks, does_not = talk.submit(prompt=5), talk.submit(energy=False, prompt=5)
    meter.switch_on()
    started = time.monotonic()
    talk.run(asks, does_not, steps=30)
    least_s = time.monotonic() - started
    one, other = sorted(talk.finish(asks, does_not), key=lambda done: int(done.request))
    most_s = time.monotonic() - began
    assert one.idle_w == pytest.approx(IDLE_W, rel=0.02)
    half_w = (BUSY_W - IDLE_W) / 2  # the other one had as many tokens
    assert 0.9 * half_w * least_s < one.energy_j < 1.1 * half_w * most_s
    assert not other.HasField("energy_j") and not other.HasField("energy_absent")
    assert talk.ledger.gate.running == 0


def test_a_step_whose_first_tokens_leave_early_is_one_step(meter: Switched) -> None:
    talk = Talk(meter)
    talk.learn()
    meter.switch_on()
    early, late = talk.submit(prompt=5), talk.submit(prompt=5)
    for _ in range(12):
        talk.ledger.token(early, "x", (5,))
        talk.ledger.flush(ends_step=False)
        time.sleep(0.03)
        talk.ledger.token(late, "x", (5,))
        talk.ledger.flush()
    one, other = talk.finish(early, late)
    assert one.energy_j == pytest.approx(other.energy_j, rel=0.01)  # they had as many tokens


def test_a_short_one_is_told_after_the_next_reading_and_leaves_then(
    meter: Switched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metering, "_READING_TIMEOUT_S", 60.0)
    talk = Talk(meter)
    talk.learn()
    meter.switch_on()
    meter.stuck = True
    number = talk.submit()
    talk.run(number, step_s=0.01)
    talk.ledger.finish(number, FinishReason.STOP)
    talk.ledger.flush()
    first = talk.outbox.take()
    assert first is not None and first.finish and not first.done and talk.ledger.gate.running == 1
    meter.stuck = False
    assert talk.words(1)[0].energy_j > 0
    assert talk.ledger.gate.running == 0


def test_a_counter_that_stands_still_keeps_nobody_waiting(meter: Switched) -> None:
    talk = Talk(meter)
    talk.learn()
    meter.stuck = True
    time.sleep(0.1)
    number = talk.submit()
    talk.run(number)
    assert talk.finish(number)[0].energy_absent == metering.COUNTER_STALLED


def test_without_a_meter_the_reason_is_told_and_nothing_is_counted_any_more() -> None:
    talk = Talk(Absent("nvml", "there is no NVIDIA driver"))
    number = talk.submit()
    until(lambda: talk.ledger._metering is not None and talk.ledger._metering.absent != metering.METER_STARTING)
    talk.run(number)
    assert talk.finish(number)[0].energy_absent == "there is no NVIDIA driver"
    until(lambda: talk.ledger._metering is not None and talk.ledger._metering.stopped)
    number = talk.submit()
    assert talk.ledger._metering is None
    talk.run(number)
    assert talk.finish(number)[0].energy_absent == "there is no NVIDIA driver"


def test_a_meter_that_breaks_is_the_reason(meter: Switched) -> None:
    talk = Talk(meter)
    talk.learn()
    number = talk.submit()
    meter.read = lambda: 1 / 0  # type: ignore[assignment, return-value]
    until(lambda: talk.ledger._metering is not None and talk.ledger._metering.absent)
    talk.run(number)
    assert "ZeroDivisionError" in talk.finish(number)[0].energy_absent


def test_whoever_shares_the_device_cannot_be_told_apart(meter: Switched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metering, "_SHARING_CHECK_INTERVAL_S", 0.05)
    others: list[str | None] = [None]
    meter.shared = lambda: others[0]  # type: ignore[attr-defined]
    talk = Talk(meter)
    talk.learn()
    metered = talk.ledger._metering
    assert metered is not None
    first, second = talk.submit(), talk.submit()
    others[0] = "process 7 computes on gpu:0 too"
    until(lambda: talk.run(first, second) or metered._shared[0])
    assert talk.finish(first)[0].energy_absent == "process 7 computes on gpu:0 too"
    others[0] = None
    until(lambda: talk.run(second) or metered._shared[1] < time.monotonic())
    third = talk.submit()
    talk.run(second, third, steps=10)
    two, three = talk.finish(second, third)
    assert two.energy_absent and three.HasField("energy_j")  # who came after the other process had gone


def test_who_was_cancelled_or_failed_is_out_of_the_book(meter: Switched) -> None:
    talk = Talk(meter)
    talk.learn()
    talk.submit()
    talk.ledger.cancel(talk.outbox, talk.number)
    failed = talk.submit()
    talk.ledger.error(failed, EngineFailed("it broke"))
    assert talk.ledger._metering is not None and talk.ledger._metering._attribution.empty


def test_it_rests_when_nobody_asks_and_knows_the_idle_power_when_somebody_does(meter: Switched) -> None:
    talk = Talk(meter)
    talk.learn()
    before = talk.ledger._metering
    assert before is not None
    before._unused_timeout_s = 0.1
    until(lambda: before.stopped)
    quiet = talk.submit(energy=False)
    assert talk.ledger._metering is None
    talk.run(quiet)
    assert talk.finish(quiet)[0].completion_tokens == 1
    talk.run(talk.submit())
    after = talk.ledger._metering
    assert after is not before and after is not None and after.idle_w == before.idle_w


def test_one_who_asked_does_not_make_the_others_pay_for_ever(meter: Switched) -> None:
    talk = Talk(meter)
    always = talk.submit(energy=False)
    talk.learn_beside(always)
    before = talk.ledger._metering
    assert before is not None
    before._unused_timeout_s = 0.1
    until(lambda: talk.run(always) or before.stopped)
    before._token_counts.clear()
    talk.run(always, steps=3)
    assert not before._token_counts  # a token costs nothing any more
    asks = talk.submit()
    assert talk.ledger._metering not in (None, before)
    talk.run(always, asks, steps=3)
    assert {done.request for done in talk.finish(always, asks)} == {1, 3}
    assert talk.ledger.gate.running == 0 and not before._finished


def test_whoever_asked_is_waited_for(meter: Switched) -> None:
    talk = Talk(meter)
    talk.learn()
    number = talk.submit()
    metered = talk.ledger._metering
    assert metered is not None
    metered._unused_timeout_s = 0.0
    talk.run(number, steps=10)
    assert not metered.stopped
    assert talk.finish(number)[0].HasField("energy_j")
    until(lambda: metered.stopped)


def test_steps_that_no_reading_will_cover_are_not_kept(meter: Switched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metering, "_READING_TIMEOUT_S", 0.2)
    talk = Talk(meter)
    talk.learn()
    metered = talk.ledger._metering
    assert metered is not None
    meter.stuck = True
    number = talk.submit()
    steps = itertools.count()
    until(lambda: talk.run(number) or (next(steps) and metered._shared[0]))
    assert len(metered._attribution._steps) < next(steps)
    meter.stuck = False
    talk.run(number, steps=10)
    later = talk.submit()
    talk.run(number, later, steps=10)
    stood, moved = talk.finish(number, later)
    assert stood.energy_absent == metering.COUNTER_STALLED and moved.HasField("energy_j")


def test_a_meter_that_broke_leaves_nothing_to_keep(meter: Switched) -> None:
    talk = Talk(meter)
    talk.learn()
    number, metered = talk.submit(), talk.ledger._metering
    assert metered is not None
    meter.read = lambda: 1 / 0  # type: ignore[assignment, return-value]
    until(lambda: metered.absent)
    talk.run(number, steps=3)
    assert not metered._attribution._steps and not metered.stopped


def test_before_anybody_asks_there_is_no_metering(meter: Switched) -> None:
    talk = Talk(meter)
    number = talk.submit(energy=False)
    talk.run(number)
    assert talk.ledger._metering is None
    assert not talk.finish(number)[0].HasField("energy_absent")


def test_an_engine_knows_its_meter_best() -> None:
    own = Absent("openai", "the model runs elsewhere")
    assert open_engine_meter(Engine(own)) is own  # type: ignore[arg-type]


def test_without_a_gpu_the_processors_are_read(meter: Switched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_meter, "open_rapl", lambda: (meter, []))
    monkeypatch.setattr(
        engine_meter, "open_engine_gpu_meter", lambda family, environment, order: Absent("nvml", "asked")
    )
    monkeypatch.setattr(engine_meter, "uses_cuda", lambda pids: False)
    assert open_engine_meter(Engine()) is meter  # type: ignore[arg-type]
    assert open_engine_meter(Engine(device="cuda:0")) == Absent("nvml", "asked")  # type: ignore[arg-type]
    monkeypatch.setattr(engine_meter, "uses_cuda", lambda pids: True)
    assert open_engine_meter(Engine()) == Absent("nvml", "asked")  # type: ignore[arg-type]
    assert open_engine_meter(Engine(device="cpu")) is meter  # type: ignore[arg-type]
    monkeypatch.setattr(engine_meter, "open_rapl", lambda: (None, [Absent("rapl", "root only")]))
    assert open_engine_meter(Engine(device="cpu")) == Absent("rapl", "root only")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("effective", "found"),
    [
        ({"max_num_batched_tokens": 8192}, 8192),
        ({"batching.max_tokens_per_batch": None, "batch_size": 512}, 512),
        ({"step_s": 1}, None),
    ],
)
def test_engines_tell_what_a_step_takes(effective: dict[str, Any], found: int | None) -> None:
    assert read_max_step_tokens(Engine(**effective)) == found  # type: ignore[arg-type]
