"""Verdicts that are certain before anything runs, by the rules that give them afterwards. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from enginebay.errors import ConfigError
from enginebay.lab.conduct import how_many
from enginebay.lab.highest import Wish
from enginebay.lab.points import Plan, Point, read_plan
from enginebay.lab.profiles.schedule import check_sends
from enginebay.lab.validity import limits
from enginebay.lab.validity.answer_checks import enough_answers, enough_cycles
from enginebay.lab.validity.verdict import Reason
from enginebay.lab.workload.make import no_tokenizer

OF_LIMITS = "limits.requests (in --profile: requests)"
OF_WORKLOAD = "workload.requests (or num_input_prompts)"


def foreseen(points: Sequence[Point], cycles: int) -> list[str]:
    """One line for each verdict that every run of a study, or of some of its points, will have: why, and what to change."""
    labels: dict[str, list[str]] = {}
    for point in points:
        for line in _of_point(read_plan(point)):
            labels.setdefault(line, []).append(point.label)
    found = [line if len(those) == len(points) else f"{line} (of {', '.join(those)})" for line, those in labels.items()]
    few = enough_cycles(cycles)
    if isinstance(few, Reason):
        found.append(_line(few, f"give --cycles {limits.MIN_CYCLES} or more"))
    return found


def check_sending(points: Sequence[Point], cycles: int) -> None:
    """Raises `ConfigError` where a run of a study would send nothing at all."""
    for point in points:
        plan = read_plan(point)
        count = how_many(plan)
        if count is None:  # only its file tells, and no time ends it
            continue
        for cycle in range(1, cycles + 1):
            check_sends(plan.profile, plan.limits, count, point.seeds(cycle)["arrivals"])


def check_tokenizers(points: Sequence[Point]) -> None:
    """Raises `ConfigError` where prompts are to be written and nobody knows the model's tokens."""
    if any(point.tokenizer is None and point.workload["kind"] != "jsonl" for point in points):
        raise no_tokenizer()


def foreseen_of_search(wish: Wish) -> list[str]:
    """What `bay choose` can say: its runs may be longer than the least that is asked for, so only which will not do."""
    few = enough_answers([one.percent for one in wish.limits.objectives], wish.requests)
    if not isinstance(few, Reason) or few.limit is None:
        return []
    return [
        f"known beforehand: a run whose rate sends fewer than {few.limit:g} requests in its time will be {few.severity}: "
        f"{few.code}; give --requests {few.limit:g}"
    ]


def _of_point(plan: Plan) -> Iterator[str]:
    most = _most(plan)
    if plan.slo is None or most is None:
        return
    few = enough_answers([one.percent for one in plan.slo.objectives], most)
    if isinstance(few, Reason) and few.limit is not None:
        yield _line(few, _more_requests(plan, int(few.limit)))


def _most(plan: Plan) -> int | None:
    """No run sends more requests than this; None: only the workload's file tells."""
    try:
        return how_many(plan)
    except ConfigError:  # it cannot be run, which `check_sending` says
        return None


def _more_requests(plan: Plan, least: int) -> str:
    """What lets a run have so many requests: its time may be too short for them, whatever number is asked for."""
    numbers = {OF_LIMITS: plan.limits.requests, OF_WORKLOAD: plan.workload.requests}
    low = [name for name, number in numbers.items() if number is not None and number < least]
    wanted = replace(
        plan,
        limits=replace(plan.limits, requests=least),
        workload=replace(plan.workload, requests=None if plan.workload.requests is None else least),
    )
    if (_most(wanted) or 0) >= least:
        change = f"raise {' and '.join(low or [OF_LIMITS])} to {least}"
    elif low:
        change = f"raise {' and '.join(low)} to {least}, and the rate or the duration"
    else:
        change = f"raise the rate or the duration, to {least} requests"
    return f"{change}, or take a lower percentile into the slo"


def _line(reason: Reason, change: str) -> str:
    return f"known beforehand: {reason.severity}: {reason.code}: {reason.message}; {change}"
