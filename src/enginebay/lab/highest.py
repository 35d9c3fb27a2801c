"""The highest rate of one engine: its server is started once, and every run of the search is kept like any other run."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from enginebay.errors import EnginebayError
from enginebay.lab import candidates, ladder
from enginebay.lab.candidates import Candidate, Kept
from enginebay.lab.choosing import Ask, End, Rules, Try, next_step
from enginebay.lab.client.ceiling import Ceiling
from enginebay.lab.conduct import Bench, conduct
from enginebay.lab.ladder import Rung
from enginebay.lab.measures.slo import Slo, read_slo
from enginebay.lab.points import Point
from enginebay.lab.runs.reader import Run, load_run
from enginebay.lab.runs.study import Step
from enginebay.lab.served import config_bytes, served

LATENCIES_PER_RUN = 10  # a shorter run is mostly its own beginning and end: what queues up there does not show
CONFIRMED_LONGER = 2  # times; the energy is of this run, and its meters want a window too
_TRUSTED = 0.5  # of the client's ceiling: its accuracy is proven up to there
_SHOWN = ("ttft_s", "tpot_s", "e2e_s")


@dataclass(frozen=True, slots=True)
class Wish:
    """What is looked for, and how long each run lasts at least."""

    slo: Mapping[str, float]
    profile: Mapping[str, Any]  # without its rate
    requests: int
    seconds: float
    rules: Rules = field(default_factory=Rules)

    @property
    def limits(self) -> Slo:
        return read_slo(self.slo)


@dataclass(frozen=True, slots=True)
class Watcher:
    """Who is told of each run."""

    began: Callable[[str], None] = lambda what: None
    ended: Callable[[Run, str], None] = lambda run, what: None


class Session:
    """The runs on one server. Each has prompts and arrivals of its own, so no cache knows them."""

    def __init__(self, bench: Bench, point: Point, run: Callable[[Point, Step], Path], number: int) -> None:
        self._bench = bench
        self._point = point
        self._run = run
        self._number = number  # of the engine in the study
        self.runs: list[Run] = []

    def measure(self, label: str, profile: Mapping[str, Any], limits: Mapping[str, Any]) -> Run:
        first, given = not self.runs, self._point.arrivals_seed
        point = replace(
            self._point,
            label=f"{self._point.label} {label}",
            profile=dict(profile),
            limits=dict(limits),
            seed=self._point.seed + len(self.runs),
            arrivals_seed=None if given is None else given + len(self.runs),
            # The server stays as it is: what was warmed up and compared once need not be again.
            warmup=self._point.warmup if first else False,
            parity=self._point.parity if first else False,
        )
        self.runs.append(load_run(self._run(point, Step(self._number, 1, point.label)), verify=False))
        return self.runs[-1]


@contextmanager
def opened(bench: Bench, point: Point, number: int = 0) -> Iterator[Session]:
    """Start the point's engine for several runs. Raises `LoadFailed`."""
    assert point.serve is not None
    bench.say(f"starting {point.engine}")
    with tempfile.TemporaryDirectory(prefix="bay-lab-") as folder:
        config = Path(folder) / "serve.yaml"
        config.write_bytes(config_bytes(point.serve))
        arguments = [point.model, "--engine", point.engine, "--config", str(config)]
        with served(arguments, Path(folder) / "log") as server:
            yield Session(bench, point, lambda one, step: conduct(bench, one, step, server), number)


def find_highest(bench: Bench, point: Point, wish: Wish, watcher: Watcher, number: int = 0) -> Candidate:
    """The highest rate at which this engine keeps the objective. One that cannot be run is a candidate without a rate."""
    point = replace(point, slo=dict(wish.slo))
    found = Candidate(point.engine, point.label)
    try:
        with opened(bench, point, number) as session:
            return _search(session, found, wish, watcher, bench.ceiling)
    except EnginebayError as error:
        message = f"could not be run: {error.message}"
        return replace(found, why_none=message).with_reason("not_run", "informative", message)


def _search(session: Session, found: Candidate, wish: Wish, watcher: Watcher, ceiling: Ceiling) -> Candidate:
    rungs = _climb(session, wish, watcher)
    first = session.runs[0]
    found = replace(
        found,
        version=str(first.manifest["engine"].get("version", "")),
        capacity=max((rung.rate for rung in rungs), default=None),
    )
    if not rungs or rungs[0].hopeless:
        why = "no request was answered" if not rungs else f"misses it with one request at a time: {_alone(first)}"
        found = replace(found, why_none=why, runs=[run.id for run in session.runs])
        return _judged_alone(found, first)
    bounds = ladder.bounds(rungs, _client_rate(ceiling, first))
    shortest_s = max(wish.seconds, LATENCIES_PER_RUN * float(first.measures["e2e_s"]["mean"]))
    tries: list[Try] = []
    runs: list[tuple[Run, list[Kept]]] = []
    while isinstance(step := next_step(tries, bounds, wish.rules), Ask):
        run = _try(session, wish, step, shortest_s, watcher)
        runs.append((run, candidates.kept_by(run.records(), wish.limits)))
        tries.append(Try(step.rate, _met(run), candidates.doubtful(run.reasons), step.confirming))
        watcher.ended(run, "kept" if tries[-1].met else "missed")
    return _found(replace(found, runs=[run.id for run in session.runs]), step, tries, runs)


def _climb(session: Session, wish: Wish, watcher: Watcher) -> list[Rung]:
    """Closed loops of more and more requests at once, as long as it answers more and keeps the objective."""
    rungs: list[Rung] = []
    while (concurrency := ladder.next_concurrency(rungs)) is not None:
        label = f"c{concurrency}"
        watcher.began(label)
        limits = {"requests": ladder.requests_of(concurrency), "duration_s": ladder.LONGEST_S}
        run = session.measure(label, {"kind": "closed", "concurrency": concurrency}, limits)
        records = run.records()
        rate = ladder.full_rate(records)
        watcher.ended(run, f"{rate or 0:.3g} requests/s")
        if rate is None:
            break
        kept = candidates.kept_by(records, wish.limits)
        rungs.append(Rung(concurrency, rate, _met(run), candidates.surely_missed(kept)))
    return rungs


def _try(session: Session, wish: Wish, step: Ask, shortest_s: float, watcher: Watcher) -> Run:
    longer = CONFIRMED_LONGER if step.confirming else 1
    requests = longer * max(wish.requests, math.ceil(step.rate * shortest_s))
    label = f"{wish.profile['kind']}-{step.rate:g}"
    watcher.began(f"{label}, to confirm it" if step.confirming else label)
    return session.measure(label, {**wish.profile, "rate": step.rate}, {"requests": requests})


def _met(run: Run) -> bool:
    """The objective was kept, and the server kept up: otherwise a longer run would have missed it."""
    behind = any(reason["code"] == candidates.FALLS_BEHIND for reason in run.reasons)
    return run.measures.get("slo_met") is True and not behind


def _found(found: Candidate, end: End, tries: list[Try], runs: list[tuple[Run, list[Kept]]]) -> Candidate:
    """The candidate with what its last run at the rate measured, and the verdict."""
    missed = [one for one in tries if one.rate == end.above and not one.met]
    above_doubtful = bool(missed) and all(one.doubtful for one in missed)
    found = replace(found, above=end.above, confirmed=end.confirmed, limit=end.limit)
    if end.rate is None:
        found = replace(found, why_none=f"misses it at {end.above:.3g} requests/s already")
        return candidates.judged(found, end, (), above_doubtful)
    at_rate = [one for one, tried in zip(runs, tries, strict=True) if tried.rate == end.rate and tried.met]
    run, kept = at_rate[-1][0], candidates.together([one for _, one in at_rate])
    found = replace(
        found, rate=end.rate, requests=len(run.records()), kept=kept, sure=candidates.surely_kept(kept), figures=_figures(run),
        energy=candidates.energy_of(run.measures, run.reasons),
    )  # fmt: skip
    return candidates.judged(found, end, run.reasons, above_doubtful)


def _judged_alone(found: Candidate, run: Run) -> Candidate:
    """A miss with one request at a time needs no verdict, unless something else disturbed it."""
    if not candidates.doubtful(run.reasons):
        return found
    codes = ", ".join(one["code"] for one in run.reasons if one["code"] in candidates.DOUBTS)
    return found.with_reason("miss_doubtful", "invalid", f"it was missed while something else disturbed it: {codes}")


def _figures(run: Run) -> dict[str, float]:
    measures = run.measures
    found = {name: measures[name] for name in ("requests_per_s", "output_tokens_per_s") if name in measures}
    for name in _SHOWN:
        of = measures.get(f"{name.removesuffix('_s')}_from_intended_s") or measures.get(name) or {}
        found |= {f"{name}.{which}": of[which] for which in ("median", "p95", "p99") if which in of}
    return found


def _alone(run: Run) -> str:
    ttft, e2e = run.measures.get("ttft_s", {}), run.measures.get("e2e_s", {})
    parts = [f"{name} {of['median']:.3g} s" for name, of in (("TTFT", ttft), ("end to end", e2e)) if "median" in of]
    return ", ".join(parts) or "no answer had any output"


def _client_rate(ceiling: Ceiling, run: Run) -> float:
    """The most that the client may send, by requests and by the tokens that come back."""
    tokens = run.measures.get("output_tokens") or 0
    each = max(1.0, tokens / max(1, run.measures.get("answered_in_window") or 1))
    return _TRUSTED * min(ceiling.requests_per_s, ceiling.tokens_per_s / each)
