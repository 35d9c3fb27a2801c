"""What the verdict on a run is made from, gathered from all who saw something of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from enginebay.lab.loadgen.calibration import ClientCeiling as ClientCeiling
from enginebay.lab.loadgen.sender_pool import LoadgenResult
from enginebay.lab.profiles.stability import find_warmup_end, is_warmup_over
from enginebay.lab.study.machine_monitor import MachineReadings
from enginebay.lab.study.parity_reference import ParityReference, compare_with_reference
from enginebay.lab.study.run_measurement import RunMeasurement
from enginebay.lab.study.study_point import RunPlan
from enginebay.lab.validity import limits
from enginebay.lab.validity.run_facts import CeilingFacts, RunFacts, WarmupFacts
from enginebay.lab.workload.workload_builder import Workload
from enginebay.lab.workload.workload_spec import JsonlSpec, SyntheticSpec
from enginebay.meters.analysis.window_energy import WindowEnergy


@dataclass(frozen=True, slots=True)
class RunContext:
    """What is known of a run from outside of it."""

    ceiling: ClientCeiling
    cycles: int | None = None  # of the study; None: it is no study of cycles
    reference: ParityReference | None = None  # the point that this one is compared with
    varied: Sequence[str] = ()  # settings of the engine, by name: what the study is about


def collect_run_facts(
    plan: RunPlan, measurement: RunMeasurement, figures: Mapping[str, Any], readings: MachineReadings,
    energies: Mapping[str, WindowEnergy], context: RunContext,
) -> RunFacts:  # fmt: skip
    profile, fired, requests = plan.profile, measurement.sent, measurement.workload.requests
    window, idle = measurement.window, measurement.idle_window
    return RunFacts(
        records=fired.records,
        window_s=fired.window_s,
        requests=requests,
        profile=profile.kind,
        rate_per_s=profile.rate,
        concurrency=plan.concurrency,
        scheduled=_count_scheduled(plan, fired, len(requests)),
        ceiling=CeilingFacts(context.ceiling.requests_per_s, context.ceiling.tokens_per_s),
        client_core_share=fired.core_share,
        measures=figures,
        percentiles=[one.percent for one in plan.slo.objectives] if plan.slo else None,
        warmup=_find_warmup(fired),
        shared_prefix=_shares_prefix(plan, measurement.workload),
        shared_share=measurement.workload.shared or 0.0,
        from_file=isinstance(plan.workload, JsonlSpec),
        parity=compare_with_reference(context.reference, measurement.parity_answers),
        parity_with=context.reference.label if context.reference else "",
        cycles=context.cycles,
        engine_warnings=measurement.server_facts.warnings if measurement.server_facts.is_enginebay else None,
        varied=context.varied,
        others_busy=readings.measure_others_busy(*window),
        idle_gpu_busy=readings.mean_idle_gpu_utilisation(idle) or None,
        server_in_flight=_mean_server_in_flight(measurement),
        samples=readings.thin_bursts(*window),
        energy=energies or None,
        idle_problems=readings.find_idle_problems(idle) or None,
    )


def _count_scheduled(plan: RunPlan, sent: LoadgenResult, prepared: int) -> int | None:
    """How many were due. A run that ends when it is stable leaves the rest of its schedule out on purpose."""
    if not plan.profile.open_loop:
        return None
    if not plan.limits.until_stable:
        return prepared
    return max((record.index + 1 for record in sent.records), default=None)


def _find_warmup(sent: LoadgenResult) -> WarmupFacts | None:
    """The end-to-end times in order of sending."""
    values = [one.end_s - one.sent_s for one in sorted(sent.records, key=lambda one: one.sent_s)
              if one.error is None and one.end_s is not None]  # fmt: skip
    return WarmupFacts(values, find_warmup_end(values), is_warmup_over(values)) if values else None


def _shares_prefix(plan: RunPlan, made: Workload) -> bool | None:
    """Of a file that shares most of its input nobody can say what its own part is."""
    workload = plan.workload
    if isinstance(workload, SyntheticSpec):
        return workload.shared_prefix_tokens > 0
    return None if made.shared is None or made.shared > limits.CACHED_SHARE[1] else False


def _mean_server_in_flight(measurement: RunMeasurement) -> float | None:
    """Request-seconds per second: nothing was running before the window, and all had ended when it was read again."""
    window_s = measurement.sent.window_s
    return None if measurement.server_request_s is None or not window_s else measurement.server_request_s / window_s
