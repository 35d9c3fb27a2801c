"""Verdicts that are certain before anything runs, by the rules that give them afterwards. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from enginebay.errors import ConfigError
from enginebay.lab.profiles.send_schedule import check_sends_any
from enginebay.lab.search.rate_search import SearchGoal
from enginebay.lab.study.run_point import count_requests
from enginebay.lab.study.study_point import RunPlan, StudyPoint, plan_run
from enginebay.lab.validity import limits
from enginebay.lab.validity.answer_checks import check_answer_count, check_cycle_count
from enginebay.lab.validity.verdict import Reason
from enginebay.lab.workload.workload_builder import missing_tokenizer_error

LIMITS_REQUESTS_KEY = "limits.requests (in --profile: requests)"
WORKLOAD_REQUESTS_KEY = "workload.requests (or num_input_prompts)"


def predict_study_reasons(points: Sequence[StudyPoint], cycles: int) -> list[str]:
    """One line for each verdict that every run of a study, or of some of its points, will have: why, and what to change."""
    labels: dict[str, list[str]] = {}
    for point in points:
        for line in _predict_point_reasons(plan_run(point)):
            labels.setdefault(line, []).append(point.label)
    found = [line if len(those) == len(points) else f"{line} (of {', '.join(those)})" for line, those in labels.items()]
    few = check_cycle_count(cycles)
    if isinstance(few, Reason):
        found.append(_format_reason(few, f"give --cycles {limits.MIN_CYCLES} or more"))
    return found


def check_requests_are_sent(points: Sequence[StudyPoint], cycles: int) -> None:
    """Raises `ConfigError` where a run of a study would send nothing at all."""
    for point in points:
        plan = plan_run(point)
        count = count_requests(plan)
        if count is None:  # only its file tells, and no time ends it
            continue
        for cycle in range(1, cycles + 1):
            check_sends_any(plan.profile, plan.limits, count, point.derive_seeds(cycle)["arrivals"])


def check_tokenizers(points: Sequence[StudyPoint]) -> None:
    """Raises `ConfigError` where prompts are to be written and nobody knows the model's tokens."""
    if any(point.tokenizer is None and point.workload["kind"] != "jsonl" for point in points):
        raise missing_tokenizer_error()


def predict_search_reasons(goal: SearchGoal) -> list[str]:
    """What `bay choose` can say: its runs may be longer than the least that is asked for, so only which will not do."""
    few = check_answer_count([one.percent for one in goal.parsed_slo.objectives], goal.requests)
    if not isinstance(few, Reason) or few.limit is None:
        return []
    return [
        f"known beforehand: a run whose rate sends fewer than {few.limit:g} requests in its time will be {few.severity}: "
        f"{few.code}; give --requests {few.limit:g}"
    ]


def _predict_point_reasons(plan: RunPlan) -> Iterator[str]:
    most = _max_requests(plan)
    if plan.slo is None or most is None:
        return
    few = check_answer_count([one.percent for one in plan.slo.objectives], most)
    if isinstance(few, Reason) and few.limit is not None:
        yield _format_reason(few, _suggest_more_requests(plan, int(few.limit)))


def _max_requests(plan: RunPlan) -> int | None:
    """No run sends more requests than this; None: only the workload's file tells."""
    try:
        return count_requests(plan)
    except ConfigError:  # it cannot be run, which `check_sending` says
        return None


def _suggest_more_requests(plan: RunPlan, least: int) -> str:
    """What lets a run have so many requests: its time may be too short for them, whatever number is asked for."""
    numbers = {LIMITS_REQUESTS_KEY: plan.limits.requests, WORKLOAD_REQUESTS_KEY: plan.workload.requests}
    low = [name for name, number in numbers.items() if number is not None and number < least]
    wanted = replace(
        plan,
        limits=replace(plan.limits, requests=least),
        workload=replace(plan.workload, requests=None if plan.workload.requests is None else least),
    )
    if (_max_requests(wanted) or 0) >= least:
        change = f"raise {' and '.join(low or [LIMITS_REQUESTS_KEY])} to {least}"
    elif low:
        change = f"raise {' and '.join(low)} to {least}, and the rate or the duration"
    else:
        change = f"raise the rate or the duration, to {least} requests"
    return f"{change}, or take a lower percentile into the slo"


def _format_reason(reason: Reason, change: str) -> str:
    return f"known beforehand: {reason.severity}: {reason.code}: {reason.message}; {change}"
