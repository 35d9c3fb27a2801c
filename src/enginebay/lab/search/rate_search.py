"""Search the highest rate of one engine. Its server starts once; every run is stored like any other."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import Any

from enginebay.errors import EnginebayError
from enginebay.lab.loadgen.calibration import ClientCeiling
from enginebay.lab.measures.distribution import count_needed
from enginebay.lab.measures.slo import Slo, slo_from_dict
from enginebay.lab.search import candidates, concurrency_sweep
from enginebay.lab.search.candidates import Candidate, ObjectiveResult
from enginebay.lab.search.concurrency_sweep import ConcurrencyLevel
from enginebay.lab.search.rate_bisection import (
    NextTrial,
    RateBounds,
    SearchResult,
    SearchRules,
    Trial,
    find_bracket,
    plan_next_trial,
)
from enginebay.lab.search.search_duration import CONFIRM_FACTOR, MIN_RUN_LATENCIES, estimate_trial_s, limit_runs
from enginebay.lab.store.run_reader import Run, load_run
from enginebay.lab.store.study_plan import StudyStep
from enginebay.lab.study.bay_server import run_engine_server
from enginebay.lab.study.run_point import StudyContext, run_point
from enginebay.lab.study.study_point import StudyPoint
from enginebay.util.text_format import pluralize

_TRUSTED_SHARE = 0.5  # of the client's ceiling: its accuracy is verified up to there
_SHOWN_LATENCIES = ("ttft_s", "tpot_s", "e2e_s")


@dataclass(frozen=True, slots=True)
class SearchGoal:
    """The objective of a search, and the minimum length of each run."""

    slo: Mapping[str, float]
    profile: Mapping[str, Any]  # without a rate
    requests: int
    seconds: float
    rules: SearchRules = field(default_factory=SearchRules)

    @property
    def parsed_slo(self) -> Slo:
        return slo_from_dict(self.slo)


@dataclass(frozen=True, slots=True)
class SearchCallbacks:
    """Called at the start and end of each run."""

    on_run_started: Callable[[str], None] = lambda label: None
    on_run_ended: Callable[[Run, str], None] = lambda run, result: None


@dataclass(frozen=True, slots=True)
class SearchPace:
    """What was announced of an engine: the time of one request, and when its search ends by `clock`."""

    single_s: float
    ends_at_s: float
    clock: Callable[[], float] = monotonic


class SearchSession:
    """The runs on one server. Each has its own prompts and arrivals, so the prefix cache does not help."""

    def __init__(
        self,
        context: StudyContext,
        point: StudyPoint,
        run_point: Callable[[StudyPoint, StudyStep], Path],
        engine_index: int,
    ) -> None:
        self._context = context
        self._point = point
        self._run_point = run_point
        self._engine_index = engine_index  # in the study
        self.runs: list[Run] = []

    def measure(self, label: str, profile: Mapping[str, Any], limits: Mapping[str, Any]) -> Run:
        first, arrivals_seed = not self.runs, self._point.arrivals_seed
        point = replace(
            self._point,
            label=f"{self._point.label} {label}",
            profile=dict(profile),
            limits={**self._point.limits, **limits},
            seed=self._point.seed + len(self.runs),
            arrivals_seed=None if arrivals_seed is None else arrivals_seed + len(self.runs),
            # The server keeps running: one warm-up and one parity check are enough.
            warmup=self._point.warmup if first else False,
            parity=self._point.parity if first else False,
        )
        self.runs.append(load_run(self._run_point(point, StudyStep(self._engine_index, 1, point.label)), verify=False))
        return self.runs[-1]


@contextmanager
def open_session(context: StudyContext, point: StudyPoint, engine_index: int = 0) -> Iterator[SearchSession]:
    """Start the point's engine for several runs. Raise `LoadFailed`."""
    assert point.serve is not None
    context.on_status(f"starting {point.engine}")
    with run_engine_server(point.engine, point.model, point.serve) as server:
        yield SearchSession(
            context, point, lambda variant, step: run_point(context, variant, step, server), engine_index
        )


def find_highest_rate(
    context: StudyContext, point: StudyPoint, goal: SearchGoal, callbacks: SearchCallbacks, engine_index: int = 0,
    pace: SearchPace | None = None,
) -> Candidate:  # fmt: skip
    """Return the highest rate at which an engine meets the objective. One that cannot run has no rate."""
    point = replace(point, slo=dict(goal.slo))
    try:
        with open_session(context, point, engine_index) as session:
            return _search_rate(session, Candidate(point.engine, point.label), goal, callbacks, context.ceiling, pace)
    except EnginebayError as error:
        return make_failed_candidate(point, error)


def make_failed_candidate(point: StudyPoint, error: EnginebayError) -> Candidate:
    """Return the result of an engine that cannot run."""
    message = f"could not be run: {error.message}"
    candidate = Candidate(point.engine, point.label, why_none=message)
    return candidate.add_reason("not_run", "informative", message)


def _search_rate(
    session: SearchSession, candidate: Candidate, goal: SearchGoal, callbacks: SearchCallbacks, ceiling: ClientCeiling,
    pace: SearchPace | None = None,
) -> Candidate:  # fmt: skip
    levels = _sweep_concurrency(session, goal, callbacks, pace.single_s if pace is not None else 0.0)
    first = session.runs[0]
    candidate = replace(
        candidate,
        version=str(first.manifest["engine"].get("version", "")),
        capacity=max((level.rate for level in levels), default=None),
    )
    if not levels or levels[0].hopeless:
        why = (
            "no request was answered"
            if not levels
            else f"misses the objective with one request at a time: {_describe_single_request(first)}"
        )
        candidate = replace(candidate, why_none=why, runs=[run.id for run in session.runs])
        return _judge_single_request(candidate, first)
    bounds = concurrency_sweep.find_rate_bounds(levels, _max_client_rate(ceiling, first))
    single_s = float(first.measures["e2e_s"]["mean"])
    shortest_s = max(goal.seconds, MIN_RUN_LATENCIES * single_s)
    trials: list[Trial] = []
    runs: list[tuple[Run, list[ObjectiveResult]]] = []
    while isinstance(
        step := plan_next_trial(trials, bounds, _keep_pace(goal, trials, bounds, single_s, pace)), NextTrial
    ):
        run = _run_trial(session, goal, step, shortest_s, callbacks)
        runs.append((run, candidates.count_kept(run.read_records(), goal.parsed_slo)))
        trials.append(Trial(step.rate, _met_objective(run), candidates.is_doubtful(run.reasons), step.confirming))
        callbacks.on_run_ended(run, "met" if trials[-1].met else "missed")
    return _fill_candidate(replace(candidate, runs=[run.id for run in session.runs]), step, trials, runs)


def _keep_pace(
    goal: SearchGoal, trials: Sequence[Trial], bounds: RateBounds, single_s: float, pace: SearchPace | None
) -> SearchRules:
    """Return the rules, with no more runs than the announced time allows."""
    if pace is None:
        return goal.rules
    low, above = find_bracket(trials)
    rate = low or (bounds.start if above is None else above / goal.rules.growth)
    return limit_runs(goal.rules, trials, pace.ends_at_s - pace.clock(), estimate_trial_s(goal, rate, single_s))


def _sweep_concurrency(
    session: SearchSession, goal: SearchGoal, callbacks: SearchCallbacks, single_s: float
) -> list[ConcurrencyLevel]:
    """Run closed loops of rising concurrency, while throughput rises and the objective is met. `single_s`: of one request."""
    levels: list[ConcurrencyLevel] = []
    while (concurrency := concurrency_sweep.next_concurrency(levels)) is not None:
        label = f"c{concurrency}"
        callbacks.on_run_started(label)
        limits = {
            "requests": concurrency_sweep.count_level_requests(concurrency),
            "duration_s": concurrency_sweep.max_sending_s(concurrency, single_s),
        }
        run = session.measure(label, {"kind": "closed", "concurrency": concurrency}, limits)
        records = run.read_records()
        rate = concurrency_sweep.measure_full_rate(records)
        callbacks.on_run_ended(run, f"{rate or 0:.3g} requests/s")
        if rate is None:
            break
        kept = candidates.count_kept(records, goal.parsed_slo)
        levels.append(ConcurrencyLevel(concurrency, rate, _met_objective(run), candidates.is_surely_missed(kept)))
    return levels


def _run_trial(
    session: SearchSession, goal: SearchGoal, trial: NextTrial, shortest_s: float, callbacks: SearchCallbacks
) -> Run:
    factor = CONFIRM_FACTOR if trial.confirming else 1
    requests = factor * max(goal.requests, math.ceil(trial.rate * shortest_s))
    label = f"{goal.profile['kind']}-{trial.rate:g}"
    callbacks.on_run_started(f"{label}, to confirm" if trial.confirming else label)
    return session.measure(label, {**goal.profile, "rate": trial.rate}, {"requests": requests})


def _met_objective(run: Run) -> bool:
    """Return whether the objective was met and the server kept up: with a backlog, a longer run would miss it."""
    has_backlog = any(reason["code"] == candidates.BACKLOG_CODE for reason in run.reasons)
    return run.measures.get("slo_met") is True and not has_backlog


def _fill_candidate(
    candidate: Candidate, result: SearchResult, trials: list[Trial], runs: list[tuple[Run, list[ObjectiveResult]]]
) -> Candidate:
    """Fill in what the last run at the rate measured, and the verdict."""
    missed = [trial for trial in trials if trial.rate == result.above and not trial.met]
    above_doubtful = bool(missed) and all(trial.doubtful for trial in missed)
    candidate = replace(candidate, above=result.above, confirmed=result.confirmed, limit=result.limit)
    if result.rate is None:
        candidate = replace(candidate, why_none=f"already misses the objective at {result.above:.3g} requests/s")
        return candidates.add_verdict(candidate, result, (), above_doubtful)
    at_rate = [pair for pair, trial in zip(runs, trials, strict=True) if trial.rate == result.rate and trial.met]
    run, kept = at_rate[-1][0], candidates.pool_results([results for _, results in at_rate])
    candidate = replace(
        candidate, rate=result.rate, requests=len(run.read_records()), kept=kept, sure=candidates.is_surely_kept(kept), figures=_select_figures(run),
        energy=candidates.summarize_energy(run.measures, run.reasons),
    )  # fmt: skip
    return candidates.add_verdict(candidate, result, run.reasons, above_doubtful)


def _judge_single_request(candidate: Candidate, run: Run) -> Candidate:
    """Add a reason only if something else disturbed the run: a miss with one request at a time needs no verdict."""
    if not candidates.is_doubtful(run.reasons):
        return candidate
    codes = ", ".join(reason["code"] for reason in run.reasons if reason["code"] in candidates.DOUBT_CODES)
    return candidate.add_reason(
        "miss_doubtful", "invalid", f"missed the objective, but something else disturbed the run: {codes}"
    )


def _select_figures(run: Run) -> dict[str, float]:
    measures = run.measures
    figures = {name: measures[name] for name in ("requests_per_s", "output_tokens_per_s") if name in measures}
    for name in _SHOWN_LATENCIES:
        distribution = measures.get(f"{name.removesuffix('_s')}_from_intended_s") or measures.get(name) or {}
        figures |= {
            f"{name}.{statistic}": distribution[statistic]
            for statistic in ("median", "p95", "p99")
            if statistic in distribution
        }
    return figures


def _describe_single_request(run: Run) -> str:
    """Describe the latencies of one request at a time: their medians, or their means if the answers are too few."""
    names, needed = {"TTFT": "ttft_s", "end to end": "e2e_s"}, count_needed(50)
    known = {name: run.measures[measure] for name, measure in names.items() if run.measures.get(measure)}
    few = any("median" not in distribution for distribution in known.values())
    parts = [f"{name} {of['mean' if few else 'median']:.3g} s" for name, of in known.items()]
    if "TTFT" not in known:
        parts.append("no response had any output")
    count = pluralize(run.measures.get("answered") or 0, "answer")
    return ", ".join(parts) + (f" (mean of {count}; a median needs {needed})" if few else "")


def _max_client_rate(ceiling: ClientCeiling, run: Run) -> float:
    """Return the highest rate the client may send, limited by requests and by the tokens that come back."""
    tokens = run.measures.get("output_tokens") or 0
    tokens_per_request = max(1.0, tokens / max(1, run.measures.get("answered_in_window") or 1))
    return _TRUSTED_SHARE * min(ceiling.requests_per_s, ceiling.tokens_per_s / tokens_per_request)
