"""Energy attribution over known power traces."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.worker.engine_side.energy_attribution import IDLE_LEARN_S, SETTLE_S, EnergyAttribution
from tests.unit.meters.replay_meter import PowerTrace

IDLE_W = 100.0
FULL_S = 0.05


@dataclass
class Played:
    """Feeds the attribution with the counter of a known trace at regular intervals."""

    trace: PowerTrace
    attribution: EnergyAttribution = field(default_factory=lambda: EnergyAttribution(idle_w=IDLE_W))
    interval_s: float = FULL_S
    joules: dict[int, float] = field(default_factory=dict)
    _read_s: float = 0.0

    def __post_init__(self) -> None:
        self.read(0.0)

    def read(self, time_s: float, idle_s: float = 0.0) -> None:
        self._read_s = time_s
        self.joules |= self.attribution.record_reading(time_s, self.trace.energy_j(0.0, time_s), idle_s)

    def until(self, time_s: float, idle_since_s: float | None = None) -> None:
        """Take all readings up to then."""
        while self._read_s + self.interval_s <= time_s + 1e-9:
            at = self._read_s + self.interval_s
            self.read(at, 0.0 if idle_since_s is None else at - idle_since_s)

    def step(self, time_s: float, **tokens: int) -> None:
        self.until(time_s)
        self.attribution.record_step(time_s, {number(name): count for name, count in tokens.items()})

    def leave(self, time_s: float, *names: str) -> None:
        for name in names:
            joules = self.attribution.finish_request(number(name), time_s)
            if joules is not None:
                self.joules[number(name)] = joules

    def of(self, name: str) -> float:
        return self.joules[number(name)]


def number(name: str) -> int:
    return ord(name)


def steady(watts: float) -> PowerTrace:
    return PowerTrace(((0.0, watts),))


def test_one_request_gets_everything_above_idle() -> None:
    played = Played(steady(350.0))
    played.attribution.add_request(number("a"), 0.0)
    for at in range(1, 102):
        played.step(at * 0.01, a=1)
    played.leave(1.01, "a")  # the last reading was at 1.00
    assert played.of("a") == pytest.approx(250.0 * 1.01)


def test_a_step_is_divided_by_the_tokens_in_it() -> None:
    played = Played(PowerTrace(((0.0, 600.0), (0.5, 200.0))))
    for name in "ab":
        played.attribution.add_request(number(name), 0.0)
    played.step(0.5, a=512, b=128)  # prompts
    played.step(0.7, a=1, b=1)
    played.step(0.9, b=1)
    played.until(1.0)
    played.leave(1.0, "a", "b")
    assert played.of("a") == pytest.approx(500 * 0.5 * 0.8 + 100 * 0.2 / 2)
    assert played.of("b") == pytest.approx(500 * 0.5 * 0.2 + 100 * 0.2 / 2 + 100 * 0.2)


def test_time_before_the_first_token_counts_for_running_requests() -> None:
    played = Played(steady(300.0))
    played.attribution.add_request(number("a"), 0.2)
    played.step(0.4, a=10)
    played.attribution.add_request(number("b"), 0.5)
    played.step(0.6, a=1, b=9)
    played.until(0.8)
    played.leave(0.6, "a", "b")
    assert played.of("a") == pytest.approx(200 * (0.2 + 0.02))
    assert played.of("b") == pytest.approx(200 * 0.18)


def test_energy_of_a_half_idle_reading_counts_for_its_busy_half() -> None:
    played = Played(PowerTrace(((0.0, IDLE_W), (0.13, 400.0), (0.22, IDLE_W))), interval_s=0.1)
    played.attribution.add_request(number("a"), 0.13)
    played.step(0.22, a=1)
    played.leave(0.22, "a")  # waits: only the reading at 0.2 is there
    played.until(0.4, idle_since_s=0.22)
    assert played.of("a") == pytest.approx(300 * 0.09)


def test_a_barely_covered_request_waits_for_the_next_reading() -> None:
    played = Played(PowerTrace(((0.0, 300.0), (0.06, IDLE_W), (0.07, 300.0), (0.09, IDLE_W))))
    played.attribution.add_request(number("a"), 0.0)
    played.step(0.06, a=1)
    played.leave(0.06, "a")
    played.attribution.add_request(number("b"), 0.07)
    played.step(0.09, b=1)
    assert played.attribution.finish_request(number("b"), 0.09) is None
    assert (
        not played.attribution.empty
        and played.attribution.list_overdue(0.1) == [number("b")]
        and not played.attribution.list_overdue(0.05)
    )
    played.until(0.1)
    assert played.of("b") == pytest.approx(200 * 0.02) and played.attribution.empty


def test_an_overestimate_is_taken_from_the_remaining_requests() -> None:
    """The power drops between readings just before one finishes."""
    played = Played(PowerTrace(((0.0, 500.0), (1.0, 200.0))), interval_s=0.2)
    for name in "ab":
        played.attribution.add_request(number(name), 0.0)
    for at in range(1, 12):
        played.step(at * 0.1, a=1, b=1)
    played.leave(1.1, "a")
    assert played.of("a") == pytest.approx(400 * 1.1 / 2)  # it was 100 W in the last 0.1 s
    played.step(1.2, b=1)
    played.until(1.2)
    played.leave(1.2, "b")
    assert sum(played.joules.values()) == pytest.approx(400 * 1.0 + 100 * 0.2)


def test_a_prompt_longer_than_a_step_counts_in_several() -> None:
    played = Played(steady(300.0), EnergyAttribution(1000, IDLE_W))
    played.attribution.add_request(number("a"), 0.0, 10)
    played.step(0.1, a=11)
    played.attribution.add_request(number("b"), 0.15, 2500)  # in the middle of a step, which cannot have it
    played.attribution.add_request(number("c"), 0.15, 2500)  # comes after it
    played.step(0.2, a=1)
    played.step(0.3, a=1)
    played.step(0.4, a=1)
    played.step(0.5, a=1, b=2501)
    played.until(0.5)
    played.leave(0.5, "a", "b")
    assert played.of("b") == pytest.approx(200 * 0.1 * (1000 / 1001 + 1000 / 1001 + 501 / 1502))
    assert played.of("a") == pytest.approx(200 * 0.1 * (2 + 1 / 1001 + 1 / 1001 + 1 / 1502))


def test_flushes_in_close_succession_are_one_step() -> None:
    """Some engines flush each token: the first one of a step must not have all of it."""
    played = Played(steady(300.0))
    for name in "abc":
        played.attribution.add_request(number(name), 0.0)
    for at in range(1, 101):
        for index, name in enumerate("abc"):
            played.step(at * 0.02 + index * 0.001, **{name: 1})
    played.until(2.1)
    played.leave(2.002, "a", "b", "c")
    assert sum(played.joules.values()) == pytest.approx(200 * 2.002)
    for name in "abc":
        assert played.of(name) == pytest.approx(200 * 2.002 / 3, rel=0.03)


def test_a_cancelled_request_keeps_its_share() -> None:
    played = Played(steady(300.0))
    for name in "ab":
        played.attribution.add_request(number(name), 0.0)
    played.step(0.1, a=1, b=1)
    played.until(0.1)
    played.attribution.drop_request(number("b"))
    played.step(0.2, a=1, b=1)  # its last token, on its way meanwhile
    played.until(0.2)
    played.leave(0.2, "a")
    assert played.of("a") == pytest.approx(200 * 0.15)


def test_the_idle_power_is_learned_only_without_requests() -> None:
    played = Played(PowerTrace(((0.0, 400.0), (1.0, 250.0), (1.4, 90.0))), EnergyAttribution())
    played.attribution.add_request(number("a"), 0.0)
    played.step(1.0, a=5)
    played.until(1.0)
    played.attribution.drop_request(number("a"))
    played.until(1.0 + SETTLE_S + IDLE_LEARN_S - 0.1, idle_since_s=1.0)
    assert played.attribution.idle_w is None
    played.until(1.0 + SETTLE_S + IDLE_LEARN_S + 0.1, idle_since_s=1.0)
    assert played.attribution.idle_w == pytest.approx(90.0)


def test_a_new_idle_power_replaces_the_old_one() -> None:
    played = Played(PowerTrace(((0.0, 90.0), (20.0, 120.0))), EnergyAttribution())
    played.until(20.0, idle_since_s=-10.0)
    assert played.attribution.idle_w == pytest.approx(90.0)
    played.until(70.0, idle_since_s=-10.0)
    assert played.attribution.idle_w == pytest.approx(120.0, rel=0.01)


def test_a_step_without_tokens_continues() -> None:
    played = Played(steady(300.0))
    played.attribution.add_request(number("a"), 0.0)
    played.step(0.1)
    played.attribution.record_step(0.15, {7: 3})  # of a request that nobody knows any more
    played.step(0.2, a=1)
    played.until(0.2)
    played.leave(0.2, "a")
    assert played.of("a") == pytest.approx(40.0)


def test_dropped_steps_count_for_nobody() -> None:
    played = Played(steady(300.0))
    played.attribution.add_request(number("a"), 0.0)
    for at in range(1, 11):
        played.attribution.record_step(at * 0.1, {number("a"): 1})
    assert not played.attribution.drop_uncovered_steps(0.05) and played.attribution.drop_uncovered_steps(0.75)
    assert len(played.attribution._steps) == 3
    played.attribution.add_request(number("b"), 1.0)
    played.read(1.0)  # is no measure of the three alone
    played.step(1.1, b=1)
    played.until(1.2)
    played.leave(1.1, "b")
    played.until(1.3)
    assert played.of("b") == pytest.approx(200 * 0.1)


# Nothing is lost


@st.composite
def busy_windows(draw: st.DrawFn) -> tuple[PowerTrace, int, float, int, int | None]:
    powers = draw(st.lists(st.floats(120.0, 700.0), min_size=1, max_size=12))
    trace = PowerTrace(tuple((index * 0.17, watts) for index, watts in enumerate(powers)))
    return (
        trace,
        draw(st.integers(0, 2**32)),
        draw(st.sampled_from((0.01, 0.05, 0.13, 0.4))),
        draw(st.integers(1, 12)),
        draw(st.sampled_from((None, 50, 300))),
    )


@given(busy_windows())
def test_the_sum_over_requests_is_what_the_window_drew_above_idle(
    window: tuple[PowerTrace, int, float, int, int | None],
) -> None:
    trace, seed, interval_s, streams, step_tokens = window
    played = Played(trace, EnergyAttribution(step_tokens, IDLE_W), interval_s)
    end_s = play_window(played, random.Random(seed), streams, step_tokens)
    drawn_j = trace.energy_j(0.0, end_s) - IDLE_W * end_s
    assert sum(played.joules.values()) == pytest.approx(drawn_j, rel=1e-3)
    assert played.attribution.empty


def play_window(played: Played, chance: random.Random, streams: int, step_tokens: int | None) -> float:
    """Run requests for 80 steps of any length. Finished ones get results at once; the last ones get a final reading."""
    now_s, next_number, prompts = 0.0, 1, dict[int, int]()
    left: dict[int, int] = {}

    def enter() -> Iterator[int]:
        nonlocal next_number
        while len(left) < streams:
            prompts[next_number], left[next_number] = chance.randrange(1, 1000), chance.randrange(1, 30)
            played.attribution.add_request(next_number, now_s, prompts[next_number])
            yield next_number
            next_number += 1

    for step in range(80):
        if step < 60:
            list(enter())
        if not left:
            break
        now_s += chance.choice((0.0004, 0.004, 0.02, 0.25))
        played.until(now_s)
        chosen = [request for request in left if chance.random() < 0.8] or list(left)
        played.attribution.record_step(now_s, {request: 1 + prompts.pop(request, 0) for request in chosen})
        for request in chosen:
            left[request] -= 1
        finished = [request for request in chosen if left[request] == 0]
        if len(finished) == len(left) and step >= 60:
            played.read(now_s)
        for request in finished:
            del left[request]
            joules = played.attribution.finish_request(request, now_s)
            if joules is not None:
                played.joules[request] = joules
    played.read(now_s)
    for request in left:
        played.joules[request] = played.attribution.finish_request(request, now_s) or 0.0
    return now_s
