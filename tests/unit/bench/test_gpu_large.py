"""The search for the highest rate: the rates of the second climb, and what counts as confirmed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest

from bench.gpu.large_model.large_model_study import Journal, LargeModelStudy, LatencyObjective
from enginebay.lab.search.rate_bisection import Trial

_OBJECTIVE = LatencyObjective("ttft", 128, 25.0, 10.0, 5.0)
_OPTIONS = SimpleNamespace(streams=8, waves=2, pairs=5, step=25.0, skip=10.0, no_sleep=True)


class Climbs(LargeModelStudy):
    """Meets every rate up to a limit, one for each climb."""

    def __init__(self, journal: Journal, *limits: float) -> None:
        super().__init__(None, journal, lambda: None, _OPTIONS)  # type: ignore[arg-type]
        self.limits, self.climbs = list(limits), list[Sequence[float]]()

    def _climb(self, objective: LatencyObjective, rates: Sequence[float]) -> list[Trial]:
        self.climbs.append(list(rates))
        if not self.limits:
            return []
        limit = self.limits.pop(0)
        return [Trial(rate, rate <= limit) for rate in rates]


def _search(study: Climbs, journal: Journal, rates: Sequence[float]) -> dict[str, Any] | None:
    study._search(_OBJECTIVE, rates)
    return next(iter(journal.find("found")), None)


@pytest.mark.parametrize(
    ("limits", "second", "rate", "above", "confirmed"),
    [
        ((20.0, 20.0), [10.0, 20.0, 25.2, 31.7], 20.0, 25.2, True),
        ((20.0, 26.0), [10.0, 20.0, 25.2, 31.7], 25.2, 31.7, False),
        ((20.0, 15.0), [10.0, 20.0, 25.2, 31.7], 10.0, 20.0, True),
        ((20.0, 5.0), [10.0, 20.0, 25.2, 31.7], None, 10.0, False),
        ((99.0, 99.0), [20.0, 40.0, 50.4, 63.5], 63.5, None, False),
        ((5.0, 7.0), [5.0, 6.3, 7.94], 6.3, 7.94, False),
        ((20.0,), [10.0, 20.0, 25.2, 31.7], 20.0, 40.0, False),
    ],
)
def test_a_search_climbs_twice(
    tmp_path: Path,
    limits: tuple[float, ...],
    second: list[float],
    rate: float | None,
    above: float | None,
    confirmed: bool,
) -> None:
    journal = Journal(tmp_path, monotonic() + 60)
    study = Climbs(journal, *limits)
    found = _search(study, journal, [10.0, 20.0, 40.0])
    assert study.climbs == [[10.0, 20.0, 40.0], second]
    assert found is not None and (found["rate"], found["above"], found["confirmed"]) == (rate, above, confirmed)


def test_without_time_no_rate_is_reported(tmp_path: Path) -> None:
    journal = Journal(tmp_path, monotonic() + 60)
    assert _search(Climbs(journal), journal, [10.0, 20.0]) is None
