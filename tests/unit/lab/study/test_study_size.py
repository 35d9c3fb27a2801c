"""The size of a study that nobody sized, and how long a study takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from enginebay.lab.study.engine_speed import EngineSpeed
from enginebay.lab.study.study_point import ParityPlan, StudyPoint, plan_run
from enginebay.lab.study.study_size import (
    MIN_QUICK_REQUESTS,
    RUN_BUDGET_S,
    StudySize,
    apply_size,
    estimate_from_runs,
    estimate_run_s,
    estimate_sending_s,
    shorten_preparation,
    size_study,
)
from tests.unit.lab.store.run_files import write_run

GPU = EngineSpeed(start_s=20.0, first_s=0.02, token_s=0.004, batch_first_s=0.05, batch_token_s=0.005)
LAPTOP = EngineSpeed(start_s=3.0, first_s=0.3, token_s=0.015, batch_first_s=2.0, batch_token_s=0.06)
TOASTER = EngineSpeed(start_s=5.0, first_s=4.0, token_s=0.5, batch_first_s=30.0, batch_token_s=3.0)
PARITY = ParityPlan()


def test_a_fast_host_sends_the_usual_study() -> None:
    assert size_study([GPU], PARITY) == StudySize(100, 128)


def test_a_laptop_sends_what_it_answers_within_the_budget() -> None:
    size = size_study([LAPTOP], PARITY)
    assert size.requests >= 16
    assert estimate_run_s(LAPTOP, size, PARITY) <= RUN_BUDGET_S
    assert 3 * estimate_run_s(LAPTOP, size, PARITY) < 150


def test_the_slowest_engine_decides() -> None:
    assert size_study([GPU, LAPTOP], PARITY).requests <= size_study([LAPTOP], PARITY).requests


def test_a_very_slow_host_still_measures_something() -> None:
    assert size_study([TOASTER], PARITY) == StudySize(MIN_QUICK_REQUESTS, 32)


def test_a_length_that_the_user_chose_stays() -> None:
    assert size_study([TOASTER], PARITY, (256,)).output_tokens == 256


POINT = StudyPoint(
    "a offline", "a", "m", {"kind": "synthetic", "input_tokens": 8, "output_tokens": 128}, {"kind": "offline"}
)


def test_a_size_is_part_of_the_workload() -> None:
    sized = apply_size(POINT, StudySize(20, 64))
    assert sized.workload == {**POINT.workload, "requests": 20, "output_tokens": 64}
    varying = replace(POINT, workload={**POINT.workload, "output_tokens": None})
    assert apply_size(varying, StudySize(20, 64)).workload["output_tokens"] is None


def test_a_sized_study_prepares_its_runs_quickly() -> None:
    usual, short = plan_run(POINT), plan_run(shorten_preparation(POINT))
    assert short.warmup_requests < usual.warmup_requests
    assert short.parity.prompts * short.parity.tokens < usual.parity.prompts * usual.parity.tokens
    chosen = replace(POINT, warmup={"requests": 20}, parity=False)
    assert shorten_preparation(chosen) == chosen


@pytest.mark.parametrize(
    ("profile", "limits", "seconds"),
    [
        ({"kind": "poisson", "rate": 4}, {"requests": 200}, 50.0),
        ({"kind": "poisson", "rate": 4}, {"duration_s": 9}, 9.0),
        ({"kind": "closed", "concurrency": 4}, {"duration_s": 30}, 30.0),
        ({"kind": "closed", "concurrency": 4}, {"requests": 30}, None),
        ({"kind": "offline"}, {}, None),
    ],
)
def test_how_long_a_run_sends(profile: dict[str, Any], limits: dict[str, Any], seconds: float | None) -> None:
    assert estimate_sending_s(plan_run(replace(POINT, profile=profile, limits=limits))) == seconds


def test_the_duration_follows_from_the_last_comparable_run(tmp_path: Path) -> None:
    measures = {"requests_per_s": 2.0, "server_start_s": 10.0, "ttft_s": {"minimum": 0.5}, "tpot_s": {"minimum": 0.0}}
    sections: dict[str, Any] = {
        "model": {"name": "m"}, "workload": dict(POINT.workload), "profile": {"kind": "offline"}, "measures": measures,
    }  # fmt: skip
    run = write_run(tmp_path, "r1", "a", **sections)
    point = replace(POINT, parity=False)
    seconds = estimate_from_runs(point, [run])
    assert seconds is not None and 10 + 100 / 2 + 8 / 2 <= seconds < 85
    assert estimate_from_runs(replace(POINT, limits={"requests": 10}, parity=False), [run]) == pytest.approx(
        seconds - 45
    )
    shorter = {**POINT.workload, "output_tokens": 4}
    for other in (
        replace(point, engine="b"), replace(point, model="n"), replace(point, workload=shorter),
        replace(point, profile={"kind": "closed", "concurrency": 1}),
    ):  # fmt: skip
        assert estimate_from_runs(other, [run]) is None


def test_the_stall_limit_is_one_of_the_limits() -> None:
    assert POINT.timeout_s == 120
    assert replace(POINT, limits={"stall_timeout_s": 600}).timeout_s == 600
    assert plan_run(replace(POINT, limits={"stall_timeout_s": 600})).limits.stall_timeout_s == 600
