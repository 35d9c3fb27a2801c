"""Make one run of a point: start or reach the server, warm it up, measure it, judge the run and store it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from enginebay.lab.loadgen.calibration import ClientCeiling
from enginebay.lab.loadgen.sender_pool import LoadgenProgress, LoadgenResult, run_loadgen
from enginebay.lab.loadgen.sender_task import TargetServer, split_into_tasks
from enginebay.lab.measures.energy_phases import split_energy_by_phase
from enginebay.lab.measures.parity import ParityAnswer
from enginebay.lab.measures.run_measures import compute_measures
from enginebay.lab.profiles.arrivals import find_peak_rate
from enginebay.lab.profiles.profile import Profile, RampProfile, RunLimits, TraceProfile, profile_label, profile_to_dict
from enginebay.lab.profiles.send_schedule import draw_send_times
from enginebay.lab.profiles.stability import check_stability, next_check_count
from enginebay.lab.store.canonical_json import to_plain
from enginebay.lab.store.run_environment import describe_environment
from enginebay.lab.store.run_folders import make_run_id, utc_now
from enginebay.lab.store.run_manifest import new_manifest
from enginebay.lab.store.run_writer import RunWriter
from enginebay.lab.store.study_plan import StudyStep
from enginebay.lab.study.bay_server import BayServer, encode_config, run_bay_server
from enginebay.lab.study.collect_facts import RunContext, collect_run_facts
from enginebay.lab.study.machine_monitor import (
    MachineReadings,
    list_gpu_names,
    monitor_machine,
    sum_by_kind,
    summarize_gpus,
)
from enginebay.lab.study.parity_reference import ParityReference
from enginebay.lab.study.run_measurement import RunMeasurement
from enginebay.lab.study.server_api import ServerUnusable
from enginebay.lab.study.server_facts import (
    ServerFacts,
    ask_parity_prompts,
    fetch_request_seconds,
    fetch_server_facts,
    subtract_readings,
)
from enginebay.lab.study.study_point import RunPlan, StudyPoint, count_requests, plan_run
from enginebay.lab.validity.judge import judge_run
from enginebay.lab.workload.chat_rendering import can_send_chats, make_chat_renderer
from enginebay.lab.workload.request_records import Request
from enginebay.lab.workload.workload_builder import Workload, build_unmeasured_requests, build_workload, hash_requests
from enginebay.lab.workload.workload_spec import ChatRender, TextTokenizer

OPEN_LOOP_CONNECTIONS = 64  # opened before an open loop's window; more follow on demand
IDLE_S = 1.0  # idle window, with the engine loaded
IDLE_WITH_ENERGY_S = 3.0
SETTLE_S = 1.5  # a GPU reports its utilisation as a mean over up to 1 s, which must not include the warm-up
_TOKEN_BURST_WINDOW_S = 10.0  # the tokens of a burst of requests arrive over a longer time
_WARMUP_SEED_OFFSET = 7919  # warm-up prompts differ from the measured ones

TokenizerLoader = Callable[[str], TextTokenizer]  # from a path


@dataclass(frozen=True, slots=True)
class StudyContext:
    """What all runs of a study share."""

    runs_dir: Path
    study_id: str
    ceiling: ClientCeiling
    cycles: int | None = None  # of the study; None: its runs do not repeat each other
    config: Mapping[str, Any] = field(default_factory=dict)  # as the user wrote it
    headers: Mapping[str, str] = field(default_factory=dict)  # for a server that is already running
    admin_headers: Mapping[str, str] = field(default_factory=dict)  # for its meters, if they need another key
    on_status: Callable[[str], None] = lambda text: None
    on_progress: Callable[[LoadgenProgress, int], None] = lambda live, requests: None
    load_tokenizer: TokenizerLoader | None = None


def run_point(
    context: StudyContext,
    point: StudyPoint,
    step: StudyStep,
    server: BayServer | None = None,
    reference: ParityReference | None = None,
) -> Path:
    """Make one run of a point and return its folder. Raise `EnginebayError` if it cannot be run.

    `server`: already started for this point's engine, shared by several runs. `reference`: the point of the same study
    that this point's parity answers are compared with.
    """
    plan = plan_run(point)
    created = utc_now()
    manifest = new_manifest(
        make_run_id(created, point.engine, point.model, profile_label(plan.profile), step.cycle),
        engine={"kind": point.engine},
        model={"name": point.model, **point.source},
        study={"id": context.study_id, "point": step.point, "cycle": step.cycle, "label": point.label},
        config=to_plain(point.to_config()),
        profile=profile_to_dict(plan.profile),
        seeds=point.derive_seeds(step.cycle),
    )
    with (
        RunWriter(context.runs_dir, manifest) as writer,
        _open_server(context, point, writer, server) as (target, pid, start_s),
    ):
        facts = fetch_server_facts(target)
        target = replace(target, is_enginebay=facts.is_enginebay)
        with monitor_machine(target, pid, context.admin_headers) as readings:
            measurement = _measure_run(context, point, plan, step, target, facts, writer, readings, start_s)
        run_context = RunContext(context.ceiling, context.cycles, reference, point.varied)
        return _write_run(point, plan, measurement, readings, run_context, writer, target)


@contextmanager
def _open_server(
    context: StudyContext, point: StudyPoint, writer: RunWriter, server: BayServer | None
) -> Iterator[tuple[TargetServer, int | None, float | None]]:
    """Yield the server to measure, its pid and start time: the one that runs, or a child that lives as long as the run."""
    body = dict(point.body)
    if server is not None:
        yield TargetServer(server.url, point.model, server.headers, body, point.timeout_s), server.pid, server.start_s
        return
    if point.serve is None:
        assert point.url is not None
        yield TargetServer(point.url, point.model, context.headers, body, point.timeout_s), None, None
        return
    context.on_status(f"starting {point.engine}")
    config = writer.write_file("serve.yaml", encode_config(point.serve))
    with tempfile.TemporaryDirectory(prefix="bay-lab-") as folder:
        arguments = [point.model, "--engine", point.engine, "--config", str(config)]
        with run_bay_server(arguments, Path(folder) / "log") as child:
            yield TargetServer(child.url, point.model, child.headers, body, point.timeout_s), child.pid, child.start_s


def _measure_run(
    context: StudyContext, point: StudyPoint, plan: RunPlan, step: StudyStep, target: TargetServer, facts: ServerFacts, writer: RunWriter,
    readings: MachineReadings, start_s: float | None,
) -> RunMeasurement:  # fmt: skip
    seeds = point.derive_seeds(step.cycle)
    context.on_status("writing prompts")
    workload = _build_workload(context, point, plan, seeds["requests"], facts)
    requests = workload.requests
    answers: Sequence[ParityAnswer] = ()
    parity_error: str | None = None
    if plan.parity.enabled:
        context.on_status("sending the parity prompts")
        # Always the prompts of the first cycle, so that runs of all cycles are comparable.
        prompts = build_unmeasured(context.load_tokenizer, point, plan, point.seed, facts, plan.parity.prompts)
        try:
            answers = ask_parity_prompts(target, prompts, plan.parity)
            writer.write_parity({"answers": answers, "tokens": plan.parity.tokens})
        except ServerUnusable as error:  # the measured requests show how much fails, and the verdict reports it
            parity_error = error.message
            context.on_status(f"no parity check: {parity_error}")
    if plan.warmup_requests:
        _warm_up(context, point, plan, seeds["requests"], facts, target)
    if _has_gpu(readings):
        sleep(SETTLE_S)
    idle_start_s = monotonic()
    sleep(IDLE_WITH_ENERGY_S if readings.reads_energy else IDLE_S)
    idle = (idle_start_s, monotonic())
    times = draw_send_times(plan.profile, plan.limits, seeds["arrivals"], requests)
    requests = requests if times is None else requests[: len(times)]
    context.on_status(f"measuring {len(requests)} requests" if plan.limits.duration_s is None else "measuring")
    request_s_before = fetch_request_seconds(target)
    result = _send_workload(context, plan, target, requests, times, readings.expect_window)
    server_request_s = subtract_readings(request_s_before, fetch_request_seconds(target))
    sent = replace(workload, requests=tuple(requests))
    return RunMeasurement(facts, sent, result, idle, start_s, answers, server_request_s, parity_error)


def _has_gpu(readings: MachineReadings) -> bool:
    """Return whether a GPU is being sampled."""
    return readings.sampler is not None and any(device.startswith("gpu:") for device in readings.sampler.latest())


def _build_workload(context: StudyContext, point: StudyPoint, plan: RunPlan, seed: int, facts: ServerFacts) -> Workload:
    """Build the measured requests. The last lines of a longer file are left to parity and warm-up."""
    held_back = plan.warmup_requests + (plan.parity.prompts if plan.parity.enabled else 0)
    tokenizer, render = _load_tokenizer(context.load_tokenizer, point, plan)
    return build_workload(
        plan.workload, tokenizer, count_requests(plan), seed,
        context_length=facts.context_length, render=render, held_back=held_back,
    )  # fmt: skip


def build_unmeasured(
    load_tokenizer: TokenizerLoader | None, point: StudyPoint, plan: RunPlan, seed: int, facts: ServerFacts, count: int,
    before: int = 0,
) -> tuple[Request, ...]:  # fmt: skip
    """Build up to `count` requests that are not measured."""
    tokenizer, render = _load_tokenizer(load_tokenizer, point, plan)
    return build_unmeasured_requests(
        plan.workload, tokenizer, count, seed, before=before, context_length=facts.context_length, render=render
    )


def _load_tokenizer(
    load_tokenizer: TokenizerLoader | None, point: StudyPoint, plan: RunPlan
) -> tuple[TextTokenizer | None, ChatRender | None]:
    """Return the model's tokenizer, and its chat renderer if chats are sent. None: unknown."""
    tokenizer = load_tokenizer(point.tokenizer) if load_tokenizer and point.tokenizer else None
    return tokenizer, make_chat_renderer(point.tokenizer, tokenizer) if can_send_chats(plan.workload) else None


def _warm_up(
    context: StudyContext, point: StudyPoint, plan: RunPlan, seed: int, facts: ServerFacts, target: TargetServer
) -> None:
    parity_prompts = plan.parity.prompts if plan.parity.enabled else 0
    requests = build_unmeasured(
        context.load_tokenizer,
        point,
        plan,
        seed + _WARMUP_SEED_OFFSET,
        facts,
        plan.warmup_requests,
        before=parity_prompts,
    )
    if not requests:
        return
    context.on_status(f"warming up with {len(requests)} requests")
    tasks = split_into_tasks(target, requests, None, plan.concurrency or min(8, len(requests)), 1)
    run_loadgen(tasks, requests)


def _send_workload(
    context: StudyContext, plan: RunPlan, target: TargetServer, requests: tuple[Request, ...], times: list[float] | None,
    on_window_soon: Callable[[], None],
) -> LoadgenResult:  # fmt: skip
    profile = plan.profile
    check_ceiling(context.ceiling, profile, times, _mean_output_tokens(requests))
    connections = plan.concurrency or (len(requests) if profile.kind == "offline" else OPEN_LOOP_CONNECTIONS)
    stop_s = plan.limits.duration_s if times is None else None
    tasks = split_into_tasks(
        target, requests, times, connections, context.ceiling.processes, stop_sending_s=stop_s,
        queues=profile.kind == "offline",
    )  # fmt: skip
    is_stable = _make_stability_check(plan.limits) if plan.limits.until_stable else lambda progress: False

    def watch(progress: LoadgenProgress) -> bool:
        context.on_progress(progress, len(requests))
        return is_stable(progress)

    return run_loadgen(tasks, requests, watch, on_window_soon)


def check_ceiling(
    ceiling: ClientCeiling, profile: Profile, times: Sequence[float] | None, output_tokens: float
) -> None:
    """Raise `ConfigError` if the send rate is above what the client can reliably measure."""
    if isinstance(profile, TraceProfile):
        ceiling.check(find_peak_rate(times or ()), 1.0)
        ceiling.check(find_peak_rate(times or (), _TOKEN_BURST_WINDOW_S), output_tokens)
        return
    rate = max(profile.from_rate, profile.to_rate) if isinstance(profile, RampProfile) else profile.rate
    if rate is not None:
        ceiling.check(rate, output_tokens)


def _mean_output_tokens(requests: tuple[Request, ...]) -> float:
    known = [request.output_tokens for request in requests if request.output_tokens is not None]
    return sum(known) / len(known) if known else 1.0


def _make_stability_check(limits: RunLimits) -> Callable[[LoadgenProgress], bool]:
    """Return a stop condition that holds once the latencies are stable."""
    next_check = [limits.min_requests]

    def is_stable(progress: LoadgenProgress) -> bool:
        if len(progress.ends) < next_check[0]:
            return False
        next_check[0] = next_check_count(len(progress.ends))
        latencies = [end_s - sent_s for _, sent_s, end_s in sorted(progress.ends, key=lambda end: end[2])]
        return check_stability(latencies, limits.relative_width).stable

    return is_stable


def _write_run(
    point: StudyPoint, plan: RunPlan, measurement: RunMeasurement, readings: MachineReadings, context: RunContext,
    writer: RunWriter, target: TargetServer,
) -> Path:  # fmt: skip
    result, facts, window = measurement.loadgen, measurement.server_facts, measurement.window
    energies = readings.measure_energies(*window, measurement.idle_window)
    phases = split_energy_by_phase(readings.samples, energies, result.records, result.zero, result.window_s)
    absent = readings.absence_reasons()
    if measurement.parity_error is not None:
        absent["parity"] = measurement.parity_error
    figures = compute_measures(
        result.records, result.tokens, result.window_s, plan.slo, sum_by_kind(energies), point.price_per_hour, phases=phases,
        absent=absent,
    )  # fmt: skip
    figures |= readings.peak_memory(*window) | summarize_gpus(readings.samples, *window)
    if readings.clock_error_s is not None:
        figures["meters_clock_error_s"] = readings.clock_error_s
    if facts.memory_bytes is not None:
        figures["model_memory_bytes"] = facts.memory_bytes
    if measurement.server_start_s is not None:
        figures |= {"server_start_s": measurement.server_start_s, "load_s": facts.load_s}
    verdict = judge_run(collect_run_facts(plan, measurement, figures, readings, energies, context))
    writer.add_records(result.records, result.tokens)
    writer.add_samples(readings.samples, result.zero)
    writer.update(
        engine={"kind": facts.kind or point.engine, "version": facts.version},
        effective=dict(facts.effective),
        environment=describe_environment(list_gpu_names(readings), readings.remote_host),
        workload={
            **point.workload,
            "sha256": hash_requests(measurement.workload.requests),
            "requests": len(measurement.workload.requests),
            "notes": list(measurement.workload.notes),
        },
        server={"url": target.url, "ours": facts.is_enginebay, "facts": facts.model_card, "asked": facts.requested, "warnings": [*facts.warnings, *point.warnings]},
        window_s=result.window_s,
        absent=absent,
    )  # fmt: skip
    return writer.finish(figures, verdict.to_dict())
