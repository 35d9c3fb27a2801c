"""The search for the highest rate, on engines with a known one."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.errors import ConfigError
from enginebay.lab.search.rate_bisection import (
    NextTrial,
    RateBounds,
    SearchResult,
    SearchRules,
    Trial,
    find_bracket,
    plan_next_trial,
)

Engine = Callable[[float], bool]


def search(engine: Engine, bounds: RateBounds, rules: SearchRules | None = None) -> tuple[SearchResult, list[Trial]]:
    rules = rules or SearchRules()
    tries: list[Trial] = []
    while isinstance(step := plan_next_trial(tries, bounds, rules), NextTrial):
        tries.append(Trial(step.rate, engine(step.rate), confirming=step.confirming))
        assert len(tries) <= rules.most_runs
    return step, tries


@given(st.floats(0.05, 500), st.floats(0.3, 3.0), st.sampled_from((0.05, 0.1, 0.3)))
def test_a_sharp_edge_is_found_to_the_resolution_and_confirmed(edge: float, off: float, resolution: float) -> None:
    rules = SearchRules(resolution=resolution, most_runs=30)
    end, tries = search(lambda rate: rate <= edge, RateBounds(edge * off, edge / 50), rules)
    assert end.rate is not None and end.above is not None
    assert end.rate <= edge < end.above
    assert end.above / end.rate <= (1 + resolution) * 1.001
    assert end.confirmed and end.narrow and tries[-1].confirming and tries[-1].rate == end.rate


@given(st.floats(0.3, 3.0))
def test_the_usual_limit_of_runs_is_enough_from_a_fair_start(off: float) -> None:
    end, _ = search(lambda rate: rate <= 1.0, RateBounds(off, 0.02))
    assert end.confirmed and end.narrow


def test_an_engine_that_misses_everything_ends_at_the_lowest_rate_in_few_runs() -> None:
    end, tries = search(lambda rate: False, RateBounds(8.0, 0.1))
    assert end == SearchResult(None, 0.1)
    assert tries[-1].rate == 0.1 and len(tries) <= 6


def test_no_rate_above_the_highest_is_tried() -> None:
    end, tries = search(lambda rate: True, RateBounds(4.0, 0.1, 5.0, "it answers no more"))
    assert end == SearchResult(5.0, None, confirmed=True, narrow=True, limit="it answers no more")
    assert [one.rate for one in tries] == [4.0, 5.0, 5.0]


def test_a_rate_that_is_not_confirmed_is_given_up_for_a_lower_one() -> None:
    tries = [Trial(2.0, True), Trial(3.0, False), Trial(2.45, True), Trial(2.71, False)]
    bounds, rules = RateBounds(2.0, 0.1), SearchRules(resolution=0.11)
    assert plan_next_trial(tries, bounds, rules) == NextTrial(2.45, confirming=True)
    tries.append(Trial(2.45, False, confirming=True))
    assert find_bracket(tries) == (2.0, 2.45)
    step = plan_next_trial(tries, bounds, rules)
    assert isinstance(step, NextTrial) and 2.0 < step.rate < 2.45


def test_where_the_only_rate_is_not_confirmed_one_just_below_it_is_tried() -> None:
    tries = [Trial(2.0, True), Trial(2.1, False), Trial(2.0, False, confirming=True)]
    step = plan_next_trial(tries, RateBounds(2.0, 0.1), SearchRules())
    assert step == NextTrial(1.82)


def test_a_doubtful_miss_is_repeated_once_and_then_counts() -> None:
    bounds, rules = RateBounds(2.0, 0.1), SearchRules()
    first = Trial(2.0, False, doubtful=True)
    assert plan_next_trial([first], bounds, rules) == NextTrial(2.0)
    again = plan_next_trial([first, Trial(2.0, True)], bounds, rules)
    assert again == NextTrial(3.0)  # kept the second time: the first does not count
    step = plan_next_trial([first, first], bounds, rules)
    assert isinstance(step, NextTrial) and step.rate < 2.0


def test_the_last_run_confirms_what_was_kept_and_repeats_no_doubtful_miss() -> None:
    tries = [Trial(2.0, True), Trial(3.0, False, doubtful=True)]
    assert plan_next_trial(tries, RateBounds(2.0, 0.1), SearchRules(most_runs=3)) == NextTrial(2.0, confirming=True)
    assert plan_next_trial(tries, RateBounds(2.0, 0.1), SearchRules(most_runs=4)) == NextTrial(3.0)
    spoiled = [*tries, Trial(2.0, False, doubtful=True, confirming=True)]
    assert plan_next_trial(spoiled, RateBounds(2.0, 0.1), SearchRules(most_runs=4)) == NextTrial(2.0, confirming=True)


def test_the_last_run_confirms_although_the_resolution_is_not_reached() -> None:
    end, tries = search(lambda rate: rate <= 1.0, RateBounds(0.9, 0.01), SearchRules(resolution=0.02, most_runs=4))
    assert tries[-1].confirming and end.confirmed and not end.narrow
    assert end.rate is not None and end.rate <= 1.0


def test_an_exhausted_search_returns_its_bracket() -> None:
    rules = SearchRules(most_runs=2)
    assert plan_next_trial([Trial(4.0, False), Trial(2.67, True)], RateBounds(4.0, 0.1), rules) == SearchResult(
        2.67, 4.0
    )
    assert plan_next_trial([Trial(4.0, False), Trial(2.67, False)], RateBounds(4.0, 0.1), rules) == SearchResult(
        None, 2.67
    )


def test_noise_at_the_edge_does_not_carry_the_search_above_it() -> None:
    """Between 0.9 and 1.1 of the edge an outcome is chance; what is confirmed is hardly ever above the edge."""
    chance = random.Random(5)

    def engine(rate: float) -> bool:
        return chance.random() < min(1.0, max(0.0, (1.1 - rate) / 0.2))

    found = [
        search(engine, RateBounds(chance.uniform(0.4, 1.6), 0.02), SearchRules(most_runs=16))[0] for _ in range(500)
    ]
    rates = [end.rate for end in found if end.rate is not None]
    assert len(rates) > 490
    assert sum(rate > 1.05 for rate in rates) / len(rates) < 0.05
    assert sum(rate > 0.75 for rate in rates) / len(rates) > 0.95


@pytest.mark.parametrize("wrong", [{"resolution": 0.0}, {"resolution": 3.0}, {"most_runs": 1}])
def test_invalid_rules(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        SearchRules(**wrong)  # type: ignore[arg-type]
