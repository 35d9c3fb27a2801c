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

from enginebay.cli.experiment import of_engines, read_tokenizer
from enginebay.cli.experiment_progress import StudyProgress
from enginebay.config.load import load_config
from enginebay.config.sources import assignment_flags
from enginebay.errors import EnginebayError
from enginebay.fleet import environments, models
from enginebay.lab.client.ceiling import Ceiling, calibrate
from enginebay.lab.client.launch import fire
from enginebay.lab.client.order import Target, share_out
from enginebay.lab.conduct import Bench, conduct
from enginebay.lab.points import Point, point_of
from enginebay.lab.references import References
from enginebay.lab.requests import Request
from enginebay.lab.runs.reader import Run, load_run
from enginebay.lab.runs.study import Step, Study
from enginebay.lab.served import Served, config_bytes, served
from enginebay.lab.studies import new_study

_ON_THE_PROCESSOR = ("llamacpp",)  # its usual wheel has no CUDA: a wave of its load would hold up the others' start
_FIRST_RUN_S = 25.0  # a guess, before there was one
_VOCABULARY = range(100, 49000)  # ordinary tokens of every tokenizer used here
_USUAL_TOKENS = 128
_SEEDS_APART = 100  # of loads; more than there are cycles, which take the seeds that follow
started = monotonic()


def say(text: str) -> None:
    print(f"{monotonic() - started:6.1f} s  {text}", flush=True)


@dataclass
class Work:
    """A study on its way."""

    study: Study
    points: Sequence[Point]
    references: References
    runs: list[Run] = field(default_factory=list)


@dataclass(frozen=True)
class Block:
    """All cycles of one load of a study."""

    work: Work
    steps: Sequence[Step]


def blocks(works: Sequence[Work]) -> list[Block]:
    """The first load of each study, then the second of each, and so on. Pure."""
    found: list[tuple[int, Block]] = []
    for work in works:
        loads: dict[str, list[Step]] = {}
        for step in sorted(work.study.steps, key=lambda step: step.cycle):
            loads.setdefault(_load(work.points[step.point]), []).append(step)
        wanted = list(dict.fromkeys(_load(point) for point in work.points))
        found += [(place, Block(work, loads[load])) for place, load in enumerate(wanted)]
    return [block for _, block in sorted(found, key=lambda one: one[0])]


def _load(point: Point) -> str:
    return json.dumps(point.profile, sort_keys=True)


def with_own_prompts(points: Sequence[Point]) -> list[Point]:
    """Each load has prompts of its own: a server that is kept may remember those of the load before. Pure."""
    loads = list(dict.fromkeys(_load(point) for point in points))
    return [replace(point, seed=point.seed + _SEEDS_APART * loads.index(_load(point))) for point in points]


def server_key(point: Point) -> str:
    """Points with the same key are served by the same server. Pure."""
    return json.dumps([point.engine, point.model, point.serve], sort_keys=True, default=str)


def missing(points: Sequence[Point], up: Collection[str]) -> list[str]:
    """The servers that were planned and are not up, by name. Pure."""
    return list(dict.fromkeys(f"{_name(point)} ({point.model})" for point in points if server_key(point) not in up))


def _name(point: Point) -> str:
    return point.label.rpartition(" ")[0]  # without the load


def enough_time(left_s: float, took_s: Mapping[int, float], point: int) -> bool:
    """Whether one more run of a point fits, by what its last took, or else the longest of all. Pure."""
    expected = took_s.get(point) or max(took_s.values(), default=_FIRST_RUN_S)
    return left_s > 1.1 * expected


class Servers:
    """One for each engine with its settings, all up at the same time."""

    def __init__(self, points: Sequence[Point], folder: Path) -> None:
        self._folder = folder
        self.up: dict[str, Served] = {}
        self._open: list[AbstractContextManager[Served]] = []
        by_key: dict[str, list[Point]] = {}
        for point in points:
            by_key.setdefault(server_key(point), []).append(point)
        with ThreadPoolExecutor(len(by_key)) as pool:
            for number, (key, own) in enumerate(by_key.items()):
                pool.submit(self._start, number, key, own)

    def _start(self, number: int, key: str, points: Sequence[Point]) -> None:
        point = points[0]
        name = _name(point)
        config = self._folder / f"{number}.yaml"
        config.write_bytes(config_bytes(point.serve or {}))
        arguments = [point.model, "--engine", point.engine, "--config", str(config)]
        server = served(arguments, self._folder / f"{number}.log")
        try:
            found = server.__enter__()
            self._open.append(server)
            say(f"{name} serves {point.model} after {found.start_s:.0f} s")
            if point.engine not in _ON_THE_PROCESSOR:
                self._warm(found, points)
            self.up[key] = found
        except EnginebayError as error:
            say(f"{name}: {error.message}\n     {error.hint}")
        except Exception as error:  # a thread's last words are heard by nobody
            say(f"{name}: {type(error).__name__}: {error}")

    def close(self) -> None:
        """End them all, side by side."""
        with ThreadPoolExecutor(max(1, len(self._open))) as pool:
            for server in self._open:
                pool.submit(server.__exit__, None, None, None)

    def _warm(self, server: Served, points: Sequence[Point]) -> None:
        """A wave of each load while others still start: what compiles or records does so now."""
        for point in points:
            began, count = monotonic(), int(point.profile.get("concurrency") or 1)
            requests = _random_requests(count, *(_tokens(point, name) for name in ("input_tokens", "output_tokens")))
            target = Target(server.url, point.model, server.headers, dict(point.body), point.timeout_s)
            fired = fire(share_out(target, requests, None, count, 1), requests)
            wrong = next((record for record in fired.records if record.error), None)
            say(
                f"{point.label}: warm after {monotonic() - began:.1f} s"
                + (f", {wrong.error} {wrong.detail}" if wrong else "")
            )


def _tokens(point: Point, name: str) -> int:
    asked = point.workload.get(name)
    return asked if isinstance(asked, int) else _USUAL_TOKENS


def _random_requests(count: int, tokens_in: int, tokens_out: int) -> list[Request]:
    source = random.Random(count)
    return [Request(tuple(source.choices(_VOCABULARY, k=tokens_in)), tokens_in, tokens_out) for _ in range(count)]


def prepare(gguf: Path | None, kinds: Sequence[str]) -> list[str]:
    """The embedded model in the store, dense too, and each engine probed, side by side; gives the engines that are there."""
    if gguf is not None and models.Store().get(models.DEFAULT) is None:
        models.Store().pull(f"file:{gguf.absolute()}", models.DEFAULT)
    with ThreadPoolExecutor() as pool:
        return [kind for kind, there in zip(kinds, pool.map(_is_there, kinds), strict=True) if there]


def _is_there(kind: str) -> bool:
    try:
        found = environments.find(kind)
        stored = models.Store().get(models.DEFAULT)
        if kind == "transformers" and stored is not None:
            models.dense_path(stored, found.python)
    except EnginebayError as error:
        say(f"left out: {kind}: {error.message}\n     {error.hint}")
        return False
    say(f"{kind} {found.version}, devices {', '.join(found.probe.devices)}")
    return True


def engines_there(config: Path, there: Sequence[str], flags: Mapping[str, Any]) -> list[str]:
    """Of a configuration's engines."""
    return [kind for kind in load_config(config, flags=dict(flags)).study_engines() if kind in there]


def plan(config: Path, engines: Sequence[str], flags: Mapping[str, Any], folder: Path) -> Work:
    """The study of one configuration, with these engines."""
    points, _, cycles, given = of_engines(config, None, {**flags, "engines": list(engines)}, None, None, False)
    points = with_own_prompts(points)
    study = new_study(folder, points, cycles, {**given, "servers": "started once, all at the same time"})
    again = [point_of(data) for data in study.points]
    return Work(study, again, References(again, {}))


def carry_out(order: Sequence[Block], servers: Servers, folder: Path, ceiling: Ceiling, deadline: float) -> bool:
    """Every run there is time for. False: some were left out."""
    progress = StudyProgress()
    count = sum(len(block.steps) for block in order)
    number, took_s, broken = 0, dict[tuple[str, int], float](), set[tuple[str, int]]()
    late = list[str]()
    for block in order:
        work = block.work
        study = work.study
        bench = Bench(
            runs=folder, study_id=study.id, ceiling=ceiling, cycles=max(step.cycle for step in study.steps),
            config=study.config, say=progress.say, live=progress.live, tokenizer=read_tokenizer,
        )  # fmt: skip
        for step in block.steps:
            number += 1
            point, place = work.points[step.point], (study.id, step.point)
            server = servers.up.get(server_key(point))
            if server is None or place in broken:
                continue
            known = {one: seconds for (name, one), seconds in took_s.items() if name == study.id}
            if not enough_time(deadline - monotonic(), known, step.point):
                late.append(f"{point.label} ({point.model}), cycle {step.cycle}")
                continue  # another one may be faster
            progress.began(step, number, count)
            began = monotonic()
            try:
                run = load_run(conduct(bench, point, step, server, work.references.of(step)))
            except EnginebayError as error:
                broken.add(place)
                progress.ended(step, error)
                continue
            work.references.take(step, run)
            work.runs.append(run)
            took_s[place] = monotonic() - began
            progress.ended(step, run)
    if late:
        say(f"no time was left for {len(late)} of {count} runs: {'; '.join(late)}")
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
    flags = assignment_flags(given.set)
    kinds = [kind for config in given.configs for kind in load_config(config, flags=flags).study_engines()]
    there = prepare(given.gguf, list(dict.fromkeys(kinds)))
    engines = {config: engines_there(config, there, flags) for config in given.configs}
    idle = [config.name for config, kinds in engines.items() if not kinds]
    for name in idle:
        say(f"MISSING: {name}, none of whose engines is there")
    works = [plan(config, kinds, flags, given.runs) for config, kinds in engines.items() if kinds]
    if not works:
        return 1
    say("studies: " + ", ".join(f"{work.study.id} ({work.points[0].model})" for work in works))
    ceiling = calibrate()
    say(f"this client can take {ceiling.tokens_per_s:,.0f} streamed tokens/s ({ceiling.processes} processes)")
    logs = Path(tempfile.mkdtemp(prefix="bay-compare-"))
    planned = [point for work in works for point in work.points]
    servers = Servers(planned, logs)
    try:
        say(f"{len(servers.up)} servers are up; their logs are in {logs}")
        absent = missing(planned, servers.up)
        whole = bool(servers.up) and carry_out(blocks(works), servers, given.runs, ceiling, deadline)
    finally:
        servers.close()
    say(f"{sum(len(work.runs) for work in works)} runs were made")
    for name in absent:
        say(f"MISSING: {name} did not start, and its runs were not made")
    return 0 if whole and not absent and not idle else 1


if __name__ == "__main__":
    os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    sys.exit(main())
