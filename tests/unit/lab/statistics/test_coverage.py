"""A small part of `python -m bench.lab.interval_coverage`, whose limits are for 2,000 studies per scenario."""

from __future__ import annotations

import pytest

from bench.lab.interval_coverage import measure_coverage, measure_percentile_coverage
from bench.lab.simulated_studies import NOISE_MODELS, NoiseModel

_STUDIES = 600
_SLACK = 0.035  # four standard errors of a share of 600


@pytest.mark.parametrize("world", NOISE_MODELS[:3], ids=lambda world: world.name)
def test_intervals_have_their_nominal_coverage(world: NoiseModel) -> None:
    found = measure_coverage(world, _STUDIES)
    for share in (found.mean, found.difference, found.ratio):
        assert share == pytest.approx(0.95, abs=_SLACK)
    assert found.alarms == pytest.approx(0.05, abs=_SLACK)


def test_a_planted_slowdown_is_found_where_runs_spread_little() -> None:
    assert measure_coverage(NOISE_MODELS[0], _STUDIES).detected > 0.9


def test_the_interval_of_a_percentile_holds_it() -> None:
    assert measure_percentile_coverage(95, _STUDIES) == pytest.approx(0.95, abs=_SLACK)
