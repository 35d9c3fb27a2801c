from __future__ import annotations

import random
from typing import Any

import pytest

from enginebay.lab.report.latency_curves import MAX_EXACT_VALUES, QUANTILE_LEVELS, build_curve, build_curves
from tests.unit.lab.report.report_runs import make_run


def at(found: dict[str, Any], share: float) -> float:
    """The value that the curve reaches at a share."""
    shares = found["q"] or [(place + 1) / found["n"] for place in range(found["n"])]
    return next(value for value, reached in zip(found["x"], shares, strict=True) if reached >= share)


def test_few_values_are_all_there() -> None:
    assert build_curve([3.0, 1.0, 2.0]) == {"n": 3, "x": [1.0, 2.0, 3.0], "q": None}


@pytest.mark.parametrize("share", [0.01, 0.5, 0.9, 0.99, 0.999])
def test_many_values_are_thinned_without_moving_the_percentiles(share: float) -> None:
    dice = random.Random(1)
    values = [dice.lognormvariate(0, 1) for _ in range(50_000)]
    found = build_curve(values)
    assert len(found["x"]) <= QUANTILE_LEVELS + 1  # type: ignore[arg-type]
    assert at(found, share) == pytest.approx(sorted(values)[int(share * len(values))], rel=0.08)


def test_a_thinned_curve_ends_at_the_largest_value() -> None:
    values = [float(one) for one in range(MAX_EXACT_VALUES * 3)]
    found: Any = build_curve(values)
    assert (found["x"][-1], found["q"][-1]) == (MAX_EXACT_VALUES * 3 - 1, 1.0)


def test_every_latency_of_the_answered_requests_has_a_curve() -> None:
    run = make_run(requests=50, errors=5)
    found = build_curves([run, run])
    assert found["ttft_s"]["n"] == 90
    assert found["send_lag_s"]["n"] == 100  # a request that fails later was still sent
    assert "queue_s" not in found  # this server does not tell
