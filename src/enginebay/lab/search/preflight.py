"""Check a study or search before it runs, and predict verdicts that are certain by the same rules. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from enginebay.errors import ConfigError
from enginebay.lab.profiles.send_schedule import check_sends_any
from enginebay.lab.study.study_point import RunPlan, StudyPoint, count_requests, plan_run
from enginebay.lab.validity import limits
from enginebay.lab.validity.answer_checks import check_answer_count, check_cycle_count
from enginebay.lab.validity.verdict import Reason
from enginebay.lab.workload.workload_spec import missing_tokenizer_error

if TYPE_CHECKING:
    from enginebay.lab.search.rate_search import SearchGoal

LIMITS_REQUESTS_KEY = "limits.requests (in --profile: requests)"
WORKLOAD_REQUESTS_KEY = "workload.requests (or num_input_prompts)"


def predict_study_reasons(points: Sequence[StudyPoint], cycles: int) -> list[str]:
    """Return one line per verdict that the runs of all or some points are certain to get: why, and what to change."""
    labels: dict[str, list[str]] = {}
    for point in points:
        for line in _predict_point_reasons(plan_run(point)):
            labels.setdefault(line, []).append(point.label)
    lines = [line if len(of) == len(points) else f"{line} (of {', '.join(of)})" for line, of in labels.items()]
    reason = check_cycle_count(cycles)
    if isinstance(reason, Reason):
        lines.append(_format_reason(reason, f"use --cycles {limits.MIN_CYCLES} or more"))
    return lines


def check_requests_are_sent(points: Sequence[StudyPoint], cycles: int) -> None:
    """Raise `ConfigError` if a run would send no request."""
    for point in points:
        plan = plan_run(point)
        count = count_requests(plan)
        if count is None:  # only the workload's file tells, and no duration limits it
            continue
        for cycle in range(1, cycles + 1):
            check_sends_any(plan.profile, plan.limits, count, point.derive_seeds(cycle)["arrivals"])


def check_tokenizers(points: Sequence[StudyPoint]) -> None:
    """Raise `ConfigError` if prompts must be generated and the model's tokenizer is unknown."""
    if any(point.tokenizer is None and point.workload["kind"] != "jsonl" for point in points):
        raise missing_tokenizer_error()


def predict_search_reasons(goal: SearchGoal) -> list[str]:
    """Return which runs of `bay choose` will not be valid: a run may have more than the minimum of requests."""
    reason = check_answer_count([objective.percent for objective in goal.parsed_slo.objectives], goal.requests)
    if not isinstance(reason, Reason) or reason.limit is None:
        return []
    return [
        f"predicted: a run with fewer than {reason.limit:g} requests will be {reason.severity}: {reason.code}; "
        f"use --requests {reason.limit:g}"
    ]


def _predict_point_reasons(plan: RunPlan) -> Iterator[str]:
    count = _max_requests(plan)
    if plan.slo is None or count is None:
        return
    reason = check_answer_count([objective.percent for objective in plan.slo.objectives], count)
    if isinstance(reason, Reason) and reason.limit is not None:
        yield _format_reason(reason, _suggest_more_requests(plan, int(reason.limit)))


def _max_requests(plan: RunPlan) -> int | None:
    """Return the most requests that a run can send. None: only the workload's file tells."""
    try:
        return count_requests(plan)
    except ConfigError:  # it cannot run, which `check_requests_are_sent` reports
        return None


def _suggest_more_requests(plan: RunPlan, least: int) -> str:
    """Say how a run gets at least `least` requests: a higher limit may not be enough if the duration is too short."""
    counts = {LIMITS_REQUESTS_KEY: plan.limits.requests, WORKLOAD_REQUESTS_KEY: plan.workload.requests}
    too_low = [name for name, count in counts.items() if count is not None and count < least]
    raised = replace(
        plan,
        limits=replace(plan.limits, requests=least),
        workload=replace(plan.workload, requests=None if plan.workload.requests is None else least),
    )
    if (_max_requests(raised) or 0) >= least:
        change = f"raise {' and '.join(too_low or [LIMITS_REQUESTS_KEY])} to {least}"
    elif too_low:
        change = f"raise {' and '.join(too_low)} to {least}, and the rate or the duration"
    else:
        change = f"raise the rate or the duration to get {least} requests"
    return f"{change}, or use a lower percentile in the slo"


def _format_reason(reason: Reason, change: str) -> str:
    return f"predicted: {reason.severity}: {reason.code}: {reason.message}; {change}"
