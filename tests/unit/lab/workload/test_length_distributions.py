from __future__ import annotations

import statistics

import pytest

from enginebay.errors import ConfigError
from enginebay.lab.workload.length_distributions import (
    LengthDistribution,
    draw_lengths,
    length_from_value,
    length_to_value,
)
from enginebay.lab.workload.seeded_random import make_generator


def draw(data, count=20_000):
    return draw_lengths(length_from_value("n", data), count, make_generator(1))


def test_one_length_for_all():
    assert draw(7, 3) == [7, 7, 7]


def test_uniform_has_both_ends():
    values = draw({"kind": "uniform", "min": 2, "max": 5})
    assert set(values) == {2, 3, 4, 5}
    assert statistics.mean(values) == pytest.approx(3.5, abs=0.05)


@pytest.mark.parametrize("kind", ["normal", "lognormal"])
def test_mean_and_spread_are_as_requested(kind):
    values = draw({"kind": kind, "mean": 500, "std": 100})
    assert statistics.mean(values) == pytest.approx(500, rel=0.01)
    assert statistics.stdev(values) == pytest.approx(100, rel=0.03)
    skew = statistics.mean(((value - 500) / 100) ** 3 for value in values)
    assert skew == pytest.approx(0.608 if kind == "lognormal" else 0, abs=0.1)


def test_what_lies_outside_is_cut_away_and_not_piled_up():
    values = draw({"kind": "normal", "mean": 100, "std": 50, "min": 90, "max": 110})
    assert set(values) == set(range(90, 111))
    assert values.count(90) < 1.3 * values.count(100)


def test_the_same_seed_gives_the_same_lengths():
    data = {"kind": "lognormal", "mean": 50, "std": 40}
    assert draw(data, 50) == draw(data, 50)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (0, "at least 1"),
        (-3, "at least 1"),
        (2.5, "whole number"),
        (True, "whole number"),
        ("12", "whole number"),
        ({"kind": "zipf"}, "n.kind: unknown value 'zipf'"),
        ({"mean": 3}, "n.kind"),
        ({"kind": "uniform", "min": 1}, "needs max"),
        ({"kind": "uniform", "min": 0, "max": 4}, "at least 1"),
        ({"kind": "uniform", "min": 5, "max": 4}, "impossible"),
        ({"kind": "uniform", "min": 1, "max": 4, "mean": 2}, "no key 'mean'"),
        ({"kind": "normal", "mean": float("nan"), "std": 1}, "finite"),
        ({"kind": "normal", "mean": 5, "std": 0}, "above 0"),
    ],
)
def test_impossible_lengths_are_refused(data, said):
    with pytest.raises(ConfigError, match=said) as caught:
        length_from_value("n", data)
    assert caught.value.hint


@pytest.mark.parametrize("kind", ["normal", "lognormal"])
def test_bounds_far_from_the_mean_are_refused(kind):
    with pytest.raises(ConfigError, match="almost no length"):
        draw({"kind": kind, "mean": 100_000, "std": 10, "max": 100})


@pytest.mark.parametrize(
    "length", [4, LengthDistribution("uniform", minimum=2, maximum=9), LengthDistribution("normal", 5.0, 2.0)]
)
def test_data_can_be_read_again(length):
    assert length_from_value("n", length_to_value(length)) == length
