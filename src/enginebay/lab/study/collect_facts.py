"""Collect the facts that a run is judged by: from the load generator, the server and the meters. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from enginebay.lab.loadgen.calibration import ClientCeiling
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
    """What the study knows about a run."""

    ceiling: ClientCeiling
    cycles: int | None = None  # of the study; None: its runs do not repeat each other
    reference: ParityReference | None = None  # whose answers this point's are compared with
    varied: Sequence[str] = ()  # names of the engine settings that the study varies


def collect_run_facts(
    plan: RunPlan, measurement: RunMeasurement, figures: Mapping[str, Any], readings: MachineReadings,
    energies: Mapping[str, WindowEnergy], context: RunContext,
) -> RunFacts:  # fmt: skip
    """Return what `judge_run` needs."""
    profile, result, requests = plan.profile, measurement.loadgen, measurement.workload.requests
    window, idle = measurement.window, measurement.idle_window
    return RunFacts(
        records=result.records,
        window_s=result.window_s,
        requests=requests,
        profile=profile.kind,
        rate_per_s=profile.rate,
        concurrency=plan.concurrency,
        scheduled=_count_scheduled(plan, result, len(requests)),
        ceiling=CeilingFacts(context.ceiling.requests_per_s, context.ceiling.tokens_per_s),
        client_core_share=result.core_share,
        measures=figures,
        percentiles=[objective.percent for objective in plan.slo.objectives] if plan.slo else None,
        warmup=_find_warmup(result),
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


def _count_scheduled(plan: RunPlan, result: LoadgenResult, prepared: int) -> int | None:
    """Return how many requests were due. A run that stops once stable skips the rest of its schedule on purpose."""
    if not plan.profile.open_loop:
        return None
    if not plan.limits.until_stable:
        return prepared
    return max((record.index + 1 for record in result.records), default=None)


def _find_warmup(result: LoadgenResult) -> WarmupFacts | None:
    """Look for a warm-up in the end-to-end latencies, in order of sending."""
    values = [record.end_s - record.sent_s for record in sorted(result.records, key=lambda record: record.sent_s)
              if record.error is None and record.end_s is not None]  # fmt: skip
    return WarmupFacts(values, find_warmup_end(values), is_warmup_over(values)) if values else None


def _shares_prefix(plan: RunPlan, workload: Workload) -> bool | None:
    """Return whether prompts share a prefix by design. None: unknown, as in a file whose lines share most of their input."""
    spec = plan.workload
    if isinstance(spec, SyntheticSpec):
        return spec.shared_prefix_tokens > 0
    return None if workload.shared is None or workload.shared > limits.CACHED_SHARE[1] else False


def _mean_server_in_flight(measurement: RunMeasurement) -> float | None:
    """Return request-seconds per second. No request was running at either reading of the server's counter."""
    window_s = measurement.loadgen.window_s
    return None if measurement.server_request_s is None or not window_s else measurement.server_request_s / window_s
