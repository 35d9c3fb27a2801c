"""The whole search on a simulated server with a fixed number of slots and a fixed service time."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

from enginebay.lab.loadgen.calibration import ClientCeiling
from enginebay.lab.measures.run_measures import compute_measures
from enginebay.lab.profiles.profile import limits_from_dict
from enginebay.lab.profiles.profile_config import profiles_from_dict
from enginebay.lab.profiles.send_schedule import draw_send_times
from enginebay.lab.search import rate_search
from enginebay.lab.search.candidates import Candidate
from enginebay.lab.search.rate_bisection import SearchRules
from enginebay.lab.search.rate_search import SearchCallbacks, SearchGoal, SearchPace, SearchSession, _search_rate
from enginebay.lab.store.study_plan import StudyStep
from enginebay.lab.study.run_point import StudyContext
from enginebay.lab.study.study_point import StudyPoint
from enginebay.lab.workload.request_records import Record, Request

TOKENS = 4
CEILING = ClientCeiling(tokens_per_s=1e6, requests_per_s=1e5, processes=1)
SLO = {"ttft_p95": 0.5}


@dataclass(frozen=True)
class FakeRun:
    id: str
    records: Sequence[Record]
    reasons: Sequence[Mapping[str, Any]]
    measures: Mapping[str, Any]
    manifest: Mapping[str, Any] = field(default_factory=lambda: {"engine": {"version": "1.0"}})

    def read_records(self) -> Sequence[Record]:
        return self.records


@dataclass
class FakeSession:
    """Serves `slots` requests at once, `service_s` each; the first token comes `first_s` after service begins."""

    slots: int
    service_s: float
    first_s: float = 0.01
    busy: Sequence[int] = ()  # indexes of disturbed runs
    fails: bool = False  # every request
    runs: list[FakeRun] = field(default_factory=list)
    measured: list[tuple[Mapping[str, Any], Mapping[str, Any]]] = field(default_factory=list)

    def measure(self, label: str, profile: Mapping[str, Any], limits: Mapping[str, Any]) -> FakeRun:
        self.measured.append((profile, limits))
        (parsed_profile,) = profiles_from_dict(profile)
        requests = [Request((1,), 1, TOKENS)] * int(limits["requests"])
        parsed_limits = limits_from_dict({"requests": limits["requests"]})
        times = draw_send_times(parsed_profile, parsed_limits, len(self.runs), requests)
        stop_s = limits.get("duration_s", math.inf)
        records = self._closed(profile["concurrency"], len(requests), stop_s) if times is None else self._open(times)
        disturbed = len(self.runs) in self.busy
        records = [replace(record, first_s=(record.first_s or 0) + 1.0) for record in records] if disturbed else records
        window_s = max(record.end_s or 0.0 for record in records)
        reasons = [{"code": "machine_busy", "severity": "invalid", "message": "busy"}] if disturbed else []
        self.runs.append(
            FakeRun(f"run-{len(self.runs)}", records, reasons, compute_measures(records, {}, window_s, SLO))
        )
        return self.runs[-1]

    def _open(self, times: Sequence[float]) -> list[Record]:
        free = [0.0] * self.slots
        records = []
        for index, sent in enumerate(times):
            records.append(self._record(index, sent, max(sent, heapq.heappop(free))))
            heapq.heappush(free, records[-1].end_s or 0.0)
        return records

    def _closed(self, concurrency: int, count: int, stop_s: float) -> list[Record]:
        free, ends, records = [0.0] * self.slots, [0.0] * concurrency, []
        for index in range(count):
            sent = heapq.heappop(ends)
            if sent >= stop_s:
                break
            records.append(self._record(index, sent, max(sent, heapq.heappop(free))))
            heapq.heappush(free, records[-1].end_s or 0.0)
            heapq.heappush(ends, records[-1].end_s or 0.0)
        return records

    def _record(self, index: int, sent: float, begin: float) -> Record:
        end = begin + self.service_s
        if self.fails:
            return Record(index, sent, sent, end_s=end, error="closed")
        return Record(index, sent, sent, begin + self.first_s, end, end, 1, TOKENS)


def make_goal(**changes: Any) -> SearchGoal:
    return replace(SearchGoal(SLO, {"kind": "poisson"}, 72, 15.0, SearchRules()), **changes)


def find(session: FakeSession, **changes: Any) -> Candidate:
    return _search_rate(
        cast(SearchSession, session), Candidate("sim", "sim"), make_goal(**changes), SearchCallbacks(), CEILING
    )


@pytest.mark.parametrize(("slots", "service_s"), [(1, 0.2), (4, 1.0), (16, 0.5)])
def test_the_rate_is_near_and_below_the_capacity(slots: int, service_s: float) -> None:
    capacity = slots / service_s
    session = FakeSession(slots, service_s)
    found = find(session)
    assert found.rate is not None and 0.5 * capacity < found.rate <= 1.02 * capacity
    assert found.confirmed and found.status in ("valid", "informative")
    assert found.capacity == pytest.approx(capacity, rel=0.05)
    assert found.figures["ttft_s.p95"] <= 0.5
    assert found.runs == [run.id for run in session.runs] and found.version == "1.0"
    assert "absent" in found.energy


def test_the_confirming_run_is_the_longest_and_every_run_is_long_enough() -> None:
    session = FakeSession(4, 2.0)
    found = find(session)
    tries = [(profile["rate"], limits["requests"]) for profile, limits in session.measured if "rate" in profile]
    assert all(count >= max(72, 20 * rate) for rate, count in tries)  # ten latencies of 2 s each
    assert tries[-1][1] == max(count for _, count in tries) and tries[-1][1] >= 144
    assert found.confirmed and found.requests == tries[-1][1]  # what a repetition needs


def test_a_miss_with_single_requests_ends_the_search() -> None:
    session = FakeSession(4, 1.0, first_s=0.7)
    found = find(session)
    assert found.rate is None and len(session.runs) == 1
    assert "one request at a time: TTFT 0.7 s" in found.why_none
    assert found.status == "valid"


def test_a_miss_on_a_busy_machine_is_invalid() -> None:
    found = find(FakeSession(4, 0.2, busy=range(100)))
    assert found.rate is None and found.status == "invalid"


def test_a_disturbed_run_is_repeated() -> None:
    calm = FakeSession(4, 0.2)
    undisturbed = find(calm)
    first = next(place for place, (profile, _) in enumerate(calm.measured) if "rate" in profile)
    session = FakeSession(4, 0.2, busy=(first,))
    found = find(session)
    rates = [profile["rate"] for profile, _ in session.measured if "rate" in profile]
    assert rates[0] == rates[1]
    assert found.rate is not None and undisturbed.rate is not None
    assert found.rate == pytest.approx(undisturbed.rate, rel=0.25)


def test_an_engine_slower_than_the_sweep_duration_is_searched() -> None:
    session = FakeSession(4, 80.0)
    found = find(session)
    assert [len(run.records) for run in session.runs[:2]] == [1, 8]
    assert found.rate is not None and found.confirmed and found.capacity == pytest.approx(4 / 80)
    assert 0.2 * 4 / 80 < found.rate <= 4 / 80  # hardly one may wait: it would wait for long


def test_without_any_response_there_is_no_rate() -> None:
    session = FakeSession(4, 0.2, fails=True)
    found = find(session)
    assert found.rate is None and found.why_none == "no request was answered" and len(session.runs) == 1


def test_with_few_requests_the_result_is_not_sure() -> None:
    found = find(FakeSession(1, 0.2), requests=10, seconds=0.5)
    assert not found.sure and "narrowly_kept" in {one["code"] for one in found.reasons}


def test_every_run_has_its_own_prompts_and_arrivals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_search, "load_run", lambda folder, verify: folder)
    seeds = list[dict[str, int]]()

    def run(point: StudyPoint, step: StudyStep) -> Path:
        seeds.append(point.derive_seeds(step.cycle))
        return Path()

    context = StudyContext(runs_dir=Path(), study_id="s", ceiling=CEILING)
    session = SearchSession(context, StudyPoint("p", "a", "m", {}, {}, seed=7, arrivals_seed=40), run, 0)
    for _ in range(2):
        session.measure("", {}, {})
    assert seeds == [{"requests": 8, "arrivals": 41}, {"requests": 9, "arrivals": 42}]


def test_a_miss_with_too_few_answers_for_a_median_says_so() -> None:
    session = FakeSession(1, 12.0, first_s=1.5)
    found = find(session)
    assert [len(run.records) for run in session.runs] == [5]
    assert "TTFT 1.5 s, end to end 12 s (mean of 5 answers; a median needs 6)" in found.why_none


def test_a_slow_engine_answers_enough_single_requests_for_a_median() -> None:
    session = FakeSession(1, 12.0, first_s=1.5)
    found = _search_rate(
        cast(SearchSession, session), Candidate("sim", "sim"), make_goal(), SearchCallbacks(), CEILING,
        SearchPace(12.0, math.inf),
    )  # fmt: skip
    assert len(session.runs[0].records) >= 6 and "TTFT 1.5 s, end to end 12 s" in found.why_none
    assert "median" not in found.why_none


def test_a_search_ends_when_its_time_is_over_and_confirms_what_it_found() -> None:
    session = FakeSession(4, 1.0)
    whole = find(FakeSession(4, 1.0))
    pace = SearchPace(1.0, 130.0, lambda: sum(run.measures["window_s"] for run in session.runs))
    found = _search_rate(
        cast(SearchSession, session), Candidate("sim", "sim"), make_goal(), SearchCallbacks(), CEILING, pace
    )
    assert len(session.runs) < len(whole.runs) and found.confirmed and found.rate is not None
    assert pace.clock() < 1.2 * pace.ends_at_s
