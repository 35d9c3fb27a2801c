"""Energy metering end to end: a request table, a meter and its thread."""

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
from enginebay.worker.engine_side.engine_meter import open_engine_meter
from enginebay.worker.engine_side.request_table import RequestTable

IDLE_W, BUSY_W = 100.0, 300.0


class Engine:
    """Ignores requests and provides a meter."""

    def __init__(self, meter: Meter | Absent | None = None, **effective: Any) -> None:
        self.own_meter = meter
        self.effective = effective

    def submit(self, number: int, request: GenerateRequest) -> None:
        pass

    def cancel(self, number: int) -> None:
        pass

    def meter(self) -> Meter | Absent | None:
        return self.own_meter

    def facts(self) -> Any:
        return SimpleNamespace(effective=self.effective, max_step_tokens=None)


class Switched:
    """The counter of a device that idles until it is switched on. It updates every `period_s` unless it is stuck."""

    name = "switched"

    def __init__(self) -> None:
        self._power_w = IDLE_W
        self.period_s = 0.0
        self.stuck = False
        self._last = (time.monotonic(), 0.0)
        self._lock = threading.Lock()

    def switch_on(self) -> None:
        self.read()  # idle until now
        self._power_w = BUSY_W

    def read(self) -> list[Sample]:
        with self._lock:
            now, (before, joules) = time.monotonic(), self._last
            if not self.stuck and now - before >= self.period_s:
                self._last = (now, joules + self._power_w * (now - before))
            return [Sample(now, "gpu:0", energy_j=self._last[1])]

    def close(self) -> None:
        pass


class Stream:
    """One stream that asks for energy."""

    def __init__(self, meter: Meter | Absent) -> None:
        self.requests = RequestTable(Engine(meter))  # type: ignore[arg-type]
        self.queue = self.requests.open_queue()
        self.number = 0

    def submit(self, *, energy: bool = True, prompt: int = 3) -> int:
        self.number += 1
        request = GenerateRequest(token_ids=(1,) * prompt, sampling=Sampling(), energy=energy)
        return self.requests.submit(self.number, self.queue, request)

    def run(self, *numbers: int, steps: int = 1, step_s: float = 0.02) -> None:
        for _ in range(steps):
            time.sleep(step_s)
            for number in numbers:
                self.requests.token(number, "x", (5,))
            self.requests.flush()

    def finish(self, *numbers: int) -> list[Any]:
        """Return the `Done` messages in order."""
        for number in numbers:
            self.requests.finish(number, FinishReason.LENGTH)
        self.requests.flush()
        return self.take_done(len(numbers))

    def take_done(self, count: int) -> list[Any]:
        done: list[Any] = []
        until(lambda: done.extend(flush.done if (flush := self.queue.take()) else ()) or len(done) >= count)
        return done

    def learn(self) -> None:
        """Run one request, then stay idle until the idle power is known."""
        number = self.submit()
        self.run(number)
        assert self.finish(number)[0].energy_absent in (metering.IDLE_POWER_UNKNOWN, metering.METER_STARTING)
        until(lambda: self.requests._metering is not None and self.requests._metering.idle_w is not None)

    def learn_alongside(self, other: int) -> None:
        """Run one request while another one runs: the idle power stays unknown."""
        number = self.submit()
        self.run(other, number)
        assert self.finish(number)[0].energy_absent in (metering.IDLE_POWER_UNKNOWN, metering.METER_STARTING)


def until(holds: Callable[[], Any], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.005)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "SETTLE_S", 0.1)
    monkeypatch.setattr(energy, "IDLE_LEARN_S", 0.2)


@pytest.fixture
def meter() -> Switched:
    return Switched()


def test_energy_is_reported_in_done_to_requests_that_ask(meter: Switched) -> None:
    stream = Stream(meter)
    stream.learn()
    began = time.monotonic()
    asks, does_not = stream.submit(prompt=5), stream.submit(energy=False, prompt=5)
    meter.switch_on()
    started = time.monotonic()
    stream.run(asks, does_not, steps=30)
    least_s = time.monotonic() - started
    one, other = sorted(stream.finish(asks, does_not), key=lambda done: int(done.request))
    most_s = time.monotonic() - began
    assert one.idle_w == pytest.approx(IDLE_W, rel=0.02)
    half_w = (BUSY_W - IDLE_W) / 2  # both have the same number of tokens
    assert 0.9 * half_w * least_s < one.energy_j < 1.1 * half_w * most_s
    assert not other.HasField("energy_j") and not other.HasField("energy_absent")
    assert stream.requests.gate.running == 0


def test_flushes_within_a_step_are_one_step(meter: Switched) -> None:
    stream = Stream(meter)
    stream.learn()
    meter.switch_on()
    early, late = stream.submit(prompt=5), stream.submit(prompt=5)
    for _ in range(12):
        stream.requests.token(early, "x", (5,))
        stream.requests.flush(ends_step=False)
        time.sleep(0.03)
        stream.requests.token(late, "x", (5,))
        stream.requests.flush()
    one, other = stream.finish(early, late)
    assert one.energy_j == pytest.approx(other.energy_j, rel=0.01)  # both have the same number of tokens


def test_a_short_request_waits_for_the_next_reading(meter: Switched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metering, "_READING_TIMEOUT_S", 60.0)
    stream = Stream(meter)
    stream.learn()
    meter.switch_on()
    meter.stuck = True
    number = stream.submit()
    stream.run(number, step_s=0.01)
    stream.requests.finish(number, FinishReason.STOP)
    stream.requests.flush()
    first = stream.queue.take()
    assert first is not None and first.finish and not first.done and stream.requests.gate.running == 1
    meter.stuck = False
    assert stream.take_done(1)[0].energy_j > 0
    assert stream.requests.gate.running == 0


def test_a_stalled_counter_delays_no_request(meter: Switched) -> None:
    stream = Stream(meter)
    stream.learn()
    meter.stuck = True
    time.sleep(0.1)
    number = stream.submit()
    stream.run(number)
    assert stream.finish(number)[0].energy_absent == metering.COUNTER_STALLED


def test_without_a_meter_the_reason_is_reported_and_metering_stops() -> None:
    stream = Stream(Absent("nvml", "there is no NVIDIA driver"))
    number = stream.submit()
    until(lambda: stream.requests._metering is not None and stream.requests._metering.absent != metering.METER_STARTING)
    stream.run(number)
    assert stream.finish(number)[0].energy_absent == "there is no NVIDIA driver"
    until(lambda: stream.requests._metering is not None and stream.requests._metering.stopped)
    number = stream.submit()
    assert stream.requests._metering is None
    stream.run(number)
    assert stream.finish(number)[0].energy_absent == "there is no NVIDIA driver"


def test_a_broken_meter_is_reported(meter: Switched) -> None:
    stream = Stream(meter)
    stream.learn()
    number = stream.submit()
    meter.read = lambda: 1 / 0  # type: ignore[assignment, return-value]
    until(lambda: stream.requests._metering is not None and stream.requests._metering.absent)
    stream.run(number)
    assert "ZeroDivisionError" in stream.finish(number)[0].energy_absent


def test_a_shared_device_has_no_energy_per_request(meter: Switched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metering, "_SHARING_CHECK_INTERVAL_S", 0.05)
    others: list[str | None] = [None]
    meter.explain_sharing = lambda: others[0]  # type: ignore[attr-defined]
    stream = Stream(meter)
    stream.learn()
    metered = stream.requests._metering
    assert metered is not None
    first, second = stream.submit(), stream.submit()
    others[0] = "process 7 also computes on gpu:0"
    until(lambda: stream.run(first, second) or metered._shared[0])
    assert stream.finish(first)[0].energy_absent == "process 7 also computes on gpu:0"
    others[0] = None
    until(lambda: stream.run(second) or metered._shared[1] < time.monotonic())
    third = stream.submit()
    stream.run(second, third, steps=10)
    two, three = stream.finish(second, third)
    assert two.energy_absent and three.HasField("energy_j")  # it arrived after the other process had left


def test_cancelled_and_failed_requests_are_dropped(meter: Switched) -> None:
    stream = Stream(meter)
    stream.learn()
    stream.submit()
    stream.requests.cancel(stream.queue, stream.number)
    failed = stream.submit()
    stream.requests.error(failed, EngineFailed("it broke"))
    assert stream.requests._metering is not None and stream.requests._metering._attribution.empty


def test_metering_stops_when_unused_and_keeps_the_idle_power(meter: Switched) -> None:
    stream = Stream(meter)
    stream.learn()
    before = stream.requests._metering
    assert before is not None
    before._unused_timeout_s = 0.1
    until(lambda: before.stopped)
    quiet = stream.submit(energy=False)
    assert stream.requests._metering is None
    stream.run(quiet)
    assert stream.finish(quiet)[0].completion_tokens == 1
    stream.run(stream.submit())
    after = stream.requests._metering
    assert after is not before and after is not None and after.idle_w == before.idle_w


def test_metering_stops_while_other_requests_run(meter: Switched) -> None:
    stream = Stream(meter)
    always = stream.submit(energy=False)
    stream.learn_alongside(always)
    before = stream.requests._metering
    assert before is not None
    before._unused_timeout_s = 0.1
    until(lambda: stream.run(always) or before.stopped)
    before._token_counts.clear()
    stream.run(always, steps=3)
    assert not before._token_counts  # tokens are no longer counted
    asks = stream.submit()
    assert stream.requests._metering not in (None, before)
    stream.run(always, asks, steps=3)
    assert {done.request for done in stream.finish(always, asks)} == {1, 3}
    assert stream.requests.gate.running == 0 and not before._finished


def test_metering_does_not_stop_before_requests_are_answered(meter: Switched) -> None:
    stream = Stream(meter)
    stream.learn()
    number = stream.submit()
    metered = stream.requests._metering
    assert metered is not None
    metered._unused_timeout_s = 0.0
    stream.run(number, steps=10)
    assert not metered.stopped
    assert stream.finish(number)[0].HasField("energy_j")
    until(lambda: metered.stopped)


def test_uncovered_steps_are_dropped(meter: Switched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metering, "_READING_TIMEOUT_S", 0.2)
    stream = Stream(meter)
    stream.learn()
    metered = stream.requests._metering
    assert metered is not None
    meter.stuck = True
    number = stream.submit()
    steps = itertools.count()
    until(lambda: stream.run(number) or (next(steps) and metered._shared[0]))
    assert len(metered._attribution._steps) < next(steps)
    meter.stuck = False
    stream.run(number, steps=10)
    later = stream.submit()
    stream.run(number, later, steps=10)
    stood, moved = stream.finish(number, later)
    assert stood.energy_absent == metering.COUNTER_STALLED and moved.HasField("energy_j")


def test_a_broken_meter_drops_all_steps(meter: Switched) -> None:
    stream = Stream(meter)
    stream.learn()
    number, metered = stream.submit(), stream.requests._metering
    assert metered is not None
    meter.read = lambda: 1 / 0  # type: ignore[assignment, return-value]
    until(lambda: metered.absent)
    stream.run(number, steps=3)
    assert not metered._attribution._steps and not metered.stopped


def test_without_energy_requests_there_is_no_metering(meter: Switched) -> None:
    stream = Stream(meter)
    number = stream.submit(energy=False)
    stream.run(number)
    assert stream.requests._metering is None
    assert not stream.finish(number)[0].HasField("energy_absent")


def test_the_engines_own_meter_comes_first() -> None:
    own = Absent("openai", "the model runs elsewhere")
    assert open_engine_meter(Engine(own)) is own  # type: ignore[arg-type]


def test_without_a_gpu_the_cpu_is_metered(meter: Switched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_meter, "open_rapl", lambda: (meter, []))
    monkeypatch.setattr(
        engine_meter, "open_engine_gpu_meter", lambda list_pids, visible_devices, order, placed: Absent("nvml", "asked")
    )
    monkeypatch.setattr(engine_meter, "uses_cuda", lambda pids: False)
    assert open_engine_meter(Engine()) is meter  # type: ignore[arg-type]
    assert open_engine_meter(Engine(device="cuda:0")) == Absent("nvml", "asked")  # type: ignore[arg-type]
    monkeypatch.setattr(engine_meter, "uses_cuda", lambda pids: True)
    assert open_engine_meter(Engine()) == Absent("nvml", "asked")  # type: ignore[arg-type]
    assert open_engine_meter(Engine(device="cpu")) is meter  # type: ignore[arg-type]
    monkeypatch.setattr(engine_meter, "open_rapl", lambda: (None, [Absent("rapl", "root only")]))
    assert open_engine_meter(Engine(device="cpu")) == Absent("rapl", "root only")  # type: ignore[arg-type]
