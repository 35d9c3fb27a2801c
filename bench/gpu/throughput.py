"""The whole stack on a GPU against the bare engine and its own server: the same requests, taking turns.

    python -m bench.gpu.throughput --model FOLDER --out FOLDER [--streams 256 512] [--cycles 5] [--seconds 900]
                                   [--poisson-seconds 15] [--closed-systems NAME...] [--poisson-systems NAME...]

Every system gets 4 × streams requests of 128 tokens in and 128 out, at most `streams` of them in flight, under the lab's
client; the engine without a server gets them in its own process. Then requests arrive by Poisson at 70% of what ours gave, at
every system that is a server, or at those named; each is warmed by such arrivals before its first time. Latencies count from
when a request should have been sent.
Writes `runs.jsonl` (a line for each run) and `stamps.msgpack` (when every token came); `bench.gpu.throughput_table` makes the table.
Ends early, with what there is, when the time is up.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

import msgspec

from bench.gpu.cpu_time import read_cpu_times
from bench.gpu.rate_windows import mean_in_flight_by_thirds
from bench.gpu.systems_under_test import OfflineVllm, ServerSystem, SystemUnderTest, start_system
from enginebay.lab.loadgen.sender_pool import LoadgenResult
from enginebay.lab.profiles import arrivals
from enginebay.lab.workload.request_records import Request
from enginebay.meters.devices.nvml_meter import open_nvml

INPUT, OUTPUT, WAVES = 128, 128, 4
_VOCABULARY = range(100, 49000)  # ordinary tokens of every tokenizer used here
_SHARE = 0.7  # of capacity, for arrivals by themselves
_WARM_S = 3.0  # of arrivals by themselves, before they are first measured


@dataclass(frozen=True)
class PoissonArrivals:
    """When requests are sent, by Poisson."""

    rate: float  # a second
    times: Sequence[float]

    @property
    def sending_s(self) -> float:
        return len(self.times) / self.rate


@dataclass(frozen=True)
class PoissonPlan:
    """What is done with arrivals by themselves."""

    systems: Sequence[str]
    cycles: int
    seconds: float


def make_requests(seed: int, count: int, output: int = OUTPUT) -> list[Request]:
    """Prompts that share nothing with those of another seed: a prefix cache finds none of them."""
    source = random.Random(seed)
    return [Request(tuple(source.choices(_VOCABULARY, k=INPUT)), INPUT, output) for _ in range(count)]


def draw_arrivals(rate: float, seconds: float, seed: int) -> PoissonArrivals:
    return PoissonArrivals(rate, arrivals.poisson(rate, max(1, int(rate * seconds)), seed))


def select_systems(names: Sequence[str], wanted: Sequence[str] | None, option: str) -> list[str]:
    """Those wanted, or all. Raises `SystemExit` for one that is not among them. Pure."""
    for name in wanted or ():
        if name not in names:
            raise SystemExit(f"{option}: {name} is none of {', '.join(names)}")
    return list(names if wanted is None else wanted)


def list_servers(names: Sequence[str]) -> list[str]:
    """Those that requests can arrive at. Pure."""
    return [name for name in names if not name.startswith("offline")]


def compute_figures(fired: LoadgenResult) -> dict[str, Any]:
    records = fired.records
    ttfts = sorted((record.first_s or 0.0) - record.intended_s for record in records)
    tokens = sum(record.output_tokens or 0 for record in records)
    return {
        "window_s": fired.window_s,
        "output_tokens": tokens,
        "output_tokens_per_s": tokens / fired.window_s,
        "ttft_median_s": median(ttfts),
        "ttft_p95_s": ttfts[int(0.95 * (len(ttfts) - 1))],
        "e2e_median_s": median((record.end_s or 0.0) - record.intended_s for record in records),
    }


class ThroughputStudy:
    """Runs of all systems, written down as they come."""

    def __init__(self, systems: Mapping[str, SystemUnderTest], out: Path, deadline: float) -> None:
        self.systems, self._out, self._deadline = systems, out, deadline
        self.runs: list[dict[str, Any]] = []
        self._meter, absent = open_nvml()
        if absent:
            print(absent, flush=True)

    def _read_energy(self) -> float | None:
        return sum(sample.energy_j or 0.0 for sample in self._meter.read()) if self._meter else None

    def run(
        self, name: str, load: str, sent: Sequence[Request], streams: int, arriving: PoissonArrivals | None = None
    ) -> bool:
        """One run of one system. False: no time is left."""
        longest = max((run["window_s"] for run in self.runs if run["load"] == load), default=20.0)
        longest = max(longest, arriving.sending_s if arriving else 0.0)
        if monotonic() + 1.5 * longest > self._deadline:
            return False
        system = self.systems[name]
        used, joules, began = read_cpu_times(system.process.pid), self._read_energy(), monotonic()
        found: dict[str, Any]
        if isinstance(system, OfflineVllm):
            found = dict(system.run(sent, OUTPUT, streams))
        else:
            assert isinstance(system, ServerSystem)
            fired = system.run_requests(sent, streams, arriving.times if arriving else None)
            found = compute_figures(fired)
            if arriving:
                in_flight = mean_in_flight_by_thirds(fired.records, 0.0, arriving.sending_s)
                found |= {"rate": arriving.rate, "in_flight": [round(mean, 1) for mean in in_flight]}
            self._write_stamps(name, load, fired)
        after = read_cpu_times(system.process.pid)
        after_j = self._read_energy()
        found |= {
            "system": name,
            "load": load,
            "cycle": sum(r["system"] == name and r["load"] == load for r in self.runs),
        }
        found["cores"] = {key: round((after[key] - used.get(key, 0.0)) / (monotonic() - began), 2) for key in after}
        if joules is not None and after_j is not None:
            found["gpu_energy_j"] = after_j - joules
        self.runs.append(found)
        with (self._out / "runs.jsonl").open("a") as lines:
            lines.write(json.dumps(found) + "\n")
        arrived = f"  rate {found['rate']:.2f}/s, in flight {found['in_flight']}" if "rate" in found else ""
        print(f"{load:<12}{name:<14}{found['output_tokens_per_s']:>9,.0f} tok/s  "
              f"TTFT {found.get('ttft_median_s', 0) * 1e3:7.1f} ms  {found['cores']}{arrived}", flush=True)  # fmt: skip
        return True

    def _write_stamps(self, name: str, load: str, fired: LoadgenResult) -> None:
        """Each token's arrival in microseconds after the one before it: small, and nothing is lost."""
        answers = []
        for record in fired.records:
            last, gaps = 0, []
            for stamp in fired.tokens.get(record.index, ()):
                now = round(stamp * 1e6)
                gaps.append(now - last)
                last = now
            answers.append((record.index, record.intended_s, record.sent_s, record.end_s, record.output_tokens, gaps))
        with (self._out / "stamps.msgpack").open("ab") as place:
            place.write(msgspec.msgpack.encode({"system": name, "load": load, "answers": answers}))

    def find_first(self, name: str, load: str, figure: str) -> float | None:
        return next((run[figure] for run in self.runs if (run["system"], run["load"]) == (name, load)), None)


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--model", type=Path, required=True)
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--systems", nargs="+", default=["offline", "ours", "vllm serve", "vllm serve-4"])
    options.add_argument("--streams", nargs="+", type=int, default=[256, 512])
    options.add_argument(
        "--cycles", nargs="+", type=int, default=[5], help="of all loads, or of each number of streams"
    )
    options.add_argument("--poisson-cycles", type=int, default=5)
    options.add_argument("--poisson-seconds", type=float, default=15.0, help="of sending, each time")
    options.add_argument("--closed-systems", nargs="+", metavar="NAME", help="of --systems; default: all")
    options.add_argument("--poisson-systems", nargs="+", metavar="NAME", help="of --systems; default: all servers")
    options.add_argument("--seconds", type=float, default=900.0)
    options.add_argument("--cache-gib", type=float, default=16.5, help="KV cache of each system")
    options.add_argument("--set", nargs="*", default=[], help="engine arguments, NAME=JSON")
    given = options.parse_args()
    closed = select_systems(given.systems, given.closed_systems, "--closed-systems")
    arriving_at = select_systems(list_servers(given.systems), given.poisson_systems, "--poisson-systems")
    by_themselves = PoissonPlan(arriving_at, given.poisson_cycles, given.poisson_seconds)
    deadline = monotonic() + given.seconds
    given.out.mkdir(parents=True, exist_ok=True)
    settings: dict[str, Any] = {"load_format": "dummy", "max_model_len": 2048, "gpu_memory_utilization": 0.3}
    # Systems that start together would take each other's memory for their own; a cache of a given size needs no guess.
    settings["kv_cache_memory_bytes"] = int(given.cache_gib * 2**30)
    settings |= {name: json.loads(value) for name, _, value in (one.partition("=") for one in given.set)}
    systems = {name: start_system(name, given.model, settings, given.out) for name in given.systems}
    try:
        for system in systems.values():
            system.wait_ready()
            print(f"{system.name} is up after {system.started_s:.1f} s", flush=True)
        cycles = given.cycles * len(given.streams) if len(given.cycles) == 1 else given.cycles
        work = ThroughputStudy(systems, given.out, deadline)
        run_study(work, closed, dict(zip(given.streams, cycles, strict=True)), by_themselves)
    finally:
        for system in systems.values():
            system.stop()
    return 0


def run_study(
    work: ThroughputStudy, closed: Sequence[str], cycles: Mapping[int, int], by_themselves: PoissonPlan
) -> None:
    """`cycles`: how often each number of streams is measured. The order of the systems turns from cycle to cycle."""
    names = list(work.systems)
    for name in names:
        work.run(name, "warm-up", make_requests(999, 256), 256)
    for cycle in range(max(*cycles.values(), by_themselves.cycles)):
        order = names if cycle % 2 == 0 else names[::-1]
        for streams in (streams for streams, often in cycles.items() if cycle < often):
            sent = make_requests(cycle * 10_000 + streams, WAVES * streams)
            for name in (name for name in order if name in closed):
                if not work.run(name, f"closed {streams}", sent, streams):
                    return
        if cycle < by_themselves.cycles:
            names_now = [name for name in order if name in by_themselves.systems]
            _run_poisson(work, names_now, min(cycles), cycle, by_themselves.seconds)


def _run_poisson(work: ThroughputStudy, names: Sequence[str], streams: int, cycle: int, seconds: float) -> None:
    capacity = work.find_first("ours", f"closed {streams}", "output_tokens_per_s")
    if capacity is None:
        return
    rate = _SHARE * capacity / OUTPUT
    warming, arriving = draw_arrivals(rate, _WARM_S, 1_000), draw_arrivals(rate, seconds, cycle)
    for name in names:
        if cycle == 0:
            work.run(name, "warm-up", make_requests(76_000, len(warming.times)), 512, warming)
        work.run(name, "poisson", make_requests(77_000 + cycle, len(arriving.times)), 512, arriving)


if __name__ == "__main__":
    os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    sys.exit(main())
