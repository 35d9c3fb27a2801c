"""Verdicts that are certain before anything runs, by the rules that give them afterwards. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from enginebay.errors import ConfigError
from enginebay.lab.conduct import how_many
from enginebay.lab.highest import Wish
from enginebay.lab.points import Plan, Point, read_plan
from enginebay.lab.validity import limits
from enginebay.lab.validity.answer_checks import enough_answers, enough_cycles
from enginebay.lab.validity.verdict import Reason

RAISE = "raise limits.requests (in --profile: requests)"


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
    except ConfigError:  # this point cannot be run: it is said when its turn comes, and the others run
        return None


def _more_requests(plan: Plan, least: int) -> str:
    """What lets a run have so many requests: its time may be too short for them, whatever `limits.requests` says."""
    given = plan.limits.requests
    if (_most(replace(plan, limits=replace(plan.limits, requests=least))) or 0) >= least:
        change = f"{RAISE} to {least}"
    elif given is not None and given < least:
        change = f"{RAISE} to {least}, and the rate or the duration"
    else:
        change = f"raise the rate or the duration, to {least} requests"
    return f"{change}, or take a lower percentile into the slo"


def _line(reason: Reason, change: str) -> str:
    return f"known beforehand: {reason.severity}: {reason.code}: {reason.message}; {change}"
