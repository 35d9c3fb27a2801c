"""What the verdict on a run is made from, gathered from all who saw something of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from enginebay.lab.client.ceiling import Ceiling as ClientCeiling
from enginebay.lab.client.launch import Fired
from enginebay.lab.measured import Measured
from enginebay.lab.observing import Observation
from enginebay.lab.points import Plan
from enginebay.lab.profiles.stable import warmup_end, warmup_over
from enginebay.lab.references import Reference, parity_with
from enginebay.lab.validity import limits
from enginebay.lab.validity.facts import Ceiling, RunFacts, Warmup
from enginebay.lab.workload.make import Workload
from enginebay.lab.workload.spec import Jsonl, Synthetic
from enginebay.meters.energy import Energy


@dataclass(frozen=True, slots=True)
class Around:
    """What is known of a run from outside of it."""

    ceiling: ClientCeiling
    cycles: int | None = None  # of the study; None: it is no study of cycles
    reference: Reference | None = None  # the point that this one is compared with
    varied: Sequence[str] = ()  # settings of the engine, by name: what the study is about


def facts_of(
    plan: Plan, measured: Measured, figures: Mapping[str, Any], observation: Observation,
    energies: Mapping[str, Energy], around: Around,
) -> RunFacts:  # fmt: skip
    profile, fired, requests = plan.profile, measured.fired, measured.workload.requests
    window, idle = measured.window, measured.idle
    return RunFacts(
        records=fired.records,
        window_s=fired.window_s,
        requests=requests,
        profile=profile.kind,
        rate_per_s=profile.rate,
        concurrency=plan.concurrency,
        scheduled=_scheduled(plan, fired, len(requests)),
        ceiling=Ceiling(around.ceiling.requests_per_s, around.ceiling.tokens_per_s),
        client_core_share=fired.core_share,
        measures=figures,
        percentiles=[one.percent for one in plan.slo.objectives] if plan.slo else None,
        warmup=_warmup(fired),
        shared_prefix=_shares_prefix(plan, measured.workload),
        shared_share=measured.workload.shared or 0.0,
        from_file=isinstance(plan.workload, Jsonl),
        parity=parity_with(around.reference, measured.answers),
        parity_with=around.reference.label if around.reference else "",
        cycles=around.cycles,
        engine_warnings=measured.facts.warnings if measured.facts.ours else None,
        varied=around.varied,
        others_busy=observation.others_busy(*window),
        idle_gpu_busy=observation.idle_gpu_busy(idle) or None,
        server_in_flight=_server_in_flight(measured),
        samples=observation.evenly(*window),
        energy=energies or None,
        idle_problems=observation.idle_problems(idle) or None,
    )


def _scheduled(plan: Plan, fired: Fired, prepared: int) -> int | None:
    """How many were due. A run that ends when it is stable leaves the rest of its schedule out on purpose."""
    if not plan.profile.open_loop:
        return None
    if not plan.limits.until_stable:
        return prepared
    return max((record.index + 1 for record in fired.records), default=None)


def _warmup(fired: Fired) -> Warmup | None:
    """The end-to-end times in order of sending."""
    values = [one.end_s - one.sent_s for one in sorted(fired.records, key=lambda one: one.sent_s)
              if one.error is None and one.end_s is not None]  # fmt: skip
    return Warmup(values, warmup_end(values), warmup_over(values)) if values else None


def _shares_prefix(plan: Plan, made: Workload) -> bool | None:
    """Of a file that shares most of its input nobody can say what its own part is."""
    workload = plan.workload
    if isinstance(workload, Synthetic):
        return workload.shared_prefix_tokens > 0
    return None if made.shared is None or made.shared > limits.CACHED_SHARE[1] else False


def _server_in_flight(measured: Measured) -> float | None:
    """Request-seconds per second: nothing was running before the window, and all had ended when it was read again."""
    window_s = measured.fired.window_s
    return None if measured.server_s is None or not window_s else measured.server_s / window_s
