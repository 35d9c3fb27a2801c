"""A model of which one GPU holds a single copy: ours against the bare engine in turns, and the rates that keep an objective.

    python -m bench.gpu.large_model.large_model_study --model FOLDER --out FOLDER [--seconds 1800] [--parts pair ttft pairs e2e] [--pairs 5]

    pair    offline and ours, closed loop, 128 tokens in and 128 out, 256 streams; the first of the pairs
    ttft    the highest rate of Poisson arrivals at which ours keeps P95 TTFT under `LIMIT_S`: rates climb by steps, then once more
            and in smaller steps from the last that was kept
    pairs   the other pairs; whoever is awake begins, so a pair takes one switch
    e2e     as ttft for the whole answer, of 16, 8 and 32 tokens

Parts are done in the order given, and one that does not fit into the time left is left out, and said so. While one of the two runs
the other sleeps: offline without its weights, ours with them in main memory. Everything goes to `large.jsonl` as it comes.
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
from enginebay.meters.devices.nvml_meter import open_nvml

PARTS = ("pair", "ttft", "pairs", "e2e")
# Of the closed loop's requests/s, where a search begins and ends.
TTFT_SHARES = (0.4, 0.9)
E2E_SHARES = {16: (0.2, 0.5), 8: (0.4, 1.2), 32: (0.04, 0.08)}  # by output tokens; the slowest rates take longest
_STEPS = 5  # rates of the first climb
_FINER = 2  # rates of the second, beyond the one that was kept
_SEEDS_APART = 100  # of climbs
_SHORT = 0.4  # of a step, where answers are short: it settles sooner
_ALONE = 5  # requests one after the other, to see whether a length is possible at all
_CONNECTIONS = 512
_STOP_S = 15.0  # kept back for stopping both
_RUN_S, _ASLEEP_S, _AWAKE_S = 25.0, 35.0, 10.0  # about, until they were measured


@dataclass(frozen=True, slots=True)
class LatencyObjective:
    """What is to stay under `LIMIT_S`, and how long it is looked at."""

    latency: LatencyKind
    output: int  # tokens
    step_s: float  # at one rate
    skip_s: float  # of it that is not judged
    drain_s: float  # until what was sent last is answered


class StudyTimeout(Exception):
    """What is there has to do."""


class Journal:
    """Lines as they come, and the time that is left."""

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
        wanted = {"event": event, **fields}
        return [line for line in self.lines if wanted.items() <= {k: line.get(k) for k in wanted}.items()]

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
    def __init__(self, turns: TurnTaker, journal: Journal, joules: Callable[[], float | None], given: Any) -> None:
        self._turns, self._journal, self._joules = turns, journal, joules
        self._streams, self._waves, self._pairs = given.streams, given.waves, given.pairs
        self._step_s, self._skip_s, self._sleeping = given.step, given.skip, not given.no_sleep
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
        sent = make_requests(seed, count)
        used, joules, began = read_cpu_times(system.process.pid), self._joules(), monotonic()
        if isinstance(system, OfflineVllm):
            found = dict(system.run(sent, OUTPUT, self._streams))
        else:
            found = compute_figures(system.fire(sent, self._streams))
        seconds, after = monotonic() - began, read_cpu_times(system.process.pid)
        cores = {kind: round((after[kind] - used.get(kind, 0.0)) / seconds, 2) for kind in after}
        self._journal.note(
            event, system=name, streams=self._streams, cycle=cycle, **found, **self._measure_energy(joules), cores=cores
        )

    def _measure_energy(self, before: float | None) -> dict[str, float]:
        after = self._joules()
        return {} if before is None or after is None else {"gpu_energy_j": after - before}

    # Arrivals by themselves

    def ttft(self) -> None:
        capacity = self._measure_capacity()
        # What was sent last still has to be answered, at about the pace of the closed loop.
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
        """Requests a second that ours gets through in a closed loop."""
        if not self._journal.find("closed", system="ours"):
            self._run_closed_loop("ours", 0)
        runs = self._journal.find("closed", system="ours")
        return float(sum(run["output_tokens_per_s"] for run in runs) / len(runs) / OUTPUT)

    def _time_alone(self, tokens: int) -> float:
        """The longest of a few answers, with nothing beside them."""
        system = self._use_server()
        records = system.run_requests(make_requests(self._next_seed(), _ALONE, tokens), 1).records
        seconds = max((one.end_s or 0.0) - one.sent_s for one in records[1:])
        self._journal.note("alone", output=tokens, seconds=seconds)
        return seconds

    def _search(self, wanted: LatencyObjective, rates: Sequence[float]) -> None:
        """Two climbs: what the second keeps again is confirmed. It begins a step lower, for the first has to fill the server."""
        tries = self._climb(wanted, rates)
        if not tries:  # there was no time
            return
        rate, above = find_bracket(tries)
        if rate is None:
            rate, above = rates[0] / 2, rates[0]
        below = [one for one in rates if one < rate][-1:]
        tries += self._climb(wanted, [*below, *interpolate_rates(rate, above or rate * rates[-1] / rates[-2], _FINER)])
        rate, above = find_bracket(tries)
        confirmed = sum(one.met and one.rate == rate for one in tries) > 1
        self._journal.note(
            "found", latency=wanted.latency, output=wanted.output, rate=rate, above=above, confirmed=confirmed
        )

    def _climb(self, wanted: LatencyObjective, rates: Sequence[float]) -> list[Trial]:
        system, seed = self._use_server(), self._next_seed()
        times, windows = plan_climb(rates, wanted.step_s, wanted.skip_s, seed)
        what = f"a climb for {wanted.latency} of {wanted.output} tokens"
        if not self._journal.has_time(what, times[-1] + wanted.drain_s + 3.0):
            return []
        sent, joules = make_requests(seed, len(times), wanted.output), self._joules()
        fired = run_loadgen(split_into_tasks(system.target, sent, times, _CONNECTIONS, default_process_count()), sent)
        found = [judge_window(one, fired.records, wanted.latency, LIMIT_S) for one in windows]
        for one, verdict in zip(windows, found, strict=True):
            self._journal.note(
                "window", latency=wanted.latency, output=wanted.output, rate=one.rate, met=verdict.met, p95_s=verdict.p95_s,
                median_s=verdict.median_s, judged=verdict.judged, failed=verdict.failed,
                in_flight=[round(mean, 1) for mean in verdict.in_flight], grows=verdict.grows, judged_s=one.to_s - one.from_s,
            )  # fmt: skip
        self._journal.note(
            "climb", latency=wanted.latency, output=wanted.output, window_s=fired.window_s,
            output_tokens=sum(one.output_tokens or 0 for one in fired.records), **self._measure_energy(joules),
        )  # fmt: skip
        return [Trial(one.rate, verdict.met) for one, verdict in zip(windows, found, strict=True)]

    def _use_server(self) -> ServerSystem:
        system = self._turns.use("ours")
        assert isinstance(system, ServerSystem)
        return system

    def _next_seed(self) -> int:
        self._seed += _SEEDS_APART
        return 500_000 + self._seed

    # How long things take

    def _estimate_longest(self, event: str, field: str, unknown: float, **of: str) -> float:
        """Of what was seen, and a little more."""
        return 1.2 * max((line[field] for line in self._journal.find(event, **of) if field in line), default=unknown)

    def _estimate_switch(self, leaving: str, coming: str) -> float:
        if not self._sleeping:
            return 0.0
        asleep_s = self._estimate_longest("asleep", "seconds", _ASLEEP_S, system=leaving)
        return asleep_s + self._estimate_longest("awake", "seconds", _AWAKE_S, system=coming)


def _choose_rates(capacity: float, shares: tuple[float, float]) -> list[float]:
    """Those of the first climb, from one share of the capacity to the other."""
    low, high = (float(f"{share * capacity:.3g}") for share in shares)
    return [*interpolate_rates(low, high, _STEPS - 2), high]


def _get_pair_order(number: int) -> tuple[str, str]:
    """It turns from pair to pair, so whoever ended one begins the next."""
    return ("offline", "ours") if number % 2 == 0 else ("ours", "offline")


def main() -> int:
    given = _build_parser().parse_args()
    began = monotonic()
    given.out.mkdir(parents=True, exist_ok=True)
    journal = Journal(given.out, began + given.seconds - _STOP_S)
    signal.signal(signal.SIGALRM, _raise_timeout)
    signal.setitimer(signal.ITIMER_REAL, given.seconds - _STOP_S)
    meter, absent = open_nvml()
    for one in absent:
        print(one, flush=True)

    def total(field: str) -> Any:
        return sum(getattr(sample, field) or 0 for sample in meter.read()) if meter else None

    turns = _create_turns(given, lambda: total("memory_bytes"), journal)
    turns.prepare("ours")
    study = LargeModelStudy(turns, journal, lambda: total("energy_j"), given)
    whole = True
    try:
        for part in given.parts:
            whole &= _run_part(part, study, journal)
    except StudyTimeout:
        journal.note("time up")
        whole = False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        _record_last_switches(turns, journal)
        turns.stop()
        print("\n".join(summarize(journal.lines, given.wanted)), flush=True)
    return 0 if whole and not journal.find("left out") else 1


def _run_part(part: str, study: LargeModelStudy, journal: Journal) -> bool:
    """One part; what fails in it does not keep the next from being tried. A system that does not even start does."""
    if not journal.has_time(part, _RUN_S):
        return False
    try:
        getattr(study, part)()
    except TurnFailed as failure:
        journal.note("failed", part=part, why=str(failure))
        return False
    return True


def _create_turns(given: Any, used_bytes: Callable[[], int | None], journal: Journal) -> TurnTaker:
    settings: dict[str, Any] = {
        "load_format": "dummy", "max_model_len": 2048, "max_num_batched_tokens": 8192,
        "gpu_memory_utilization": 0.8, "kv_cache_memory_bytes": int(given.cache_gib * 2**30),
    }  # fmt: skip
    settings |= {name: json.loads(value) for name, _, value in (one.partition("=") for one in given.set)}
    offline = settings if given.no_sleep else {**settings, **OFFLINE_SETTINGS}
    journal.note("study", model=given.model.name, parts=given.parts, settings=settings, sleeping=not given.no_sleep)
    makers = {
        "offline": lambda: SleepableOffline("offline", given.model, offline, given.out),
        "ours": lambda: SleepableBay("ours", given.model, settings, given.out),
    }
    most = int(given.asleep_gib * 2**30)
    return TurnTaker(makers, used_bytes, most, not given.no_sleep, journal.note)


def _record_last_switches(turns: TurnTaker, journal: Journal) -> None:
    """With the first token of each, which is known only afterwards."""
    ours = turns.find_server()
    with suppress(TurnFailed):
        if isinstance(ours, SleepableBay):
            journal.note("switches", switches=ours.list_switches())


def _build_parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--model", type=Path, required=True)
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--seconds", type=float, default=1800.0, help="ends by then, with what there is")
    options.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="in this order")
    options.add_argument("--pairs", type=int, default=5, help="of closed loops, the first included")
    options.add_argument("--streams", type=int, default=256)
    options.add_argument("--waves", type=int, default=2, help="requests of a closed loop, in times the streams")
    options.add_argument("--step", type=float, default=60.0, help="seconds of Poisson arrivals at one rate")
    options.add_argument("--skip", type=float, default=35.0, help="of them that are not judged")
    options.add_argument("--cache-gib", type=float, default=30.0, help="KV cache of each")
    options.add_argument("--asleep-gib", type=float, default=24.0, help="that may be taken of the GPU while one sleeps")
    options.add_argument(
        "--wanted", type=float, default=TARGET_TOKENS_PER_S, help="output tok/s of one GPU, for the summary"
    )
    options.add_argument("--no-sleep", action="store_true", help="both are awake all the time")
    options.add_argument("--set", nargs="*", default=[], help="engine arguments of both, NAME=JSON")
    return options


def _raise_timeout(number: int, frame: object) -> None:
    raise StudyTimeout


if __name__ == "__main__":
    os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    sys.exit(main())
