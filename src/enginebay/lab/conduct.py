"""One run: the server is there, the prompts are made, it is warmed up, measured, judged and written down."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from enginebay.lab.api import ServerUnusable
from enginebay.lab.asking import ServerFacts, parity_answers, read_facts
from enginebay.lab.client.ceiling import Ceiling
from enginebay.lab.client.launch import Fired, Live, fire
from enginebay.lab.client.order import Target, share_out
from enginebay.lab.judging import Around, facts_of
from enginebay.lab.measured import Measured
from enginebay.lab.measures.measures import measure
from enginebay.lab.observing import Observation, by_kind, device_figures, gpu_names, observed
from enginebay.lab.parity import Answer
from enginebay.lab.phases import energy_phases
from enginebay.lab.points import Plan, Point, read_plan
from enginebay.lab.profiles.arrivals import peak_rate
from enginebay.lab.profiles.profile import Limits, Profile, Ramp, Trace, label, profile_data
from enginebay.lab.profiles.schedule import requests_needed, send_times
from enginebay.lab.profiles.stable import next_look, stability
from enginebay.lab.references import Reference
from enginebay.lab.requests import Request
from enginebay.lab.runs.environment import environment
from enginebay.lab.runs.folders import now, run_id
from enginebay.lab.runs.manifest import new_manifest
from enginebay.lab.runs.plain import plain
from enginebay.lab.runs.study import Step
from enginebay.lab.runs.writer import RunWriter
from enginebay.lab.served import Served, config_bytes, served
from enginebay.lab.server_count import request_seconds, spent_s
from enginebay.lab.validity.judge import judge
from enginebay.lab.workload.chats import chat_render, sends_chats
from enginebay.lab.workload.make import Workload, make_others, make_workload, requests_sha256
from enginebay.lab.workload.spec import Render, TextTokenizer

USUAL_REQUESTS = 100
OPEN_CONNECTIONS = 64  # ready before the window of an open loop; more are opened as they are needed
IDLE_S = 1.0  # watched with the engine loaded and nothing asked
IDLE_WITH_ENERGY_S = 3.0
SETTLE_S = 1.5  # a GPU tells its utilisation as a mean over up to a second, which must not reach into the warm-up
_ANSWERED_S = 10.0  # the tokens of a burst come over some time, unlike its requests
_WARMUP_SEED = 7919  # what warms up is never what is measured


@dataclass(frozen=True, slots=True)
class Bench:
    """What all runs of a study share."""

    runs: Path
    study_id: str
    ceiling: Ceiling
    cycles: int | None = None  # of the study; None: its runs do not repeat each other
    config: Mapping[str, Any] = field(default_factory=dict)  # as given
    headers: Mapping[str, str] = field(default_factory=dict)  # for a server that runs
    admin_headers: Mapping[str, str] = field(default_factory=dict)  # for its meters, where those are others
    say: Callable[[str], None] = lambda text: None
    live: Callable[[Live, int], None] = lambda live, requests: None
    tokenizer: Callable[[str], TextTokenizer] | None = None  # reads the one at a path


def conduct(
    bench: Bench, point: Point, step: Step, server: Served | None = None, reference: Reference | None = None
) -> Path:
    """Make one run of a point; gives its folder. Raises what makes it impossible.

    `server`: one that was started for this point's engine and serves several runs. `reference`: the point of the same
    study whose answers to the parity prompts this one's are held against.
    """
    plan = read_plan(point)
    created = now()
    manifest = new_manifest(
        run_id(created, point.engine, point.model, label(plan.profile), step.cycle),
        engine={"kind": point.engine},
        model={"name": point.model, **point.source},
        study={"id": bench.study_id, "point": step.point, "cycle": step.cycle, "label": point.label},
        config=plain(point.as_config()),
        profile=profile_data(plan.profile),
        seeds=point.seeds(step.cycle),
    )
    with RunWriter(bench.runs, manifest) as writer, _server(bench, point, writer, server) as (target, pid, start_s):
        facts = read_facts(target)
        target = replace(target, ours=facts.ours)
        with observed(target, pid, bench.admin_headers) as observation:
            measured = _measure(bench, point, plan, step, target, facts, writer, observation, start_s)
        around = Around(bench.ceiling, bench.cycles, reference, point.varied)
        return _write(point, plan, measured, observation, around, writer, target)


@contextmanager
def _server(
    bench: Bench, point: Point, writer: RunWriter, server: Served | None
) -> Iterator[tuple[Target, int | None, float | None]]:
    """The server to measure: the one that runs, or one of our own that lives as long as the run."""
    body = dict(point.body)
    if server is not None:
        yield Target(server.url, point.model, server.headers, body, point.timeout_s), server.pid, server.start_s
        return
    if point.serve is None:
        assert point.url is not None
        yield Target(point.url, point.model, bench.headers, body, point.timeout_s), None, None
        return
    bench.say(f"starting {point.engine}")
    config = writer.keep("serve.yaml", config_bytes(point.serve))
    with tempfile.TemporaryDirectory(prefix="bay-lab-") as place:
        arguments = [point.model, "--engine", point.engine, "--config", str(config)]
        with served(arguments, Path(place) / "log") as child:
            yield Target(child.url, point.model, child.headers, body, point.timeout_s), child.pid, child.start_s


def _measure(
    bench: Bench, point: Point, plan: Plan, step: Step, target: Target, facts: ServerFacts, writer: RunWriter,
    observation: Observation, start_s: float | None,
) -> Measured:  # fmt: skip
    seeds = point.seeds(step.cycle)
    bench.say("writing prompts")
    workload = _workload(bench, point, plan, seeds["requests"], facts)
    requests = workload.requests
    answers: Sequence[Answer] = ()
    unanswered: str | None = None
    if plan.parity.enabled:
        bench.say("asking the parity prompts")
        # Always those of the first cycle, so that runs of all cycles can be compared with each other.
        asked = _others(bench, point, plan, point.seed, facts, plan.parity.prompts)
        try:
            answers = parity_answers(target, asked, plan.parity)
            writer.parity({"answers": answers, "tokens": plan.parity.tokens})
        except ServerUnusable as problem:  # the load shows how much of it fails, and the verdict says so
            unanswered = problem.message
            bench.say(f"no parity: {unanswered}")
    if plan.warmup_requests:
        _warm_up(bench, point, plan, seeds["requests"], facts, target)
    if _has_gpu(observation):
        sleep(SETTLE_S)
    idle_from = monotonic()
    sleep(IDLE_WITH_ENERGY_S if observation.reads_energy else IDLE_S)
    idle = (idle_from, monotonic())
    times = send_times(plan.profile, plan.limits, seeds["arrivals"], requests)
    requests = requests if times is None else requests[: len(times)]
    bench.say(f"measuring {len(requests)} requests" if plan.limits.duration_s is None else "measuring")
    before_s = request_seconds(target)
    fired = _fire(bench, plan, target, requests, times, observation.window_soon)
    server_s = spent_s(before_s, request_seconds(target))
    sent = replace(workload, requests=tuple(requests))
    return Measured(facts, sent, fired, idle, start_s, answers, server_s, unanswered)


def _has_gpu(observation: Observation) -> bool:
    """Whether a GPU is watched, while the observation lasts."""
    return observation.sampler is not None and any(name.startswith("gpu:") for name in observation.sampler.latest())


def _workload(bench: Bench, point: Point, plan: Plan, seed: int, facts: ServerFacts) -> Workload:
    """What is measured. As far as a file has more, its last lines are left to parity and warm-up."""
    held_back = plan.warmup_requests + (plan.parity.prompts if plan.parity.enabled else 0)
    tokenizer, render = _tokenizer(bench, point, plan)
    return make_workload(
        plan.workload, tokenizer, how_many(plan), seed,
        context_length=facts.context_length, render=render, held_back=held_back,
    )  # fmt: skip


def _others(
    bench: Bench, point: Point, plan: Plan, seed: int, facts: ServerFacts, count: int, before: int = 0
) -> tuple[Request, ...]:
    """Up to `count` requests that are not measured."""
    tokenizer, render = _tokenizer(bench, point, plan)
    return make_others(
        plan.workload, tokenizer, count, seed, before=before, context_length=facts.context_length, render=render
    )


def _tokenizer(bench: Bench, point: Point, plan: Plan) -> tuple[TextTokenizer | None, Render | None]:
    """The model's tokenizer, and its chat template where chats are sent; None where they are not known."""
    tokenizer = bench.tokenizer(point.tokenizer) if bench.tokenizer and point.tokenizer else None
    return tokenizer, chat_render(point.tokenizer, tokenizer) if sends_chats(plan.workload) else None


def how_many(plan: Plan) -> int | None:
    """How many requests a run prepares; None: as many as the workload has. Pure."""
    needed, asked = requests_needed(plan.profile, plan.limits), plan.workload.requests
    if needed is not None:
        return needed if asked is None else min(needed, asked)
    if asked is not None or plan.workload.kind != "synthetic":
        return asked
    return plan.limits.max_requests if plan.limits.duration_s is not None else USUAL_REQUESTS


def _warm_up(bench: Bench, point: Point, plan: Plan, seed: int, facts: ServerFacts, target: Target) -> None:
    asked = plan.parity.prompts if plan.parity.enabled else 0
    requests = _others(bench, point, plan, seed + _WARMUP_SEED, facts, plan.warmup_requests, before=asked)
    if not requests:
        return
    bench.say(f"warming up with {len(requests)} requests")
    orders = share_out(target, requests, None, plan.concurrency or min(8, len(requests)), 1)
    fire(orders, requests)


def _fire(
    bench: Bench, plan: Plan, target: Target, requests: tuple[Request, ...], times: list[float] | None,
    soon: Callable[[], None],
) -> Fired:  # fmt: skip
    profile = plan.profile
    check_ceiling(bench.ceiling, profile, times, _mean_output(requests))
    connections = plan.concurrency or (len(requests) if profile.kind == "offline" else OPEN_CONNECTIONS)
    stop_s = plan.limits.duration_s if times is None else None
    orders = share_out(target, requests, times, connections, bench.ceiling.processes, stop_sending_s=stop_s)
    stops = _until_stable(plan.limits) if plan.limits.until_stable else lambda live: False

    def watch(live: Live) -> bool:
        bench.live(live, len(requests))
        return stops(live)

    return fire(orders, requests, watch, soon)


def check_ceiling(ceiling: Ceiling, profile: Profile, times: Sequence[float] | None, output_tokens: float) -> None:
    """Raises `ConfigError` when a load is more than the client can be trusted with."""
    if isinstance(profile, Trace):
        ceiling.check(peak_rate(times or ()), 1.0)
        ceiling.check(peak_rate(times or (), _ANSWERED_S), output_tokens)
        return
    rate = max(profile.from_rate, profile.to_rate) if isinstance(profile, Ramp) else profile.rate
    if rate is not None:
        ceiling.check(rate, output_tokens)


def _mean_output(requests: tuple[Request, ...]) -> float:
    known = [request.output_tokens for request in requests if request.output_tokens is not None]
    return sum(known) / len(known) if known else 1.0


def _until_stable(limits: Limits) -> Callable[[Live], bool]:
    """A watch that says when the figures stand still."""
    look_at = [limits.min_requests]

    def stable(live: Live) -> bool:
        if len(live.ends) < look_at[0]:
            return False
        look_at[0] = next_look(len(live.ends))
        latencies = [end_s - sent_s for _, sent_s, end_s in sorted(live.ends, key=lambda one: one[2])]
        return stability(latencies, limits.relative_width).stable

    return stable


def _write(
    point: Point, plan: Plan, measured: Measured, observation: Observation, around: Around,
    writer: RunWriter, target: Target,
) -> Path:  # fmt: skip
    fired, facts, window = measured.fired, measured.facts, measured.window
    energies = observation.energies(*window, measured.idle)
    phases = energy_phases(observation.samples, energies, fired.records, fired.zero, fired.window_s)
    absent = observation.reasons()
    if measured.unanswered is not None:
        absent["parity"] = measured.unanswered
    figures = measure(
        fired.records, fired.tokens, fired.window_s, plan.slo, by_kind(energies), point.price_per_hour, phases=phases,
        absent=absent,
    )  # fmt: skip
    figures |= observation.memory(*window) | device_figures(observation.samples, *window)
    if observation.clock_error_s is not None:
        figures["meters_clock_error_s"] = observation.clock_error_s
    if facts.memory_bytes is not None:
        figures["model_memory_bytes"] = facts.memory_bytes
    if measured.start_s is not None:
        figures |= {"server_start_s": measured.start_s, "load_s": facts.load_s}
    verdict = judge(facts_of(plan, measured, figures, observation, energies, around))
    writer.records(fired.records, fired.tokens)
    writer.samples(observation.samples, fired.zero)
    writer.update(
        engine={"kind": facts.kind or point.engine, "version": facts.version},
        effective=dict(facts.effective),
        environment=environment(gpu_names(observation), observation.elsewhere),
        workload={
            **point.workload,
            "sha256": requests_sha256(measured.workload.requests),
            "requests": len(measured.workload.requests),
            "notes": list(measured.workload.notes),
        },
        server={"url": target.url, "ours": facts.ours, "facts": facts.card, "asked": facts.asked, "warnings": [*facts.warnings, *point.warnings]},
        window_s=fired.window_s,
        absent=absent,
    )  # fmt: skip
    return writer.finish(figures, verdict.as_dict())
