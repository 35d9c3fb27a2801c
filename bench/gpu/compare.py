"""Engines against each other on one GPU, in minutes: studies of the lab in which every engine is started once and kept.

    python -m bench.gpu.compare --runs DIR [--seconds 380] [--gguf FILE] CONFIG...

`bay experiment` starts the server anew for every run, and on a GPU a start takes a minute. Here the engines of all
configurations are loaded at the same time and stay loaded; while one is measured the others have nothing to do. What is
asked, measured, judged and written down is the lab's own: `bay results` and `bay report` read the runs.
One load after the other is measured in all its cycles: first the first load of each configuration, then the second of each. What no
longer fits into the time is left out, and said so. Engines that are not installed are left out too.
Ends when `--seconds` are over, with what there is. Exit code 1: runs are missing, as of a server that did not start.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import Any

from enginebay import environments, models
from enginebay.cli.lab.experiment import plan_engine_points, read_tokenizer
from enginebay.cli.lab.study_progress import StudyProgress
from enginebay.config.layers.layer_sources import parse_assignments
from enginebay.config.loader import load_config
from enginebay.errors import EnginebayError
from enginebay.lab.loadgen.calibration import ClientCeiling, calibrate
from enginebay.lab.loadgen.sender_pool import run_loadgen
from enginebay.lab.loadgen.sender_task import TargetServer, split_into_tasks
from enginebay.lab.store.run_reader import Run, load_run
from enginebay.lab.store.study_plan import Study, StudyStep
from enginebay.lab.study.bay_server import BayServer, encode_config, run_bay_server
from enginebay.lab.study.parity_reference import ParityReferences
from enginebay.lab.study.run_point import StudyContext, run_point
from enginebay.lab.study.run_study import create_study
from enginebay.lab.study.study_point import StudyPoint, point_from_dict
from enginebay.lab.workload.request_records import Request

_ON_THE_PROCESSOR = ("llamacpp",)  # its usual wheel has no CUDA: a wave of its load would hold up the others' start
_FIRST_RUN_S = 25.0  # a guess, before there was one
_VOCABULARY = range(100, 49000)  # ordinary tokens of every tokenizer used here
_USUAL_TOKENS = 128
_SEEDS_APART = 100  # of loads; more than there are cycles, which take the seeds that follow
started = monotonic()


def log(text: str) -> None:
    print(f"{monotonic() - started:6.1f} s  {text}", flush=True)


@dataclass
class StudyWork:
    """A study on its way."""

    study: Study
    points: Sequence[StudyPoint]
    references: ParityReferences
    runs: list[Run] = field(default_factory=list)


@dataclass(frozen=True)
class CycleBlock:
    """All cycles of one load of a study."""

    work: StudyWork
    steps: Sequence[StudyStep]


def order_blocks(works: Sequence[StudyWork]) -> list[CycleBlock]:
    """The first load of each study, then the second of each, and so on. Pure."""
    found: list[tuple[int, CycleBlock]] = []
    for work in works:
        loads: dict[str, list[StudyStep]] = {}
        for step in sorted(work.study.steps, key=lambda step: step.cycle):
            loads.setdefault(_profile_key(work.points[step.point]), []).append(step)
        wanted = list(dict.fromkeys(_profile_key(point) for point in work.points))
        found += [(place, CycleBlock(work, loads[load])) for place, load in enumerate(wanted)]
    return [block for _, block in sorted(found, key=lambda one: one[0])]


def _profile_key(point: StudyPoint) -> str:
    return json.dumps(point.profile, sort_keys=True)


def assign_own_seeds(points: Sequence[StudyPoint]) -> list[StudyPoint]:
    """Each load has prompts of its own: a server that is kept may remember those of the load before. Pure."""
    loads = list(dict.fromkeys(_profile_key(point) for point in points))
    return [replace(point, seed=point.seed + _SEEDS_APART * loads.index(_profile_key(point))) for point in points]


def server_key(point: StudyPoint) -> str:
    """Points with the same key are served by the same server. Pure."""
    return json.dumps([point.engine, point.model, point.serve], sort_keys=True, default=str)


def list_missing_servers(points: Sequence[StudyPoint], up: Collection[str]) -> list[str]:
    """The servers that were planned and are not up, by name. Pure."""
    return list(
        dict.fromkeys(f"{_server_name(point)} ({point.model})" for point in points if server_key(point) not in up)
    )


def _server_name(point: StudyPoint) -> str:
    return point.label.rpartition(" ")[0]  # without the load


def has_time_for(left_s: float, took_s: Mapping[int, float], point: int) -> bool:
    """Whether one more run of a point fits, by what its last took, or else the longest of all. Pure."""
    expected = took_s.get(point) or max(took_s.values(), default=_FIRST_RUN_S)
    return left_s > 1.1 * expected


class ServerPool:
    """One for each engine with its settings, all up at the same time."""

    def __init__(self, points: Sequence[StudyPoint], folder: Path) -> None:
        self._folder = folder
        self.up: dict[str, BayServer] = {}
        self._open: list[AbstractContextManager[BayServer]] = []
        by_key: dict[str, list[StudyPoint]] = {}
        for point in points:
            by_key.setdefault(server_key(point), []).append(point)
        with ThreadPoolExecutor(len(by_key)) as pool:
            for number, (key, own) in enumerate(by_key.items()):
                pool.submit(self._start, number, key, own)

    def _start(self, number: int, key: str, points: Sequence[StudyPoint]) -> None:
        point = points[0]
        name = _server_name(point)
        config = self._folder / f"{number}.yaml"
        config.write_bytes(encode_config(point.serve or {}))
        arguments = [point.model, "--engine", point.engine, "--config", str(config)]
        server = run_bay_server(arguments, self._folder / f"{number}.log")
        try:
            found = server.__enter__()
            self._open.append(server)
            log(f"{name} serves {point.model} after {found.start_s:.0f} s")
            if point.engine not in _ON_THE_PROCESSOR:
                self._warm_up(found, points)
            self.up[key] = found
        except EnginebayError as error:
            log(f"{name}: {error.message}\n     {error.hint}")
        except Exception as error:  # a thread's last words are heard by nobody
            log(f"{name}: {type(error).__name__}: {error}")

    def close(self) -> None:
        """End them all, side by side."""
        with ThreadPoolExecutor(max(1, len(self._open))) as pool:
            for server in self._open:
                pool.submit(server.__exit__, None, None, None)

    def _warm_up(self, server: BayServer, points: Sequence[StudyPoint]) -> None:
        """A wave of each load while others still start: what compiles or records does so now."""
        for point in points:
            began, count = monotonic(), int(point.profile.get("concurrency") or 1)
            requests = _random_requests(
                count, *(_token_count(point, name) for name in ("input_tokens", "output_tokens"))
            )
            target = TargetServer(server.url, point.model, server.headers, dict(point.body), point.timeout_s)
            fired = run_loadgen(split_into_tasks(target, requests, None, count, 1), requests)
            wrong = next((record for record in fired.records if record.error), None)
            log(
                f"{point.label}: warm after {monotonic() - began:.1f} s"
                + (f", {wrong.error} {wrong.detail}" if wrong else "")
            )


def _token_count(point: StudyPoint, name: str) -> int:
    asked = point.workload.get(name)
    return asked if isinstance(asked, int) else _USUAL_TOKENS


def _random_requests(count: int, tokens_in: int, tokens_out: int) -> list[Request]:
    source = random.Random(count)
    return [Request(tuple(source.choices(_VOCABULARY, k=tokens_in)), tokens_in, tokens_out) for _ in range(count)]


def prepare(gguf: Path | None, kinds: Sequence[str]) -> list[str]:
    """The embedded model in the store, dense too, and each engine probed, side by side; gives the engines that are there."""
    if gguf is not None and models.ModelStore().get(models.DEFAULT_MODEL) is None:
        models.ModelStore().pull(f"file:{gguf.absolute()}", models.DEFAULT_MODEL)
    with ThreadPoolExecutor() as pool:
        return [kind for kind, there in zip(kinds, pool.map(_is_available, kinds), strict=True) if there]


def _is_available(kind: str) -> bool:
    try:
        found = environments.find_environment(kind)
        stored = models.ModelStore().get(models.DEFAULT_MODEL)
        if kind == "transformers" and stored is not None:
            models.ensure_dense_weights(stored, found.python)
    except EnginebayError as error:
        log(f"left out: {kind}: {error.message}\n     {error.hint}")
        return False
    log(f"{kind} {found.version}, devices {', '.join(found.probe.devices)}")
    return True


def list_available_engines(config: Path, there: Sequence[str], flags: Mapping[str, Any]) -> list[str]:
    """Of a configuration's engines."""
    return [kind for kind in load_config(config, flags=dict(flags)).list_study_engines() if kind in there]


def plan_study(config: Path, engines: Sequence[str], flags: Mapping[str, Any], folder: Path) -> StudyWork:
    """The study of one configuration, with these engines."""
    points, _, cycles, given = plan_engine_points(config, None, {**flags, "engines": list(engines)}, None, None, False)
    points = assign_own_seeds(points)
    study = create_study(folder, points, cycles, {**given, "servers": "started once, all at the same time"})
    again = [point_from_dict(data) for data in study.points]
    return StudyWork(study, again, ParityReferences(again, {}))


def run_blocks(
    order: Sequence[CycleBlock], servers: ServerPool, folder: Path, ceiling: ClientCeiling, deadline: float
) -> bool:
    """Every run there is time for. False: some were left out."""
    progress = StudyProgress()
    count = sum(len(block.steps) for block in order)
    number, took_s, broken = 0, dict[tuple[str, int], float](), set[tuple[str, int]]()
    late = list[str]()
    for block in order:
        work = block.work
        study = work.study
        bench = StudyContext(
            runs_dir=folder, study_id=study.id, ceiling=ceiling, cycles=max(step.cycle for step in study.steps),
            config=study.config, on_status=progress.show_phase, on_progress=progress.show_live, load_tokenizer=read_tokenizer,
        )  # fmt: skip
        for step in block.steps:
            number += 1
            point, place = work.points[step.point], (study.id, step.point)
            server = servers.up.get(server_key(point))
            if server is None or place in broken:
                continue
            known = {one: seconds for (name, one), seconds in took_s.items() if name == study.id}
            if not has_time_for(deadline - monotonic(), known, step.point):
                late.append(f"{point.label} ({point.model}), cycle {step.cycle}")
                continue  # another one may be faster
            progress.begin_run(step, number, count)
            began = monotonic()
            try:
                run = load_run(run_point(bench, point, step, server, work.references.find(step)))
            except EnginebayError as error:
                broken.add(place)
                progress.end_run(step, error)
                continue
            work.references.add(step, run)
            work.runs.append(run)
            took_s[place] = monotonic() - began
            progress.end_run(step, run)
    if late:
        log(f"no time was left for {len(late)} of {count} runs: {'; '.join(late)}")
    return not broken and not late


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("configs", nargs="+", type=Path, metavar="CONFIG")
    options.add_argument("--runs", type=Path, required=True)
    options.add_argument("--seconds", type=float, default=900.0)
    options.add_argument("--gguf", type=Path, help="the embedded model's file, for a host that reaches no network")
    options.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="over all configurations")
    given = options.parse_args()
    deadline = started + given.seconds
    given.runs.mkdir(parents=True, exist_ok=True)
    flags = parse_assignments(given.set)
    kinds = [kind for config in given.configs for kind in load_config(config, flags=flags).list_study_engines()]
    there = prepare(given.gguf, list(dict.fromkeys(kinds)))
    engines = {config: list_available_engines(config, there, flags) for config in given.configs}
    idle = [config.name for config, kinds in engines.items() if not kinds]
    for name in idle:
        log(f"MISSING: {name}, none of whose engines is there")
    works = [plan_study(config, kinds, flags, given.runs) for config, kinds in engines.items() if kinds]
    if not works:
        return 1
    log("studies: " + ", ".join(f"{work.study.id} ({work.points[0].model})" for work in works))
    ceiling = calibrate()
    log(f"this client can take {ceiling.tokens_per_s:,.0f} streamed tokens/s ({ceiling.processes} processes)")
    logs = Path(tempfile.mkdtemp(prefix="bay-compare-"))
    planned = [point for work in works for point in work.points]
    servers = ServerPool(planned, logs)
    try:
        log(f"{len(servers.up)} servers are up; their logs are in {logs}")
        absent = list_missing_servers(planned, servers.up)
        whole = bool(servers.up) and run_blocks(order_blocks(works), servers, given.runs, ceiling, deadline)
    finally:
        servers.close()
    log(f"{sum(len(work.runs) for work in works)} runs were made")
    for name in absent:
        log(f"MISSING: {name} did not start, and its runs were not made")
    return 0 if whole and not absent and not idle else 1


if __name__ == "__main__":
    os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    sys.exit(main())
