"""The waves of the hostile suite: what is sent again alone, and which case a failure names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest

from tests.hostile.hostile_case import CHAT, HostileCase
from tests.hostile.hostile_site import HostileSite, SentCase
from tests.hostile.site_keeper import SiteKeeper, split_in_waves
from tests.integration.server.raw_http import RawResponse

CASES = [HostileCase(f"case-{number}", CHAT, b"{}", "answered") for number in range(20)]
RIGHT, BUSY, BROKEN = (RawResponse(status, {}, b"{}") for status in (200, 503, 500))


@dataclass
class StandInSite(HostileSite):
    """A site without a server: what comes back at once and alone is given."""

    at_once: dict[str, RawResponse | None] = field(default_factory=dict)
    late: set[str] = field(default_factory=set)  # at once
    harmful: set[str] = field(default_factory=set)  # alone
    is_harmed: bool = False
    sent_alone: list[str] = field(default_factory=list)

    def send_at_once(self, cases: Sequence[HostileCase]) -> list[SentCase]:
        return [
            SentCase(case, self.at_once.get(case.name, RIGHT), 60.0 if case.name in self.late else 0.1)
            for case in cases
        ]

    def assert_nobody_harmed(self, before: int, shown: str) -> None:
        assert not self.is_harmed, shown

    def attack(self, case: HostileCase) -> None:
        self.sent_alone.append(case.name)
        assert case.name not in self.harmful, case.name


class StandInKeeper(SiteKeeper):
    def __init__(self, site: StandInSite) -> None:
        super().__init__("fake", Path(), CASES)
        self._site = site

    def _is_sound(self) -> bool:
        return True

    def list_failed(self) -> list[str]:
        return [case.name for case in CASES if not self._passes(case)]

    def _passes(self, case: HostileCase) -> bool:
        try:
            self.attack(case)
        except AssertionError:
            return False
        return True


def make_site(**fields: object) -> StandInSite:
    return StandInSite("fake", None, None, None, **fields)  # type: ignore[arg-type]


def test_each_case_is_in_one_wave() -> None:
    waves = split_in_waves(CASES, 8)
    assert [len(wave) for wave in waves] == [7, 7, 6]
    assert sorted(case.name for wave in waves for case in wave) == sorted(case.name for case in CASES)
    assert split_in_waves([]) == []


def test_neighbours_are_in_different_waves() -> None:
    for wave in split_in_waves(CASES, 8):
        places = [CASES.index(case) for case in wave]
        assert not any(after - before == 1 for before, after in pairwise(places))


def test_what_is_right_at_once_is_not_sent_again() -> None:
    site = make_site()
    assert StandInKeeper(site).list_failed() == []
    assert site.sent_alone == []


def test_a_wrong_answer_fails_its_case_though_it_may_be_right_alone() -> None:
    site = make_site(at_once={"case-3": BROKEN})
    assert StandInKeeper(site).list_failed() == ["case-3"]
    assert site.sent_alone == []


@pytest.mark.parametrize("fields", [{"late": {"case-3"}}, {"at_once": {"case-3": None}}, {"at_once": {"case-3": BUSY}}])
def test_what_others_may_be_to_blame_for_is_sent_again_alone(fields: dict[str, object]) -> None:
    site = make_site(**fields)
    assert StandInKeeper(site).list_failed() == []
    assert site.sent_alone == ["case-3"]


def test_what_is_late_alone_too_fails() -> None:
    assert StandInKeeper(make_site(late={"case-3"}, harmful={"case-3"})).list_failed() == ["case-3"]


def test_harm_names_the_case_that_does_it_alone() -> None:
    assert StandInKeeper(make_site(is_harmed=True, harmful={"case-0"})).list_failed()[0] == "case-0"


def test_harm_of_no_case_alone_fails_the_wave() -> None:
    site = make_site(is_harmed=True)
    assert StandInKeeper(site).list_failed() == [case.name for case in CASES]
    assert sorted(site.sent_alone) == sorted(case.name for case in CASES)
