"""A small share of what `python -m bench.lab.coverage` does; its bars are for 2,000 studies in every world."""

from __future__ import annotations

import pytest

from bench.lab.coverage import cover, cover_percentile
from bench.lab.worlds import WORLDS, World

_STUDIES = 600
_SLACK = 0.035  # four standard errors of a share of 600


@pytest.mark.parametrize("world", WORLDS[:3], ids=lambda world: world.name)
def test_intervals_hold_the_truth_as_often_as_they_say(world: World) -> None:
    found = cover(world, _STUDIES)
    for share in (found.mean, found.difference, found.ratio):
        assert share == pytest.approx(0.95, abs=_SLACK)
    assert found.alarms == pytest.approx(0.05, abs=_SLACK)


def test_a_planted_slowdown_is_found_where_runs_spread_little() -> None:
    assert cover(WORLDS[0], _STUDIES).found > 0.9


def test_the_interval_of_a_percentile_holds_it() -> None:
    assert cover_percentile(95, _STUDIES) == pytest.approx(0.95, abs=_SLACK)
