"""What the verdict on a run is made from, gathered from all who saw something of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from enginebay.lab.client.ceiling import Ceiling as ClientCeiling
from enginebay.lab.client.launch import Fired
from enginebay.lab.observing import Observation
from enginebay.lab.points import Plan
from enginebay.lab.profiles.stable import warmup_end, warmup_over
from enginebay.lab.validity.facts import Ceiling, RunFacts, Warmup
from enginebay.lab.workload.make import Workload
from enginebay.lab.workload.spec import Synthetic
from enginebay.meters.energy import Energy

_BIN_S = 1.0  # of the machine's load by others


def facts_of(
    plan: Plan, workload: Workload, fired: Fired, figures: Mapping[str, Any], observation: Observation,
    energies: Mapping[str, Energy], ceiling: ClientCeiling, idle: tuple[float, float],
) -> RunFacts:  # fmt: skip
    profile = plan.profile
    window = (fired.zero, fired.zero + fired.window_s)
    return RunFacts(
        records=fired.records,
        window_s=fired.window_s,
        requests=workload.requests,
        profile=profile.kind,
        rate_per_s=profile.rate,
        concurrency=plan.concurrency,
        scheduled=len(workload.requests) if profile.open_loop else None,
        ceiling=Ceiling(ceiling.requests_per_s, ceiling.tokens_per_s),
        measures=figures,
        percentiles=[one.percent for one in plan.slo.objectives] if plan.slo else None,
        warmup=_warmup(fired),
        shared_prefix=_shares_prefix(plan),
        others_busy=_others(observation, *window),
        samples=observation.evenly(*window),
        energy=energies or None,
        idle_problems=observation.idle_problems(idle) or None,
        idle_gpu_busy=observation.idle_gpu_busy(idle) or None,
    )


def _warmup(fired: Fired) -> Warmup | None:
    """The end-to-end times in order of sending."""
    values = [one.end_s - one.sent_s for one in sorted(fired.records, key=lambda one: one.sent_s)
              if one.error is None and one.end_s is not None]  # fmt: skip
    return Warmup(values, warmup_end(values), warmup_over(values)) if values else None


def _shares_prefix(plan: Plan) -> bool | None:
    workload = plan.workload
    if isinstance(workload, Synthetic):
        return workload.shared_prefix_tokens > 0
    return None


def _others(observation: Observation, start_s: float, end_s: float) -> list[float] | None:
    """Second by second, so that a short disturbance shows."""
    found, place = list[float](), start_s
    while place + _BIN_S <= end_s:
        share = observation.others_busy(place, place + _BIN_S)
        if share is None:
            return None
        found.append(share)
        place += _BIN_S
    return found or None
