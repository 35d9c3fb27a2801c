"""Hostile requests on every engine: each is answered in time, hurts no other client, and leaves the worker as it was.

A case is answered within five seconds beyond what an honest request takes, with 2xx or 4xx. An answer satisfies its
constraint. Four honest clients of another key ask all the while; they see no error and the same answers as before.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.hostile.corpus import ONCE_HARMFUL, is_in_sample, load_corpus
from tests.hostile.hostile_case import HostileCase
from tests.hostile.site_keeper import SiteKeeper

CASES = load_corpus()


def _mark(case: HostileCase) -> Any:
    return pytest.param(case, id=case.name, marks=() if is_in_sample(case) else pytest.mark.exhaustive)


@pytest.mark.parametrize("case", [_mark(case) for case in CASES])
def test_a_hostile_request(keeper: SiteKeeper, case: HostileCase) -> None:
    keeper.attack(case)


def test_honest_clients_are_unharmed(keeper: SiteKeeper) -> None:
    """No error, the same answers, and a median wait of at most twice the usual one."""
    keeper.site.assert_honest_unharmed()


def test_no_worker_died(keeper: SiteKeeper) -> None:
    assert keeper.site.read_pids() == keeper.site.pids
    assert keeper.site.count_deaths() == 0


def test_memory_is_given_back(keeper: SiteKeeper) -> None:
    keeper.site.assert_memory_back()


def test_the_sample_is_large() -> None:
    assert {case.name for case in CASES} >= ONCE_HARMFUL
    assert sum(map(is_in_sample, CASES)) >= 150
