"""Compare the per-request cost of `bay serve` with that of gateways in front of an equally fast mock upstream.

    make bench-server                                                  all gateways
    python -m bench.server.gateway_comparison --peers mlflow smg       some; NAME==VERSION selects a version

Each server has one core. The load generator and the upstream or fake engine share another, or have one each if there are
more. Every round measures each server once in each scenario, in random order; ratios are within a round.

A gateway's work depends on how many tokens share an HTTP chunk, so streams are measured twice: with an upstream that sends
each token in its own chunk, and with one that sends bursts, as our fake engine does at full speed. The table shows the
tokens per chunk that reached the client.

Targets: at least 4 times the requests/s of MLflow's gateway, at least 0.8 times the streamed tokens/s of smg either way, and
under 1 ms added to the median latency. The load generator's ceiling, measured directly at the upstream, is at least twice
everything it measures.
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from bench.server.bay_server import BayServer
from bench.server.loadgen import HttpWorkload, LoadResult, build_chat_body, percentile, run_workload
from bench.server.mock_upstream import MODEL
from bench.server.peer_gateways import RECIPES, PeerGateway
from bench.server.server_process import BenchServerProcess, exit_on_sigterm, find_free_port
from bench.server.thresholds import check_at_least, check_at_most
from enginebay.engines.cpu_cores import list_physical_cores

OURS, ALONE, ONE_CORE = "enginebay", "upstream alone", "upstream, one core"
_SCRIPT = "abcdefghijklmnopqrstuvwxyz" * 10  # of the fake engine: one letter per token


class ServerUnderTest(Protocol):
    """A server that can be measured."""

    name: str
    model: str
    headers: Mapping[str, str]
    ends_with_done: bool

    def start(self) -> str:
        """Start and return the URL once it answers."""

    def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Scenario:
    """One kind of load, and the figure read from it."""

    name: str
    connections: int
    tokens: int
    stream: bool
    unit: str
    prompt: str = "Say hi."

    def value(self, result: LoadResult) -> float:
        if self.unit == "ms":
            return percentile(result.latencies_s, 50) * 1000
        return result.tokens_per_s if self.stream else result.requests_per_s


REQUESTS = Scenario("requests", 32, 8, False, "requests/s")
STREAMS = Scenario("streams", 64, 128, True, "tokens/s")
BURSTS = Scenario("bursts", 64, 128, True, "tokens/s in bursts", "Say hi in bursts of 16.")
LATENCY = Scenario("latency", 1, 8, False, "ms")
SCENARIOS = (REQUESTS, STREAMS, BURSTS, LATENCY)


class UpstreamServer:
    """The mock upstream: behind the gateways, or measured directly."""

    def __init__(self, name: str, core: int) -> None:
        self.name, self.model, self.ends_with_done = name, MODEL, True
        self.headers: Mapping[str, str] = {}
        self._core = core
        self._server: BenchServerProcess | None = None
        self._directory: Path | None = None

    def start(self) -> str:
        port = find_free_port()
        self._directory = Path(tempfile.mkdtemp(prefix="bench-"))
        command = [sys.executable, "-m", "bench.server.mock_upstream", "--port", str(port), "--core", str(self._core)]
        self._server = BenchServerProcess(command, self._directory / "log")
        url = f"http://127.0.0.1:{port}"
        self._server.wait_ready(url, build_chat_body(MODEL, 8, False), {})
        return url

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)


@dataclass(slots=True)
class GatewayMeasurements:
    """Values of all rounds by server and scenario."""

    values: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    lost: dict[str, int] = field(default_factory=dict)
    tokens_per_chunk: dict[tuple[str, str], float] = field(default_factory=dict)  # in the last round

    def record(self, server: str, scenario: Scenario, result: LoadResult, counts: bool) -> None:
        if result.lost:
            self.lost[server] = self.lost.get(server, 0) + result.lost
            print(f"{server}, {scenario.name}: {result.lost} lost: {result.reasons[0]}", flush=True)
        if counts:
            value = scenario.value(result) if result.requests else 0.0
            self.values.setdefault((server, scenario.name), []).append(value)
        if result.chunks:
            self.tokens_per_chunk[server, scenario.name] = result.tokens / result.chunks

    def mean(self, server: str, scenario: Scenario) -> float:
        return statistics.mean(self.values[server, scenario.name])

    def ratios(self, server: str, baseline: str, scenario: Scenario) -> list[float]:
        both = zip(self.values[server, scenario.name], self.values[baseline, scenario.name], strict=True)
        return [value / base if base else 0.0 for value, base in both]

    def added_ms(self, server: str) -> list[float]:
        """Return median latencies minus those of the upstream alone. Ours includes the fake engine's time."""
        both = zip(self.values[server, LATENCY.name], self.values[ALONE, LATENCY.name], strict=True)
        return [through - alone for through, alone in both]


def measure(
    servers: Sequence[tuple[ServerUnderTest, str]], rounds: int, seconds: float, client_core: int, seed: int
) -> GatewayMeasurements:
    """Measure interleaved rounds; the first one only warms up."""
    rng, measured = random.Random(seed), GatewayMeasurements()
    for number in range(-1, rounds):
        pairs = [(server, scenario) for server in servers for scenario in SCENARIOS]
        rng.shuffle(pairs)
        for (server, url), scenario in pairs:
            workload = HttpWorkload(
                url=url,
                bodies=[build_chat_body(server.model, scenario.tokens, scenario.stream, scenario.prompt)],
                connections=scenario.connections,
                seconds=seconds if number >= 0 else min(seconds, 0.5),
                stream=scenario.stream,
                tokens=scenario.tokens,
                headers=server.headers,
                ends_with_done=server.ends_with_done,
            )
            measured.record(server.name, scenario, run_workload(workload, [client_core]), counts=number >= 0)
        print(f"round {number + 1} of {rounds} done", file=sys.stderr, flush=True)
    return measured


def print_table(measured: GatewayMeasurements, names: Sequence[str]) -> None:
    heads = ("requests/s", "streamed tok/s", "per chunk", "in bursts", "per chunk", "p50 ms", "added ms", "lost")
    widths = (12, 16, 11, 12, 11, 9, 10, 7)
    print("\n" + " " * 20 + "".join(f"{head:>{width}}" for head, width in zip(heads, widths, strict=True)))
    for name in names:
        requests, streams, bursts, latency = (measured.mean(name, scenario) for scenario in SCENARIOS)
        single, burst = (measured.tokens_per_chunk.get((name, scenario.name), 0.0) for scenario in (STREAMS, BURSTS))
        added = statistics.mean(measured.added_ms(name))
        print(
            f"{name:<20}{requests:>12,.0f}{streams:>16,.0f}{single:>11.1f}{bursts:>12,.0f}{burst:>11.1f}"
            f"{latency:>9.3f}{added:>10.3f}{measured.lost.get(name, 0):>7}"
        )


def check_thresholds(measured: GatewayMeasurements, names: Sequence[str]) -> bool:
    """Print each target and whether the 95% interval meets it. Return whether all are met."""
    good = True
    for peer, scenario, target in (("mlflow", REQUESTS, 4.0), ("smg", STREAMS, 0.8), ("smg", BURSTS, 0.8)):
        for name in names:
            if name.partition("==")[0] == peer:
                good &= check_at_least(target, f"{scenario.unit} against {name}", measured.ratios(OURS, name, scenario))
    good &= check_at_most(1.0, "added to the median latency, ms", measured.added_ms(OURS))
    # Without bursts the upstream's writes are the limit, so the client's ceiling is measured in bursts.
    for scenario in (REQUESTS, BURSTS):
        highest = max(names, key=lambda name: measured.mean(name, scenario))
        name = f"load generator ceiling, {scenario.unit} against {highest}"
        good &= check_at_least(2.0, name, measured.ratios(ALONE, highest, scenario))
    lost = sum(measured.lost.values())
    print(f"{'responses lost':<60}{lost:>8}{'':<22}   none: {'met' if not lost else 'MISSED'}")
    return good and not lost


def compare(peers: Collection[str], rounds: int, seconds: float, seed: int) -> int:
    cores = list_physical_cores()
    if len(cores) < 2:
        raise SystemExit("needs two cores: one for the server, one for the load")
    server_core, client_core, engine_core = cores[0], cores[1], cores[2] if len(cores) > 2 else cores[1]
    upstream = UpstreamServer("", engine_core)
    started: list[ServerUnderTest] = []
    try:
        address = upstream.start()
        ours = BayServer(OURS, "fake", "fake", {"script": _SCRIPT}, {server_core}, {engine_core})
        servers: list[ServerUnderTest] = [ours, *(PeerGateway(name, address, {server_core}) for name in peers)]
        servers += [UpstreamServer(ALONE, server_core), UpstreamServer(ONE_CORE, client_core)]
        running = []
        for server in servers:
            started.append(server)
            running.append((server, server.start()))
        print(f"cores: server {server_core}, client {client_core}, upstream and fake engine {engine_core}", flush=True)
        measured = measure(running, rounds, seconds, client_core, seed)
    finally:
        for server in started:
            server.stop()
        upstream.stop()
    names = [OURS, *peers]
    print_table(measured, [*names, ALONE, ONE_CORE])
    print()
    return 0 if check_thresholds(measured, names) else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--peers", nargs="*", default=list(RECIPES))
    parser.add_argument("--rounds", type=int, default=5, choices=range(5, 11))
    parser.add_argument("--seconds", type=float, default=3.0, help="duration of each measurement")
    parser.add_argument("--seed", type=int, default=0, help="seed of the order")
    args = parser.parse_args()
    exit_on_sigterm()
    sys.exit(compare(args.peers, args.rounds, args.seconds, args.seed))
