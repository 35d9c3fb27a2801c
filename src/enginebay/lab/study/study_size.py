"""Size a study that nobody sized, and estimate how long a study takes. Pure.

A study without requests, limits or a profile of the user's own is sized by the measured speed of its engines, so that it
ends soon on any host.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from enginebay.lab.study.study_point import DEFAULT_REQUESTS, ParityPlan, RunPlan, StudyPoint, count_requests, plan_run
from enginebay.lab.validity.limits import MIN_CYCLES

if TYPE_CHECKING:
    from enginebay.lab.store.run_reader import Run
    from enginebay.lab.study.engine_speed import EngineSpeed

QUICK_CYCLES = MIN_CYCLES
RUN_BUDGET_S = 45.0  # of a whole run, with the start of its server
MIN_WINDOW_S = 12.0  # measured, however long the server takes to start
MIN_QUICK_REQUESTS = 8
ENOUGH_REQUESTS = 16  # before shorter answers are tried
OUTPUT_TOKENS = (128, 64, 32)  # per answer; the longest that leaves enough requests
QUICK_WARMUP = {"requests": 4}
QUICK_PARITY = {"prompts": 4, "tokens": 16}
_RUN_OVERHEAD_S = 8.0  # load generator processes, idle power, writing the run, stopping the server
_PARITY_SLOWDOWN = 1.5  # with log probabilities
_SLACK = 1.15  # a server is not equally fast in every run


@dataclass(frozen=True, slots=True)
class StudySize:
    """What every run of a sized study sends."""

    requests: int
    output_tokens: int


def shorten_preparation(point: StudyPoint) -> StudyPoint:
    """Return the point with less warm-up and a shorter parity check, where the user set none."""
    warmup = QUICK_WARMUP if point.warmup is None else point.warmup
    return replace(point, warmup=warmup, parity=QUICK_PARITY if point.parity is None else point.parity)


def size_study(speeds: Iterable[EngineSpeed], parity: ParityPlan, lengths: Sequence[int] = OUTPUT_TOKENS) -> StudySize:
    """Return the size at which a run on each engine stays within the budget: the slowest engine decides."""
    known = list(speeds)
    size = StudySize(MIN_QUICK_REQUESTS, lengths[-1])
    for output_tokens in lengths:
        count = min(_count_affordable(speed, output_tokens, parity) for speed in known)
        size = StudySize(max(MIN_QUICK_REQUESTS, min(count, DEFAULT_REQUESTS)), output_tokens)
        if count >= ENOUGH_REQUESTS:
            break
    return size


def _count_affordable(speed: EngineSpeed, output_tokens: int, parity: ParityPlan) -> int:
    unmeasured_s = estimate_run_s(speed, StudySize(0, output_tokens), parity)
    return int(max(RUN_BUDGET_S - unmeasured_s, MIN_WINDOW_S) * speed.requests_per_s(output_tokens) / _SLACK)


def estimate_run_s(speed: EngineSpeed, size: StudySize, parity: ParityPlan) -> float:
    """Return how long a run takes: start, parity, one batch of warm-up, and the measured requests."""
    parity_s = parity.prompts * speed.single_s(parity.tokens) * _PARITY_SLOWDOWN if parity.enabled else 0.0
    measured_s = size.requests / speed.requests_per_s(size.output_tokens)
    return speed.start_s + _RUN_OVERHEAD_S + (parity_s + speed.batch_s(size.output_tokens) + measured_s) * _SLACK


def apply_size(point: StudyPoint, size: StudySize) -> StudyPoint:
    """Return the point with this size. A length that varies stays as it is."""
    lengths = {"output_tokens": size.output_tokens} if isinstance(point.workload.get("output_tokens"), int) else {}
    return replace(point, workload={**point.workload, "requests": size.requests, **lengths})


def estimate_from_runs(point: StudyPoint, runs: Sequence[Run]) -> float | None:
    """Return how long a run of this point takes, by the last run of the same engine, model and lengths. None: unknown."""
    plan = plan_run(point)
    for run in reversed(runs):
        if (run.engine, run.model) == (point.engine, point.model) and _is_comparable(point, plan, run.manifest):
            seconds = _scale_run(plan, run.measures)
            if seconds is not None:
                return seconds
    return None


def _is_comparable(point: StudyPoint, plan: RunPlan, manifest: Mapping[str, Any]) -> bool:
    """Return whether the lengths are the same and, without a rate, what determines the throughput."""
    workload, names = manifest["workload"], ("kind", "input_tokens", "output_tokens")
    same_kind = plan.profile.rate is not None or manifest["profile"].get("kind") == plan.profile.kind
    return same_kind and all(point.workload.get(name) == workload.get(name) for name in names)


def _scale_run(plan: RunPlan, measures: Mapping[str, Any]) -> float | None:
    rate, count = float(measures.get("requests_per_s") or 0.0), count_requests(plan)
    if not rate or count is None:
        return None
    times = [estimate_sending_s(plan), count / rate if plan.profile.rate is None else None]
    window_s = min(seconds for seconds in times if seconds is not None)
    single_s = _get_minimum(measures, "ttft_s") + plan.parity.tokens * _get_minimum(measures, "tpot_s")
    parity_s = plan.parity.prompts * single_s * _PARITY_SLOWDOWN if plan.parity.enabled else 0.0
    start_s = float(measures.get("server_start_s") or 0.0)
    return start_s + _RUN_OVERHEAD_S + plan.warmup_requests / rate + parity_s + window_s


def _get_minimum(measures: Mapping[str, Any], name: str) -> float:
    return float((measures.get(name) or {}).get("minimum") or 0.0)


def estimate_sending_s(plan: RunPlan) -> float | None:
    """Return how long a run sends requests. None: as fast as the server answers."""
    count, rate = count_requests(plan), plan.profile.rate
    times = [plan.limits.duration_s, count / rate if count is not None and rate is not None else None]
    known = [seconds for seconds in times if seconds is not None]
    return min(known) if known else None
