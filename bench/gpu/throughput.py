"""Compare `bay serve` on a GPU with vLLM offline and `vllm serve`: the same requests, in turn.

    python -m bench.gpu.throughput --model FOLDER --out FOLDER [--streams 256 512] [--cycles 5] [--seconds 900]
                                   [--poisson-seconds 15] [--closed-systems NAME...] [--poisson-systems NAME...]

Every system gets 4 × streams requests of 128 tokens in and 128 out from the lab's load generator, at most `streams` in flight;
the engine without a server gets them in its own process. Then every server, or those named, gets Poisson arrivals at 70% of
the closed-loop throughput of `ours`, after a warm-up with such arrivals. Latency counts from the intended send time.
Writes `runs.jsonl` (a line per run) and `stamps.msgpack` (the arrival time of every token); `bench.gpu.throughput_table` makes the
table. Stops early when time is up and keeps the runs so far.
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
from enginebay.meters.devices.nvml_meter import open_nvml_meter

INPUT, OUTPUT, WAVES = 128, 128, 4
_VOCABULARY = range(100, 49000)  # ordinary tokens of every tokenizer used here
_SHARE = 0.7  # of the closed-loop capacity, for Poisson arrivals
_WARM_S = 3.0  # of Poisson arrivals, before they are first measured


@dataclass(frozen=True)
class PoissonArrivals:
    """Send times of a Poisson process."""

    rate: float  # requests/s
    times: Sequence[float]

    @property
    def sending_s(self) -> float:
        return len(self.times) / self.rate


@dataclass(frozen=True)
class PoissonPlan:
    """The Poisson part of the study."""

    systems: Sequence[str]
    cycles: int
    seconds: float


def make_requests(seed: int, count: int, output: int = OUTPUT) -> list[Request]:
    """Make requests whose prompts share no prefix with those of another seed, so that a prefix cache has no hits."""
    source = random.Random(seed)
    return [Request(tuple(source.choices(_VOCABULARY, k=INPUT)), INPUT, output) for _ in range(count)]


def draw_arrivals(rate: float, seconds: float, seed: int) -> PoissonArrivals:
    return PoissonArrivals(rate, arrivals.poisson(rate, max(1, int(rate * seconds)), seed))


def select_systems(names: Sequence[str], selected: Sequence[str] | None, option: str) -> list[str]:
    """Return the selected systems, or all. Raise `SystemExit` for an unknown one. Pure."""
    for name in selected or ():
        if name not in names:
            raise SystemExit(f"{option}: unknown system {name!r}; choose from {', '.join(names)}")
    return list(names if selected is None else selected)


def list_servers(names: Sequence[str]) -> list[str]:
    """Return the systems that are servers. Pure."""
    return [name for name in names if not name.startswith("offline")]


def compute_figures(result: LoadgenResult) -> dict[str, Any]:
    records = result.records
    ttfts = sorted((record.first_s or 0.0) - record.intended_s for record in records)
    tokens = sum(record.output_tokens or 0 for record in records)
    return {
        "window_s": result.window_s,
        "output_tokens": tokens,
        "output_tokens_per_s": tokens / result.window_s,
        "ttft_median_s": median(ttfts),
        "ttft_p95_s": ttfts[int(0.95 * (len(ttfts) - 1))],
        "e2e_median_s": median((record.end_s or 0.0) - record.intended_s for record in records),
    }


class ThroughputStudy:
    """Runs the systems and records each run."""

    def __init__(self, systems: Mapping[str, SystemUnderTest], out: Path, deadline: float) -> None:
        self.systems, self._out, self._deadline = systems, out, deadline
        self.runs: list[dict[str, Any]] = []
        self._meter, problems = open_nvml_meter()
        if problems:
            print(problems, flush=True)

    def _read_energy(self) -> float | None:
        return sum(sample.energy_j or 0.0 for sample in self._meter.read()) if self._meter else None

    def run(
        self, name: str, load: str, requests: Sequence[Request], streams: int, poisson: PoissonArrivals | None = None
    ) -> bool:
        """Run one load on one system. Return False if no time is left."""
        longest = max((run["window_s"] for run in self.runs if run["load"] == load), default=20.0)
        longest = max(longest, poisson.sending_s if poisson else 0.0)
        if monotonic() + 1.5 * longest > self._deadline:
            return False
        system = self.systems[name]
        used, joules, began = read_cpu_times(system.process.pid), self._read_energy(), monotonic()
        figures: dict[str, Any]
        if isinstance(system, OfflineVllm):
            figures = dict(system.run(requests, OUTPUT, streams))
        else:
            assert isinstance(system, ServerSystem)
            result = system.run_requests(requests, streams, poisson.times if poisson else None)
            figures = compute_figures(result)
            if poisson:
                in_flight = mean_in_flight_by_thirds(result.records, 0.0, poisson.sending_s)
                figures |= {"rate": poisson.rate, "in_flight": [round(mean, 1) for mean in in_flight]}
            self._write_stamps(name, load, result)
        after = read_cpu_times(system.process.pid)
        after_j = self._read_energy()
        figures |= {
            "system": name,
            "load": load,
            "cycle": sum(r["system"] == name and r["load"] == load for r in self.runs),
        }
        figures["cores"] = {key: round((after[key] - used.get(key, 0.0)) / (monotonic() - began), 2) for key in after}
        if joules is not None and after_j is not None:
            figures["gpu_energy_j"] = after_j - joules
        self.runs.append(figures)
        with (self._out / "runs.jsonl").open("a") as lines:
            lines.write(json.dumps(figures) + "\n")
        arrivals_text = f"  rate {figures['rate']:.2f}/s, in flight {figures['in_flight']}" if "rate" in figures else ""
        print(f"{load:<12}{name:<14}{figures['output_tokens_per_s']:>9,.0f} tok/s  "
              f"TTFT {figures.get('ttft_median_s', 0) * 1e3:7.1f} ms  {figures['cores']}{arrivals_text}", flush=True)  # fmt: skip
        return True

    def _write_stamps(self, name: str, load: str, result: LoadgenResult) -> None:
        """Write each token's arrival in microseconds after the previous one: compact and lossless."""
        answers = []
        for record in result.records:
            last, gaps = 0, []
            for stamp in result.tokens.get(record.index, ()):
                now = round(stamp * 1e6)
                gaps.append(now - last)
                last = now
            answers.append((record.index, record.intended_s, record.sent_s, record.end_s, record.output_tokens, gaps))
        with (self._out / "stamps.msgpack").open("ab") as file:
            file.write(msgspec.msgpack.encode({"system": name, "load": load, "answers": answers}))

    def find_first(self, name: str, load: str, figure: str) -> float | None:
        return next((run[figure] for run in self.runs if (run["system"], run["load"]) == (name, load)), None)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--systems", nargs="+", default=["offline", "ours", "vllm serve", "vllm serve-4"])
    parser.add_argument("--streams", nargs="+", type=int, default=[256, 512])
    parser.add_argument(
        "--cycles", nargs="+", type=int, default=[5], help="for all loads, or one for each number of streams"
    )
    parser.add_argument("--poisson-cycles", type=int, default=5)
    parser.add_argument("--poisson-seconds", type=float, default=15.0, help="duration of each run")
    parser.add_argument("--closed-systems", nargs="+", metavar="NAME", help="subset of --systems; default: all")
    parser.add_argument(
        "--poisson-systems", nargs="+", metavar="NAME", help="subset of --systems; default: all servers"
    )
    parser.add_argument("--seconds", type=float, default=900.0)
    parser.add_argument("--cache-gib", type=float, default=16.5, help="KV cache of each system")
    parser.add_argument("--set", nargs="*", default=[], help="engine arguments, NAME=JSON")
    args = parser.parse_args()
    closed = select_systems(args.systems, args.closed_systems, "--closed-systems")
    poisson_systems = select_systems(list_servers(args.systems), args.poisson_systems, "--poisson-systems")
    poisson = PoissonPlan(poisson_systems, args.poisson_cycles, args.poisson_seconds)
    deadline = monotonic() + args.seconds
    args.out.mkdir(parents=True, exist_ok=True)
    settings: dict[str, Any] = {"load_format": "dummy", "max_model_len": 2048, "gpu_memory_utilization": 0.3}
    # Systems that start together would count each other's memory as their own; a fixed cache size avoids that.
    settings["kv_cache_memory_bytes"] = int(args.cache_gib * 2**30)
    settings |= {name: json.loads(value) for name, _, value in (setting.partition("=") for setting in args.set)}
    systems = {name: start_system(name, args.model, settings, args.out) for name in args.systems}
    try:
        for system in systems.values():
            system.wait_ready()
            print(f"{system.name} ready after {system.started_s:.1f} s", flush=True)
        cycles = args.cycles * len(args.streams) if len(args.cycles) == 1 else args.cycles
        work = ThroughputStudy(systems, args.out, deadline)
        run_study(work, closed, dict(zip(args.streams, cycles, strict=True)), poisson)
    finally:
        for system in systems.values():
            system.stop()
    return 0


def run_study(work: ThroughputStudy, closed: Sequence[str], cycles: Mapping[int, int], poisson: PoissonPlan) -> None:
    """Run all loads. `cycles`: runs per number of streams. The order of the systems alternates from cycle to cycle."""
    names = list(work.systems)
    for name in names:
        work.run(name, "warm-up", make_requests(999, 256), 256)
    for cycle in range(max(*cycles.values(), poisson.cycles)):
        order = names if cycle % 2 == 0 else names[::-1]
        for streams in (streams for streams, count in cycles.items() if cycle < count):
            requests = make_requests(cycle * 10_000 + streams, WAVES * streams)
            for name in (name for name in order if name in closed):
                if not work.run(name, f"closed {streams}", requests, streams):
                    return
        if cycle < poisson.cycles:
            servers = [name for name in order if name in poisson.systems]
            _run_poisson(work, servers, min(cycles), cycle, poisson.seconds)


def _run_poisson(work: ThroughputStudy, names: Sequence[str], streams: int, cycle: int, seconds: float) -> None:
    capacity = work.find_first("ours", f"closed {streams}", "output_tokens_per_s")
    if capacity is None:
        return
    rate = _SHARE * capacity / OUTPUT
    warmup, measured = draw_arrivals(rate, _WARM_S, 1_000), draw_arrivals(rate, seconds, cycle)
    for name in names:
        if cycle == 0:
            work.run(name, "warm-up", make_requests(76_000, len(warmup.times)), 512, warmup)
        work.run(name, "poisson", make_requests(77_000 + cycle, len(measured.times)), 512, measured)


if __name__ == "__main__":
    os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    sys.exit(main())
