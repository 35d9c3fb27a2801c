"""One run: the server is there, the prompts are made, it is warmed up, measured, judged and written down."""

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
from enginebay.lab.profiles.send_schedule import count_requests_needed, draw_send_times
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
from enginebay.lab.study.study_point import RunPlan, StudyPoint, plan_run
from enginebay.lab.validity.judge import judge_run
from enginebay.lab.workload.chat_rendering import can_send_chats, make_chat_renderer
from enginebay.lab.workload.request_records import Request
from enginebay.lab.workload.workload_builder import Workload, build_unmeasured_requests, build_workload, hash_requests
from enginebay.lab.workload.workload_spec import ChatRender, TextTokenizer

DEFAULT_REQUESTS = 100
OPEN_LOOP_CONNECTIONS = 64  # ready before the window of an open loop; more are opened as they are needed
IDLE_S = 1.0  # watched with the engine loaded and nothing asked
IDLE_WITH_ENERGY_S = 3.0
SETTLE_S = 1.5  # a GPU tells its utilisation as a mean over up to a second, which must not reach into the warm-up
_TOKEN_BURST_WINDOW_S = 10.0  # the tokens of a burst come over some time, unlike its requests
_WARMUP_SEED_OFFSET = 7919  # what warms up is never what is measured


@dataclass(frozen=True, slots=True)
class StudyContext:
    """What all runs of a study share."""

    runs_dir: Path
    study_id: str
    ceiling: ClientCeiling
    cycles: int | None = None  # of the study; None: its runs do not repeat each other
    config: Mapping[str, Any] = field(default_factory=dict)  # as given
    headers: Mapping[str, str] = field(default_factory=dict)  # for a server that runs
    admin_headers: Mapping[str, str] = field(default_factory=dict)  # for its meters, where those are others
    on_status: Callable[[str], None] = lambda text: None
    on_progress: Callable[[LoadgenProgress, int], None] = lambda live, requests: None
    load_tokenizer: Callable[[str], TextTokenizer] | None = None  # reads the one at a path


def run_point(
    context: StudyContext,
    point: StudyPoint,
    step: StudyStep,
    server: BayServer | None = None,
    reference: ParityReference | None = None,
) -> Path:
    """Make one run of a point; gives its folder. Raises what makes it impossible.

    `server`: one that was started for this point's engine and serves several runs. `reference`: the point of the same
    study whose answers to the parity prompts this one's are held against.
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
        with monitor_machine(target, pid, context.admin_headers) as observation:
            measured = _measure_run(context, point, plan, step, target, facts, writer, observation, start_s)
        around = RunContext(context.ceiling, context.cycles, reference, point.varied)
        return _write_run(point, plan, measured, observation, around, writer, target)


@contextmanager
def _open_server(
    context: StudyContext, point: StudyPoint, writer: RunWriter, server: BayServer | None
) -> Iterator[tuple[TargetServer, int | None, float | None]]:
    """The server to measure: the one that runs, or one of our own that lives as long as the run."""
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
    with tempfile.TemporaryDirectory(prefix="bay-lab-") as place:
        arguments = [point.model, "--engine", point.engine, "--config", str(config)]
        with run_bay_server(arguments, Path(place) / "log") as child:
            yield TargetServer(child.url, point.model, child.headers, body, point.timeout_s), child.pid, child.start_s


def _measure_run(
    context: StudyContext, point: StudyPoint, plan: RunPlan, step: StudyStep, target: TargetServer, facts: ServerFacts, writer: RunWriter,
    observation: MachineReadings, start_s: float | None,
) -> RunMeasurement:  # fmt: skip
    seeds = point.derive_seeds(step.cycle)
    context.on_status("writing prompts")
    workload = _build_workload(context, point, plan, seeds["requests"], facts)
    requests = workload.requests
    answers: Sequence[ParityAnswer] = ()
    unanswered: str | None = None
    if plan.parity.enabled:
        context.on_status("asking the parity prompts")
        # Always those of the first cycle, so that runs of all cycles can be compared with each other.
        asked = _build_unmeasured(context, point, plan, point.seed, facts, plan.parity.prompts)
        try:
            answers = ask_parity_prompts(target, asked, plan.parity)
            writer.write_parity({"answers": answers, "tokens": plan.parity.tokens})
        except ServerUnusable as problem:  # the load shows how much of it fails, and the verdict says so
            unanswered = problem.message
            context.on_status(f"no parity: {unanswered}")
    if plan.warmup_requests:
        _warm_up(context, point, plan, seeds["requests"], facts, target)
    if _has_gpu(observation):
        sleep(SETTLE_S)
    idle_from = monotonic()
    sleep(IDLE_WITH_ENERGY_S if observation.reads_energy else IDLE_S)
    idle = (idle_from, monotonic())
    times = draw_send_times(plan.profile, plan.limits, seeds["arrivals"], requests)
    requests = requests if times is None else requests[: len(times)]
    context.on_status(f"measuring {len(requests)} requests" if plan.limits.duration_s is None else "measuring")
    before_s = fetch_request_seconds(target)
    fired = _send_workload(context, plan, target, requests, times, observation.expect_window)
    server_s = subtract_readings(before_s, fetch_request_seconds(target))
    sent = replace(workload, requests=tuple(requests))
    return RunMeasurement(facts, sent, fired, idle, start_s, answers, server_s, unanswered)


def _has_gpu(observation: MachineReadings) -> bool:
    """Whether a GPU is watched, while the observation lasts."""
    return observation.sampler is not None and any(name.startswith("gpu:") for name in observation.sampler.latest())


def _build_workload(context: StudyContext, point: StudyPoint, plan: RunPlan, seed: int, facts: ServerFacts) -> Workload:
    """What is measured. As far as a file has more, its last lines are left to parity and warm-up."""
    held_back = plan.warmup_requests + (plan.parity.prompts if plan.parity.enabled else 0)
    tokenizer, render = _load_tokenizer(context, point, plan)
    return build_workload(
        plan.workload, tokenizer, count_requests(plan), seed,
        context_length=facts.context_length, render=render, held_back=held_back,
    )  # fmt: skip


def _build_unmeasured(
    context: StudyContext, point: StudyPoint, plan: RunPlan, seed: int, facts: ServerFacts, count: int, before: int = 0
) -> tuple[Request, ...]:
    """Up to `count` requests that are not measured."""
    tokenizer, render = _load_tokenizer(context, point, plan)
    return build_unmeasured_requests(
        plan.workload, tokenizer, count, seed, before=before, context_length=facts.context_length, render=render
    )


def _load_tokenizer(
    context: StudyContext, point: StudyPoint, plan: RunPlan
) -> tuple[TextTokenizer | None, ChatRender | None]:
    """The model's tokenizer, and its chat template where chats are sent; None where they are not known."""
    tokenizer = context.load_tokenizer(point.tokenizer) if context.load_tokenizer and point.tokenizer else None
    return tokenizer, make_chat_renderer(point.tokenizer, tokenizer) if can_send_chats(plan.workload) else None


def count_requests(plan: RunPlan) -> int | None:
    """How many requests a run prepares; None: as many as the workload has. Pure."""
    needed, asked = count_requests_needed(plan.profile, plan.limits), plan.workload.requests
    if needed is not None:
        return needed if asked is None else min(needed, asked)
    if asked is not None or plan.workload.kind != "synthetic":
        return asked
    return plan.limits.max_requests if plan.limits.duration_s is not None else DEFAULT_REQUESTS


def _warm_up(
    context: StudyContext, point: StudyPoint, plan: RunPlan, seed: int, facts: ServerFacts, target: TargetServer
) -> None:
    asked = plan.parity.prompts if plan.parity.enabled else 0
    requests = _build_unmeasured(
        context, point, plan, seed + _WARMUP_SEED_OFFSET, facts, plan.warmup_requests, before=asked
    )
    if not requests:
        return
    context.on_status(f"warming up with {len(requests)} requests")
    orders = split_into_tasks(target, requests, None, plan.concurrency or min(8, len(requests)), 1)
    run_loadgen(orders, requests)


def _send_workload(
    context: StudyContext, plan: RunPlan, target: TargetServer, requests: tuple[Request, ...], times: list[float] | None,
    on_window_soon: Callable[[], None],
) -> LoadgenResult:  # fmt: skip
    profile = plan.profile
    check_ceiling(context.ceiling, profile, times, _mean_output_tokens(requests))
    connections = plan.concurrency or (len(requests) if profile.kind == "offline" else OPEN_LOOP_CONNECTIONS)
    stop_s = plan.limits.duration_s if times is None else None
    orders = split_into_tasks(target, requests, times, connections, context.ceiling.processes, stop_sending_s=stop_s)
    stops = _make_stability_check(plan.limits) if plan.limits.until_stable else lambda live: False

    def watch(live: LoadgenProgress) -> bool:
        context.on_progress(live, len(requests))
        return stops(live)

    return run_loadgen(orders, requests, watch, on_window_soon)


def check_ceiling(
    ceiling: ClientCeiling, profile: Profile, times: Sequence[float] | None, output_tokens: float
) -> None:
    """Raises `ConfigError` when a load is more than the client can be trusted with."""
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
    """A watch that says when the figures stand still."""
    look_at = [limits.min_requests]

    def stable(live: LoadgenProgress) -> bool:
        if len(live.ends) < look_at[0]:
            return False
        look_at[0] = next_check_count(len(live.ends))
        latencies = [end_s - sent_s for _, sent_s, end_s in sorted(live.ends, key=lambda one: one[2])]
        return check_stability(latencies, limits.relative_width).stable

    return stable


def _write_run(
    point: StudyPoint, plan: RunPlan, measured: RunMeasurement, observation: MachineReadings, context: RunContext,
    writer: RunWriter, target: TargetServer,
) -> Path:  # fmt: skip
    fired, facts, window = measured.sent, measured.server_facts, measured.window
    energies = observation.measure_energies(*window, measured.idle_window)
    phases = split_energy_by_phase(observation.samples, energies, fired.records, fired.zero, fired.window_s)
    absent = observation.absence_reasons()
    if measured.parity_error is not None:
        absent["parity"] = measured.parity_error
    figures = compute_measures(
        fired.records, fired.tokens, fired.window_s, plan.slo, sum_by_kind(energies), point.price_per_hour, phases=phases,
        absent=absent,
    )  # fmt: skip
    figures |= observation.peak_memory(*window) | summarize_gpus(observation.samples, *window)
    if observation.clock_error_s is not None:
        figures["meters_clock_error_s"] = observation.clock_error_s
    if facts.memory_bytes is not None:
        figures["model_memory_bytes"] = facts.memory_bytes
    if measured.server_start_s is not None:
        figures |= {"server_start_s": measured.server_start_s, "load_s": facts.load_s}
    verdict = judge_run(collect_run_facts(plan, measured, figures, observation, energies, context))
    writer.add_records(fired.records, fired.tokens)
    writer.add_samples(observation.samples, fired.zero)
    writer.update(
        engine={"kind": facts.kind or point.engine, "version": facts.version},
        effective=dict(facts.effective),
        environment=describe_environment(list_gpu_names(observation), observation.remote_host),
        workload={
            **point.workload,
            "sha256": hash_requests(measured.workload.requests),
            "requests": len(measured.workload.requests),
            "notes": list(measured.workload.notes),
        },
        server={"url": target.url, "ours": facts.is_enginebay, "facts": facts.model_card, "asked": facts.requested, "warnings": [*facts.warnings, *point.warnings]},
        window_s=fired.window_s,
        absent=absent,
    )  # fmt: skip
    return writer.finish(figures, verdict.to_dict())
