"""When a load client was up to a load, and how the highest such load is found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.lab.loads import Known, Load, One, Told, faults, highest, told

KNOWN = Known(ttft_s=0.1, itl_s=0.01, tokens=11)  # a request lasts 0.2 s
LOAD = Load("http://127.0.0.1:1", concurrency=4, rounds=2, tokens=11)
RIGHT = Told(right=8, tokens=88, tokens_per_s=220.0, ttft_s=0.1, tpot_s=0.01)


def test_what_is_right_is_sustained() -> None:
    assert faults(RIGHT, LOAD, KNOWN) == []
    assert faults(replace(RIGHT, ttft_s=0.1049, tpot_s=0.0104, tokens_per_s=210.0), LOAD, KNOWN) == []


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (replace(RIGHT, right=7), "7 answers of 8"),
        (replace(RIGHT, tokens=87), "87 tokens"),
        (replace(RIGHT, ttft_s=0.106), "TTFT +6%"),
        (replace(RIGHT, tpot_s=0.0106), "TPOT +6%"),
        (replace(RIGHT, tpot_s=0.009), "TPOT -10%"),
        (replace(RIGHT, tokens_per_s=200.0), "tokens/s -9%"),
    ],
)
def test_each_figure_counts(wrong: Told, named: str) -> None:
    assert any(named in fault for fault in faults(wrong, LOAD, KNOWN))


def test_the_first_round_does_not_count() -> None:
    warm = [One(start_s=0.0, end_s=0.5, tokens=11, ttft_s=0.4, tpot_s=0.01)] * 4
    rounds = [One(at, at + 0.2, 11, 0.1, 0.01) for at in (0.5, 0.7) for _ in range(4)]
    found = told([*rounds, *warm], LOAD)
    assert (found.right, found.tokens) == (8, 88)
    assert (found.tokens_per_s, found.ttft_s) == (pytest.approx(220), pytest.approx(0.1))
    assert told(warm, LOAD).right == 0


@pytest.mark.parametrize("start", [0, 3, 7, 8, 20])
def test_the_highest_step_is_found_from_anywhere(start: int) -> None:
    assert highest(lambda step: step <= 7, start) == 7


def test_none_is_found_where_none_is() -> None:
    assert highest(lambda step: False, 3) is None
