"""Study a model that fits on a GPU only once: `bay serve` against vLLM offline in turn, and the rates that keep an objective.

    python -m bench.gpu.large_model.large_model_study --model FOLDER --out FOLDER [--seconds 1800] [--parts pair ttft pairs e2e] [--pairs 5]

    pair    offline and ours, closed loop, 128 tokens in and 128 out, 256 streams; the first of the pairs
    ttft    the highest rate of Poisson arrivals at which ours keeps P95 TTFT under `LIMIT_S`: rates climb in steps, then again in
            smaller steps from the last rate that met it
    pairs   the other pairs; the awake system starts, so that a pair takes one switch
    e2e     as ttft for the whole response, of 16, 8 and 32 tokens

Parts run in the order given; those that do not fit into the time left are skipped and reported. While one system runs the
other sleeps: offline without its weights, ours with them in main memory. Every event is appended to `large.jsonl`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from bench.gpu.cpu_time import read_cpu_times
from bench.gpu.large_model.large_model_summary import LIMIT_S, TARGET_TOKENS_PER_S, summarize
from bench.gpu.large_model.turn_taking import OFFLINE_SETTINGS, SleepableBay, SleepableOffline, TurnFailed, TurnTaker
from bench.gpu.rate_windows import LatencyKind, interpolate_rates, judge_window, plan_climb
from bench.gpu.systems_under_test import OfflineVllm, ServerSystem
from bench.gpu.throughput import OUTPUT, compute_figures, make_requests
from enginebay.lab.loadgen.calibration import default_process_count
from enginebay.lab.loadgen.sender_pool import run_loadgen
from enginebay.lab.loadgen.sender_task import split_into_tasks
from enginebay.lab.search.rate_bisection import Trial, find_bracket
from enginebay.meters.devices.nvml_meter import open_nvml_meter

PARTS = ("pair", "ttft", "pairs", "e2e")
# Where a search begins and ends, as shares of the closed loop's requests/s.
TTFT_SHARES = (0.4, 0.9)
E2E_SHARES = {16: (0.2, 0.5), 8: (0.4, 1.2), 32: (0.04, 0.08)}  # by output tokens; the slowest rates take longest
_STEPS = 5  # rates of the first climb
_FINER = 2  # rates of the second, above the last that met the objective
_SEEDS_APART = 100  # between climbs
_SHORT = 0.4  # share of a step for short responses: they settle sooner
_ALONE = 5  # sequential requests, to see whether the objective is feasible at all
_CONNECTIONS = 512
_STOP_S = 15.0  # reserved for stopping both
_RUN_S, _ASLEEP_S, _AWAKE_S = 25.0, 35.0, 10.0  # estimates until measured


@dataclass(frozen=True, slots=True)
class LatencyObjective:
    """The latency to keep under `LIMIT_S`, and how long each rate is measured."""

    latency: LatencyKind
    output: int  # tokens
    step_s: float  # at one rate
    skip_s: float  # start of it that is not judged
    drain_s: float  # until the last request is answered


class StudyTimeout(Exception):
    """Time is up; the events so far are summarized."""


class Journal:
    """The log of events, and the time left."""

    def __init__(self, out: Path, deadline: float) -> None:
        self._path, self._deadline, self._began = out / "large.jsonl", deadline, monotonic()
        self.lines: list[dict[str, Any]] = []

    def note(self, event: str, **fields: Any) -> None:
        line = {"event": event, "at_s": round(monotonic() - self._began, 1), **fields}
        self.lines.append(line)
        with self._path.open("a") as lines:
            lines.write(json.dumps(line) + "\n")
        print(f"{line['at_s']:7.1f} s  {event:<9}{_format_fields(fields)}", flush=True)

    def find(self, event: str, **fields: Any) -> list[dict[str, Any]]:
        expected = {"event": event, **fields}
        return [line for line in self.lines if expected.items() <= {key: line.get(key) for key in expected}.items()]

    def has_time(self, what: str, seconds: float) -> bool:
        left = self._deadline - monotonic()
        if seconds <= left:
            return True
        self.note("left out", what=what, needed_s=round(seconds), left_s=round(left))
        return False


def _format_fields(fields: dict[str, Any]) -> str:
    rounded = {name: round(value, 3) if isinstance(value, float) else value for name, value in fields.items()}
    return ", ".join(f"{name} {value}" for name, value in rounded.items())


class LargeModelStudy:
    def __init__(self, turns: TurnTaker, journal: Journal, joules: Callable[[], float | None], args: Any) -> None:
        self._turns, self._journal, self._joules = turns, journal, joules
        self._streams, self._waves, self._pairs = args.streams, args.waves, args.pairs
        self._step_s, self._skip_s, self._sleeping = args.step, args.skip, not args.no_sleep
        self._warm: set[str] = set()
        self._seed = 0

    # Closed loop

    def pair(self) -> None:
        self._run_pair(0)

    def pairs(self) -> None:
        for number in range(1, self._pairs):
            needed = (
                2 * self._estimate_longest("closed", "window_s", _RUN_S)
                + self._estimate_switch(*_get_pair_order(number))
                + 2.0
            )
            if not self._journal.has_time(f"pairs from {number + 1} of {self._pairs} on", needed):
                return
            self._run_pair(number)

    def _run_pair(self, number: int) -> None:
        for name in _get_pair_order(number):
            self._run_closed_loop(name, number)

    def _run_closed_loop(self, name: str, cycle: int) -> None:
        system = self._turns.use(name)
        if name not in self._warm:
            self._warm.add(name)
            self._run_workload("warm-up", name, system, 999, self._streams, cycle=0)
        self._run_workload(
            "closed", name, system, cycle * 10_000 + self._streams, self._waves * self._streams, cycle=cycle
        )

    def _run_workload(self, event: str, name: str, system: Any, seed: int, count: int, cycle: int) -> None:
        requests = make_requests(seed, count)
        used, joules, began = read_cpu_times(system.process.pid), self._joules(), monotonic()
        if isinstance(system, OfflineVllm):
            figures = dict(system.run(requests, OUTPUT, self._streams))
        else:
            figures = compute_figures(system.run_requests(requests, self._streams))
        seconds, after = monotonic() - began, read_cpu_times(system.process.pid)
        cores = {kind: round((after[kind] - used.get(kind, 0.0)) / seconds, 2) for kind in after}
        self._journal.note(
            event,
            system=name,
            streams=self._streams,
            cycle=cycle,
            **figures,
            **self._measure_energy(joules),
            cores=cores,
        )

    def _measure_energy(self, before: float | None) -> dict[str, float]:
        after = self._joules()
        return {} if before is None or after is None else {"gpu_energy_j": after - before}

    # Poisson arrivals

    def ttft(self) -> None:
        capacity = self._measure_capacity()
        # The last requests take about as long as in the closed loop.
        drain_s = self._estimate_longest("closed", "e2e_median_s", 10.0)
        self._search(
            LatencyObjective("ttft", OUTPUT, self._step_s, self._skip_s, drain_s), _choose_rates(capacity, TTFT_SHARES)
        )

    def e2e(self) -> None:
        capacity, step_s, skip_s = self._measure_capacity(), _SHORT * self._step_s, _SHORT * self._skip_s
        for tokens, shares in E2E_SHARES.items():
            if not self._journal.has_time(f"e2e of {tokens} tokens", step_s + 10.0):
                continue
            if self._time_alone(tokens) >= LIMIT_S:
                self._journal.note("found", latency="e2e", output=tokens, rate=None, above=None, confirmed=False)
                continue
            self._search(LatencyObjective("e2e", tokens, step_s, skip_s, 2.0), _choose_rates(capacity, shares))

    def _measure_capacity(self) -> float:
        """Return the closed-loop requests/s of ours."""
        if not self._journal.find("closed", system="ours"):
            self._run_closed_loop("ours", 0)
        runs = self._journal.find("closed", system="ours")
        return float(sum(run["output_tokens_per_s"] for run in runs) / len(runs) / OUTPUT)

    def _time_alone(self, tokens: int) -> float:
        """Return the longest of a few responses without other load."""
        system = self._use_server()
        records = system.run_requests(make_requests(self._next_seed(), _ALONE, tokens), 1).records
        seconds = max((record.end_s or 0.0) - record.sent_s for record in records[1:])
        self._journal.note("alone", output=tokens, seconds=seconds)
        return seconds

    def _search(self, objective: LatencyObjective, rates: Sequence[float]) -> None:
        """Climb twice: a rate that meets the objective both times is confirmed. The second starts a step lower, to fill the server."""
        trials = self._climb(objective, rates)
        if not trials:  # no time left
            return
        rate, above = find_bracket(trials)
        if rate is None:
            rate, above = rates[0] / 2, rates[0]
        below = [lower for lower in rates if lower < rate][-1:]
        trials += self._climb(
            objective, [*below, *interpolate_rates(rate, above or rate * rates[-1] / rates[-2], _FINER)]
        )
        rate, above = find_bracket(trials)
        confirmed = sum(trial.met and trial.rate == rate for trial in trials) > 1
        self._journal.note(
            "found", latency=objective.latency, output=objective.output, rate=rate, above=above, confirmed=confirmed
        )

    def _climb(self, objective: LatencyObjective, rates: Sequence[float]) -> list[Trial]:
        system, seed = self._use_server(), self._next_seed()
        times, windows = plan_climb(rates, objective.step_s, objective.skip_s, seed)
        climb = f"a climb for {objective.latency} of {objective.output} tokens"
        if not self._journal.has_time(climb, times[-1] + objective.drain_s + 3.0):
            return []
        requests, joules = make_requests(seed, len(times), objective.output), self._joules()
        tasks = split_into_tasks(system.target, requests, times, _CONNECTIONS, default_process_count())
        result = run_loadgen(tasks, requests)
        verdicts = [judge_window(window, result.records, objective.latency, LIMIT_S) for window in windows]
        for window, verdict in zip(windows, verdicts, strict=True):
            self._journal.note(
                "window", latency=objective.latency, output=objective.output, rate=window.rate, met=verdict.met, p95_s=verdict.p95_s,
                median_s=verdict.median_s, judged=verdict.judged, failed=verdict.failed,
                in_flight=[round(mean, 1) for mean in verdict.in_flight], grows=verdict.grows, judged_s=window.to_s - window.from_s,
            )  # fmt: skip
        self._journal.note(
            "climb", latency=objective.latency, output=objective.output, window_s=result.window_s,
            output_tokens=sum(record.output_tokens or 0 for record in result.records), **self._measure_energy(joules),
        )  # fmt: skip
        return [Trial(window.rate, verdict.met) for window, verdict in zip(windows, verdicts, strict=True)]

    def _use_server(self) -> ServerSystem:
        system = self._turns.use("ours")
        assert isinstance(system, ServerSystem)
        return system

    def _next_seed(self) -> int:
        self._seed += _SEEDS_APART
        return 500_000 + self._seed

    # Time estimates

    def _estimate_longest(self, event: str, field: str, default: float, **fields: str) -> float:
        """Return the longest so far plus a margin."""
        return 1.2 * max(
            (line[field] for line in self._journal.find(event, **fields) if field in line), default=default
        )

    def _estimate_switch(self, leaving: str, coming: str) -> float:
        if not self._sleeping:
            return 0.0
        asleep_s = self._estimate_longest("asleep", "seconds", _ASLEEP_S, system=leaving)
        return asleep_s + self._estimate_longest("awake", "seconds", _AWAKE_S, system=coming)


def _choose_rates(capacity: float, shares: tuple[float, float]) -> list[float]:
    """Return the rates of the first climb, from one share of the capacity to the other."""
    low, high = (float(f"{share * capacity:.3g}") for share in shares)
    return [*interpolate_rates(low, high, _STEPS - 2), high]


def _get_pair_order(number: int) -> tuple[str, str]:
    """Alternate, so that the system that ended one pair starts the next."""
    return ("offline", "ours") if number % 2 == 0 else ("ours", "offline")


def main() -> int:
    args = _build_parser().parse_args()
    began = monotonic()
    args.out.mkdir(parents=True, exist_ok=True)
    journal = Journal(args.out, began + args.seconds - _STOP_S)
    signal.signal(signal.SIGALRM, _raise_timeout)
    signal.setitimer(signal.ITIMER_REAL, args.seconds - _STOP_S)
    meter, problems = open_nvml_meter()
    for problem in problems:
        print(problem, flush=True)

    def total(field: str) -> Any:
        return sum(getattr(sample, field) or 0 for sample in meter.read()) if meter else None

    turns = _create_turns(args, lambda: total("memory_bytes"), journal)
    turns.prepare("ours")
    study = LargeModelStudy(turns, journal, lambda: total("energy_j"), args)
    complete = True
    try:
        for part in args.parts:
            complete &= _run_part(part, study, journal)
    except StudyTimeout:
        journal.note("time up")
        complete = False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        _record_last_switches(turns, journal)
        turns.stop()
        print("\n".join(summarize(journal.lines, args.wanted)), flush=True)
    return 0 if complete and not journal.find("left out") else 1


def _run_part(part: str, study: LargeModelStudy, journal: Journal) -> bool:
    """Run one part. `TurnFailed` is recorded and the next part still runs; a system that does not start ends the study."""
    if not journal.has_time(part, _RUN_S):
        return False
    try:
        getattr(study, part)()
    except TurnFailed as failure:
        journal.note("failed", part=part, why=str(failure))
        return False
    return True


def _create_turns(args: Any, used_bytes: Callable[[], int | None], journal: Journal) -> TurnTaker:
    settings: dict[str, Any] = {
        "load_format": "dummy", "max_model_len": 2048, "max_num_batched_tokens": 8192,
        "gpu_memory_utilization": 0.8, "kv_cache_memory_bytes": int(args.cache_gib * 2**30),
    }  # fmt: skip
    settings |= {name: json.loads(value) for name, _, value in (setting.partition("=") for setting in args.set)}
    offline = settings if args.no_sleep else {**settings, **OFFLINE_SETTINGS}
    journal.note("study", model=args.model.name, parts=args.parts, settings=settings, sleeping=not args.no_sleep)
    makers = {
        "offline": lambda: SleepableOffline("offline", args.model, offline, args.out),
        "ours": lambda: SleepableBay("ours", args.model, settings, args.out),
    }
    max_asleep_bytes = int(args.asleep_gib * 2**30)
    return TurnTaker(makers, used_bytes, max_asleep_bytes, not args.no_sleep, journal.note)


def _record_last_switches(turns: TurnTaker, journal: Journal) -> None:
    """Record all switches with their first token, which is known only afterwards."""
    ours = turns.find_server()
    with suppress(TurnFailed):
        if isinstance(ours, SleepableBay):
            journal.note("switches", switches=ours.list_switches())


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=1800.0, help="time limit")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="in this order")
    parser.add_argument("--pairs", type=int, default=5, help="pairs of closed loops, the first included")
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--waves", type=int, default=2, help="requests of a closed loop, as a multiple of the streams")
    parser.add_argument("--step", type=float, default=60.0, help="seconds of Poisson arrivals at one rate")
    parser.add_argument(
        "--skip", type=float, default=35.0, help="seconds at the start of each rate that are not judged"
    )
    parser.add_argument("--cache-gib", type=float, default=30.0, help="KV cache of each system")
    parser.add_argument("--asleep-gib", type=float, default=24.0, help="maximum GPU memory in use while one sleeps")
    parser.add_argument(
        "--wanted", type=float, default=TARGET_TOKENS_PER_S, help="target output tok/s of one GPU, for the summary"
    )
    parser.add_argument("--no-sleep", action="store_true", help="keep both awake all the time")
    parser.add_argument("--set", nargs="*", default=[], help="engine arguments for both, NAME=JSON")
    return parser


def _raise_timeout(number: int, frame: object) -> None:
    raise StudyTimeout


if __name__ == "__main__":
    os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    sys.exit(main())
