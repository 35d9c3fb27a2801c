"""A model of which one GPU holds a single copy: ours against the bare engine in turns, and the rates that keep an objective.

    python -m bench.gpu.large --model FOLDER --out FOLDER [--seconds 1800] [--parts pair ttft pairs e2e] [--pairs 5]

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

from bench.gpu.large_summary import LIMIT_S, WANTED, summary
from bench.gpu.processor_time import processor_times
from bench.gpu.systems import Offline, Served
from bench.gpu.throughput import OUTPUT, figures, requests
from bench.gpu.turns import OFFLINE_SETTINGS, OfflineInTurns, OursInTurns, TurnFailed, Turns
from bench.gpu.windows import Latency, between, climb, judge
from enginebay.lab.choosing import Try, bracket
from enginebay.lab.client.ceiling import usual_processes
from enginebay.lab.client.launch import fire
from enginebay.lab.client.order import share_out
from enginebay.meters.nvml import open_nvml

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
class Objective:
    """What is to stay under `LIMIT_S`, and how long it is looked at."""

    latency: Latency
    output: int  # tokens
    step_s: float  # at one rate
    skip_s: float  # of it that is not judged
    drain_s: float  # until what was sent last is answered


class TimeUp(Exception):
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
        print(f"{line['at_s']:7.1f} s  {event:<9}{_told(fields)}", flush=True)

    def of(self, event: str, **fields: Any) -> list[dict[str, Any]]:
        wanted = {"event": event, **fields}
        return [line for line in self.lines if wanted.items() <= {k: line.get(k) for k in wanted}.items()]

    def fits(self, what: str, seconds: float) -> bool:
        left = self._deadline - monotonic()
        if seconds <= left:
            return True
        self.note("left out", what=what, needed_s=round(seconds), left_s=round(left))
        return False


def _told(fields: dict[str, Any]) -> str:
    rounded = {name: round(value, 3) if isinstance(value, float) else value for name, value in fields.items()}
    return ", ".join(f"{name} {value}" for name, value in rounded.items())


class Study:
    def __init__(self, turns: Turns, journal: Journal, joules: Callable[[], float | None], given: Any) -> None:
        self._turns, self._journal, self._joules = turns, journal, joules
        self._streams, self._waves, self._pairs = given.streams, given.waves, given.pairs
        self._step_s, self._skip_s, self._sleeping = given.step, given.skip, not given.no_sleep
        self._warm: set[str] = set()
        self._seed = 0

    # Closed loop

    def pair(self) -> None:
        self._pair(0)

    def pairs(self) -> None:
        for number in range(1, self._pairs):
            needed = 2 * self._longest("closed", "window_s", _RUN_S) + self._switch_s(*_order(number)) + 2.0
            if not self._journal.fits(f"pairs from {number + 1} of {self._pairs} on", needed):
                return
            self._pair(number)

    def _pair(self, number: int) -> None:
        for name in _order(number):
            self._closed(name, number)

    def _closed(self, name: str, cycle: int) -> None:
        system = self._turns.use(name)
        if name not in self._warm:
            self._warm.add(name)
            self._load("warm-up", name, system, 999, self._streams, cycle=0)
        self._load("closed", name, system, cycle * 10_000 + self._streams, self._waves * self._streams, cycle=cycle)

    def _load(self, event: str, name: str, system: Any, seed: int, count: int, cycle: int) -> None:
        sent = requests(seed, count)
        used, joules, began = processor_times(system.process.pid), self._joules(), monotonic()
        if isinstance(system, Offline):
            found = dict(system.run(sent, OUTPUT, self._streams))
        else:
            found = figures(system.fire(sent, self._streams))
        seconds, after = monotonic() - began, processor_times(system.process.pid)
        cores = {kind: round((after[kind] - used.get(kind, 0.0)) / seconds, 2) for kind in after}
        self._journal.note(
            event, system=name, streams=self._streams, cycle=cycle, **found, **self._spent(joules), cores=cores
        )

    def _spent(self, before: float | None) -> dict[str, float]:
        after = self._joules()
        return {} if before is None or after is None else {"gpu_energy_j": after - before}

    # Arrivals by themselves

    def ttft(self) -> None:
        capacity = self._capacity()
        # What was sent last still has to be answered, at about the pace of the closed loop.
        drain_s = self._longest("closed", "e2e_median_s", 10.0)
        self._search(Objective("ttft", OUTPUT, self._step_s, self._skip_s, drain_s), _rates(capacity, TTFT_SHARES))

    def e2e(self) -> None:
        capacity, step_s, skip_s = self._capacity(), _SHORT * self._step_s, _SHORT * self._skip_s
        for tokens, shares in E2E_SHARES.items():
            if not self._journal.fits(f"e2e of {tokens} tokens", step_s + 10.0):
                continue
            if self._alone_s(tokens) >= LIMIT_S:
                self._journal.note("found", latency="e2e", output=tokens, rate=None, above=None, confirmed=False)
                continue
            self._search(Objective("e2e", tokens, step_s, skip_s, 2.0), _rates(capacity, shares))

    def _capacity(self) -> float:
        """Requests a second that ours gets through in a closed loop."""
        if not self._journal.of("closed", system="ours"):
            self._closed("ours", 0)
        runs = self._journal.of("closed", system="ours")
        return float(sum(run["output_tokens_per_s"] for run in runs) / len(runs) / OUTPUT)

    def _alone_s(self, tokens: int) -> float:
        """The longest of a few answers, with nothing beside them."""
        system = self._served()
        records = system.fire(requests(self._next_seed(), _ALONE, tokens), 1).records
        seconds = max((one.end_s or 0.0) - one.sent_s for one in records[1:])
        self._journal.note("alone", output=tokens, seconds=seconds)
        return seconds

    def _search(self, wanted: Objective, rates: Sequence[float]) -> None:
        """Two climbs: what the second keeps again is confirmed. It begins a step lower, for the first has to fill the server."""
        tries = self._climb(wanted, rates)
        if not tries:  # there was no time
            return
        rate, above = bracket(tries)
        if rate is None:
            rate, above = rates[0] / 2, rates[0]
        below = [one for one in rates if one < rate][-1:]
        tries += self._climb(wanted, [*below, *between(rate, above or rate * rates[-1] / rates[-2], _FINER)])
        rate, above = bracket(tries)
        confirmed = sum(one.met and one.rate == rate for one in tries) > 1
        self._journal.note(
            "found", latency=wanted.latency, output=wanted.output, rate=rate, above=above, confirmed=confirmed
        )

    def _climb(self, wanted: Objective, rates: Sequence[float]) -> list[Try]:
        system, seed = self._served(), self._next_seed()
        times, windows = climb(rates, wanted.step_s, wanted.skip_s, seed)
        what = f"a climb for {wanted.latency} of {wanted.output} tokens"
        if not self._journal.fits(what, times[-1] + wanted.drain_s + 3.0):
            return []
        sent, joules = requests(seed, len(times), wanted.output), self._joules()
        fired = fire(share_out(system.target, sent, times, _CONNECTIONS, usual_processes()), sent)
        found = [judge(one, fired.records, wanted.latency, LIMIT_S) for one in windows]
        for one, verdict in zip(windows, found, strict=True):
            self._journal.note(
                "window", latency=wanted.latency, output=wanted.output, rate=one.rate, met=verdict.met, p95_s=verdict.p95_s,
                median_s=verdict.median_s, judged=verdict.judged, failed=verdict.failed,
                in_flight=[round(mean, 1) for mean in verdict.in_flight], grows=verdict.grows, judged_s=one.to_s - one.from_s,
            )  # fmt: skip
        self._journal.note(
            "climb", latency=wanted.latency, output=wanted.output, window_s=fired.window_s,
            output_tokens=sum(one.output_tokens or 0 for one in fired.records), **self._spent(joules),
        )  # fmt: skip
        return [Try(one.rate, verdict.met) for one, verdict in zip(windows, found, strict=True)]

    def _served(self) -> Served:
        system = self._turns.use("ours")
        assert isinstance(system, Served)
        return system

    def _next_seed(self) -> int:
        self._seed += _SEEDS_APART
        return 500_000 + self._seed

    # How long things take

    def _longest(self, event: str, field: str, unknown: float, **of: str) -> float:
        """Of what was seen, and a little more."""
        return 1.2 * max((line[field] for line in self._journal.of(event, **of) if field in line), default=unknown)

    def _switch_s(self, leaving: str, coming: str) -> float:
        if not self._sleeping:
            return 0.0
        asleep_s = self._longest("asleep", "seconds", _ASLEEP_S, system=leaving)
        return asleep_s + self._longest("awake", "seconds", _AWAKE_S, system=coming)


def _rates(capacity: float, shares: tuple[float, float]) -> list[float]:
    """Those of the first climb, from one share of the capacity to the other."""
    low, high = (float(f"{share * capacity:.3g}") for share in shares)
    return [*between(low, high, _STEPS - 2), high]


def _order(number: int) -> tuple[str, str]:
    """It turns from pair to pair, so whoever ended one begins the next."""
    return ("offline", "ours") if number % 2 == 0 else ("ours", "offline")


def main() -> int:
    given = _options().parse_args()
    began = monotonic()
    given.out.mkdir(parents=True, exist_ok=True)
    journal = Journal(given.out, began + given.seconds - _STOP_S)
    signal.signal(signal.SIGALRM, _time_is_up)
    signal.setitimer(signal.ITIMER_REAL, given.seconds - _STOP_S)
    meter, absent = open_nvml()
    for one in absent:
        print(one, flush=True)

    def total(field: str) -> Any:
        return sum(getattr(sample, field) or 0 for sample in meter.read()) if meter else None

    turns = _turns(given, lambda: total("memory_bytes"), journal)
    turns.prepare("ours")
    study = Study(turns, journal, lambda: total("energy_j"), given)
    whole = True
    try:
        for part in given.parts:
            whole &= _done(part, study, journal)
    except TimeUp:
        journal.note("time up")
        whole = False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        _last_switches(turns, journal)
        turns.stop()
        print("\n".join(summary(journal.lines, given.wanted)), flush=True)
    return 0 if whole and not journal.of("left out") else 1


def _done(part: str, study: Study, journal: Journal) -> bool:
    """One part; what fails in it does not keep the next from being tried. A system that does not even start does."""
    if not journal.fits(part, _RUN_S):
        return False
    try:
        getattr(study, part)()
    except TurnFailed as failure:
        journal.note("failed", part=part, why=str(failure))
        return False
    return True


def _turns(given: Any, used_bytes: Callable[[], int | None], journal: Journal) -> Turns:
    settings: dict[str, Any] = {
        "load_format": "dummy", "max_model_len": 2048, "max_num_batched_tokens": 8192,
        "gpu_memory_utilization": 0.8, "kv_cache_memory_bytes": int(given.cache_gib * 2**30),
    }  # fmt: skip
    settings |= {name: json.loads(value) for name, _, value in (one.partition("=") for one in given.set)}
    offline = settings if given.no_sleep else {**settings, **OFFLINE_SETTINGS}
    journal.note("study", model=given.model.name, parts=given.parts, settings=settings, sleeping=not given.no_sleep)
    makers = {
        "offline": lambda: OfflineInTurns("offline", given.model, offline, given.out),
        "ours": lambda: OursInTurns("ours", given.model, settings, given.out),
    }
    most = int(given.asleep_gib * 2**30)
    return Turns(makers, used_bytes, most, not given.no_sleep, journal.note)


def _last_switches(turns: Turns, journal: Journal) -> None:
    """With the first token of each, which is known only afterwards."""
    ours = turns.served()
    with suppress(TurnFailed):
        if isinstance(ours, OursInTurns):
            journal.note("switches", switches=ours.switches())


def _options() -> argparse.ArgumentParser:
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
    options.add_argument("--wanted", type=float, default=WANTED, help="output tok/s of one GPU, for the summary")
    options.add_argument("--no-sleep", action="store_true", help="both are awake all the time")
    options.add_argument("--set", nargs="*", default=[], help="engine arguments of both, NAME=JSON")
    return options


def _time_is_up(number: int, frame: object) -> None:
    raise TimeUp


if __name__ == "__main__":
    os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    sys.exit(main())
