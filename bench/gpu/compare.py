"""Compare engines on one GPU within minutes: lab studies that start each engine once and keep it loaded.

    python -m bench.gpu.compare --runs DIR [--seconds 380] [--gguf FILE] CONFIG...

`bay experiment` restarts the server for every run, and on a GPU a start takes a minute. Here the engines of all
configurations stay loaded at the same time; while one is measured the others are idle. Requests, measures, validity checks
and run files are the lab's: `bay results` and `bay report` read the runs.
Each load runs all its cycles before the next: first the first load of each configuration, then the second of each. Runs that no
longer fit into `--seconds` are skipped and listed. Engines that are not installed are skipped too.
Exit code 1: runs are missing, for example because a server did not start.
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
from enginebay.cli.lab.study_planning import plan_engine_points, read_tokenizer
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

_CPU_ENGINES = ("llamacpp",)  # the usual wheel has no CUDA: warming it up would delay the others' start
_FIRST_RUN_S = 25.0  # estimate until a run has been timed
_VOCABULARY = range(100, 49000)  # ordinary tokens of every tokenizer used here
_USUAL_TOKENS = 128
_SEEDS_APART = 100  # between loads; more than there are cycles, each of which adds one to the seed
started = monotonic()


def log(text: str) -> None:
    print(f"{monotonic() - started:6.1f} s  {text}", flush=True)


@dataclass
class StudyWork:
    """A study in progress."""

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
    """Return the first load of each study, then the second of each, and so on. Pure."""
    ranked: list[tuple[int, CycleBlock]] = []
    for work in works:
        loads: dict[str, list[StudyStep]] = {}
        for step in sorted(work.study.steps, key=lambda step: step.cycle):
            loads.setdefault(_profile_key(work.points[step.point]), []).append(step)
        keys = dict.fromkeys(_profile_key(point) for point in work.points)
        ranked += [(rank, CycleBlock(work, loads[key])) for rank, key in enumerate(keys)]
    return [block for _, block in sorted(ranked, key=lambda pair: pair[0])]


def _profile_key(point: StudyPoint) -> str:
    return json.dumps(point.profile, sort_keys=True)


def assign_own_seeds(points: Sequence[StudyPoint]) -> list[StudyPoint]:
    """Give each load its own prompts, so that a prefix cache helps none of them. Pure."""
    loads = list(dict.fromkeys(_profile_key(point) for point in points))
    return [replace(point, seed=point.seed + _SEEDS_APART * loads.index(_profile_key(point))) for point in points]


def server_key(point: StudyPoint) -> str:
    """Return the key of a point's server: points with the same key share one. Pure."""
    return json.dumps([point.engine, point.model, point.serve], sort_keys=True, default=str)


def list_missing_servers(points: Sequence[StudyPoint], up: Collection[str]) -> list[str]:
    """Return the names of planned servers that are not up. Pure."""
    return list(
        dict.fromkeys(f"{_server_name(point)} ({point.model})" for point in points if server_key(point) not in up)
    )


def _server_name(point: StudyPoint) -> str:
    return point.label.rpartition(" ")[0]  # without the load


def has_time_for(left_s: float, took_s: Mapping[int, float], point: int) -> bool:
    """Return whether another run of a point fits, judged by its last run or else by the longest of any point. Pure."""
    expected = took_s.get(point) or max(took_s.values(), default=_FIRST_RUN_S)
    return left_s > 1.1 * expected


class ServerPool:
    """One server per engine and settings, all up at the same time."""

    def __init__(self, points: Sequence[StudyPoint], folder: Path) -> None:
        self._folder = folder
        self.up: dict[str, BayServer] = {}
        self._open: list[AbstractContextManager[BayServer]] = []
        by_key: dict[str, list[StudyPoint]] = {}
        for point in points:
            by_key.setdefault(server_key(point), []).append(point)
        with ThreadPoolExecutor(len(by_key)) as pool:
            for number, (key, shared) in enumerate(by_key.items()):
                pool.submit(self._start, number, key, shared)

    def _start(self, number: int, key: str, points: Sequence[StudyPoint]) -> None:
        point = points[0]
        name = _server_name(point)
        config = self._folder / f"{number}.yaml"
        config.write_bytes(encode_config(point.serve or {}))
        arguments = [point.model, "--engine", point.engine, "--config", str(config)]
        context = run_bay_server(arguments, self._folder / f"{number}.log")
        try:
            server = context.__enter__()
            self._open.append(context)
            log(f"{name} serves {point.model} after {server.start_s:.0f} s")
            if point.engine not in _CPU_ENGINES:
                self._warm_up(server, points)
            self.up[key] = server
        except EnginebayError as error:
            log(f"{name}: {error.message}\n     {error.hint}")
        except Exception as error:  # the pool's futures are never read
            log(f"{name}: {type(error).__name__}: {error}")

    def close(self) -> None:
        """Stop all servers in parallel."""
        with ThreadPoolExecutor(max(1, len(self._open))) as pool:
            for context in self._open:
                pool.submit(context.__exit__, None, None, None)

    def _warm_up(self, server: BayServer, points: Sequence[StudyPoint]) -> None:
        """Send one wave of each load while others still start, so that kernels are compiled and CUDA graphs recorded."""
        for point in points:
            began, count = monotonic(), int(point.profile.get("concurrency") or 1)
            requests = _random_requests(
                count, *(_token_count(point, name) for name in ("input_tokens", "output_tokens"))
            )
            target = TargetServer(server.url, point.model, server.headers, dict(point.body), point.timeout_s)
            result = run_loadgen(split_into_tasks(target, requests, None, count, 1), requests)
            failed = next((record for record in result.records if record.error), None)
            log(
                f"{point.label}: warm after {monotonic() - began:.1f} s"
                + (f", {failed.error} {failed.detail}" if failed else "")
            )


def _token_count(point: StudyPoint, name: str) -> int:
    count = point.workload.get(name)
    return count if isinstance(count, int) else _USUAL_TOKENS


def _random_requests(count: int, tokens_in: int, tokens_out: int) -> list[Request]:
    source = random.Random(count)
    return [Request(tuple(source.choices(_VOCABULARY, k=tokens_in)), tokens_in, tokens_out) for _ in range(count)]


def prepare(gguf: Path | None, kinds: Sequence[str]) -> list[str]:
    """Store the embedded model, dense too, and probe all engines in parallel. Return the available engines."""
    if gguf is not None and models.ModelStore().get(models.DEFAULT_MODEL) is None:
        models.ModelStore().pull(f"file:{gguf.absolute()}", models.DEFAULT_MODEL)
    with ThreadPoolExecutor() as pool:
        return [kind for kind, available in zip(kinds, pool.map(_is_available, kinds), strict=True) if available]


def _is_available(kind: str) -> bool:
    try:
        environment = environments.find_environment(kind)
        stored = models.ModelStore().get(models.DEFAULT_MODEL)
        if kind == "transformers" and stored is not None:
            models.ensure_dense_weights(stored, environment.python)
    except EnginebayError as error:
        log(f"skipped: {kind}: {error.message}\n     {error.hint}")
        return False
    log(f"{kind} {environment.version}, devices {', '.join(environment.probe.devices)}")
    return True


def list_available_engines(config: Path, available: Sequence[str], flags: Mapping[str, Any]) -> list[str]:
    """Return the engines of a configuration that are available."""
    return [kind for kind in load_config(config, flags=dict(flags)).list_study_engines() if kind in available]


def plan_study(config: Path, engines: Sequence[str], flags: Mapping[str, Any], folder: Path) -> StudyWork:
    """Create the study of one configuration with these engines."""
    points, _, cycles, settings = plan_engine_points(
        config, None, {**flags, "engines": list(engines)}, None, None, False
    )
    points = assign_own_seeds(points)
    study = create_study(folder, points, cycles, {**settings, "servers": "started once, all at the same time"})
    stored = [point_from_dict(data) for data in study.points]
    return StudyWork(study, stored, ParityReferences(stored, {}))


def run_blocks(
    order: Sequence[CycleBlock], servers: ServerPool, folder: Path, ceiling: ClientCeiling, deadline: float
) -> bool:
    """Run everything there is time for. Return False if runs were skipped or failed."""
    progress = StudyProgress()
    count = sum(len(block.steps) for block in order)
    number, took_s, broken = 0, dict[tuple[str, int], float](), set[tuple[str, int]]()
    skipped = list[str]()
    for block in order:
        work = block.work
        study = work.study
        context = StudyContext(
            runs_dir=folder, study_id=study.id, ceiling=ceiling, cycles=max(step.cycle for step in study.steps),
            config=study.config, on_status=progress.show_phase, on_progress=progress.show_live, load_tokenizer=read_tokenizer,
        )  # fmt: skip
        for step in block.steps:
            number += 1
            point, key = work.points[step.point], (study.id, step.point)
            server = servers.up.get(server_key(point))
            if server is None or key in broken:
                continue
            known = {number: seconds for (study_id, number), seconds in took_s.items() if study_id == study.id}
            if not has_time_for(deadline - monotonic(), known, step.point):
                skipped.append(f"{point.label} ({point.model}), cycle {step.cycle}")
                continue  # a later point may be faster
            progress.begin_run(step, number, count)
            began = monotonic()
            try:
                run = load_run(run_point(context, point, step, server, work.references.find(step)))
            except EnginebayError as error:
                broken.add(key)
                progress.end_run(step, error)
                continue
            work.references.add(step, run)
            work.runs.append(run)
            took_s[key] = monotonic() - began
            progress.end_run(step, run)
    if skipped:
        log(f"no time left for {len(skipped)} of {count} runs: {'; '.join(skipped)}")
    return not broken and not skipped


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("configs", nargs="+", type=Path, metavar="CONFIG")
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=900.0)
    parser.add_argument("--gguf", type=Path, help="file of the embedded model, for a host without network")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="override in all configurations")
    args = parser.parse_args()
    deadline = started + args.seconds
    args.runs.mkdir(parents=True, exist_ok=True)
    flags = parse_assignments(args.set)
    kinds = [kind for config in args.configs for kind in load_config(config, flags=flags).list_study_engines()]
    available = prepare(args.gguf, list(dict.fromkeys(kinds)))
    engines = {config: list_available_engines(config, available, flags) for config in args.configs}
    idle = [config.name for config, kinds in engines.items() if not kinds]
    for name in idle:
        log(f"MISSING: {name}: none of its engines is installed")
    works = [plan_study(config, kinds, flags, args.runs) for config, kinds in engines.items() if kinds]
    if not works:
        return 1
    log("studies: " + ", ".join(f"{work.study.id} ({work.points[0].model})" for work in works))
    ceiling = calibrate()
    log(f"load generator ceiling: {ceiling.tokens_per_s:,.0f} streamed tokens/s ({ceiling.processes} processes)")
    logs = Path(tempfile.mkdtemp(prefix="bay-compare-"))
    planned = [point for work in works for point in work.points]
    servers = ServerPool(planned, logs)
    try:
        log(f"{len(servers.up)} servers are up; their logs are in {logs}")
        missing = list_missing_servers(planned, servers.up)
        complete = bool(servers.up) and run_blocks(order_blocks(works), servers, args.runs, ceiling, deadline)
    finally:
        servers.close()
    log(f"{sum(len(work.runs) for work in works)} runs completed")
    for name in missing:
        log(f"MISSING: {name} did not start, its runs were skipped")
    return 0 if complete and not missing and not idle else 1


if __name__ == "__main__":
    os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    sys.exit(main())
