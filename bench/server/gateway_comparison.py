"""What our server costs per request, beside gateways in front of an upstream that is as fast as our fake engine.

    make bench-server                                        all of them
    python -m bench.server.gateway_comparison --peers mlflow smg       some; NAME==VERSION chooses a version

Each server has one core. The load client, and the upstream or the fake engine, share another, or have one each where
there are more. In every round each server is measured once in each scenario, in random order; ratios are of one round.

Streams are measured twice, since it decides a gateway's work how many tokens share an HTTP chunk: with an upstream that
sends each by itself, and with one that sends them in bursts, as our fake engine does when it is not held back. The table
shows how many tokens a chunk had on its way to the client.

The bars: at least 4 times the requests/s of MLflow's gateway, at least 0.8 times the streamed tokens/s of smg either way,
under 1 ms added to the median answer. The load client's own ceiling, straight at the upstream, is at least twice all that
it measures.
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
_SCRIPT = "abcdefghijklmnopqrstuvwxyz" * 10  # of the fake engine: a token is a letter


class ServerUnderTest(Protocol):
    """A server that can be measured."""

    name: str
    model: str
    headers: Mapping[str, str]
    ends_with_done: bool

    def start(self) -> str:
        """Its address, once it answers."""

    def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Scenario:
    """One kind of load, and the number that is taken from it."""

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
    """The upstream itself: behind the gateways, or measured in a server's place."""

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
    """All rounds: values by contender and scenario, one for each round."""

    values: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    lost: dict[str, int] = field(default_factory=dict)
    tokens_per_chunk: dict[tuple[str, str], float] = field(default_factory=dict)  # tokens in a chunk, in the last round

    def record(self, contender: str, scenario: Scenario, result: LoadResult, counts: bool) -> None:
        if result.lost:
            self.lost[contender] = self.lost.get(contender, 0) + result.lost
            print(f"{contender}, {scenario.name}: {result.lost} lost: {result.reasons[0]}", flush=True)
        if counts:
            value = scenario.value(result) if result.requests else 0.0
            self.values.setdefault((contender, scenario.name), []).append(value)
        if result.chunks:
            self.tokens_per_chunk[contender, scenario.name] = result.tokens / result.chunks

    def mean(self, contender: str, scenario: Scenario) -> float:
        return statistics.mean(self.values[contender, scenario.name])

    def ratios(self, one: str, other: str, scenario: Scenario) -> list[float]:
        both = zip(self.values[one, scenario.name], self.values[other, scenario.name], strict=True)
        return [mine / theirs if theirs else 0.0 for mine, theirs in both]

    def added_ms(self, contender: str) -> list[float]:
        """Median answer time less that of the upstream alone. Our time has the engine's in it, which counts against us."""
        both = zip(self.values[contender, LATENCY.name], self.values[ALONE, LATENCY.name], strict=True)
        return [through - alone for through, alone in both]


def measure(
    contenders: Sequence[tuple[ServerUnderTest, str]], rounds: int, seconds: float, client_core: int, seed: int
) -> GatewayMeasurements:
    """Interleaved rounds; the first one only warms up."""
    chance, measured = random.Random(seed), GatewayMeasurements()
    for number in range(-1, rounds):
        pairs = [(contender, scenario) for contender in contenders for scenario in SCENARIOS]
        chance.shuffle(pairs)
        for (contender, url), scenario in pairs:
            load = HttpWorkload(
                url=url,
                bodies=[build_chat_body(contender.model, scenario.tokens, scenario.stream, scenario.prompt)],
                connections=scenario.connections,
                seconds=seconds if number >= 0 else min(seconds, 0.5),
                stream=scenario.stream,
                tokens=scenario.tokens,
                headers=contender.headers,
                ends_with_done=contender.ends_with_done,
            )
            measured.record(contender.name, scenario, run_workload(load, [client_core]), counts=number >= 0)
        print(f"round {number + 1} of {rounds} done", file=sys.stderr, flush=True)
    return measured


def print_table(measured: GatewayMeasurements, names: Sequence[str]) -> None:
    heads = ("requests/s", "streamed tok/s", "a chunk", "in bursts", "a chunk", "p50 ms", "added ms", "lost")
    widths = (12, 16, 9, 12, 9, 9, 10, 7)
    print("\n" + " " * 20 + "".join(f"{head:>{width}}" for head, width in zip(heads, widths, strict=True)))
    for name in names:
        requests, streams, bursts, latency = (measured.mean(name, scenario) for scenario in SCENARIOS)
        each, shared = (measured.tokens_per_chunk.get((name, scenario.name), 0.0) for scenario in (STREAMS, BURSTS))
        added = statistics.mean(measured.added_ms(name))
        print(
            f"{name:<20}{requests:>12,.0f}{streams:>16,.0f}{each:>9.1f}{bursts:>12,.0f}{shared:>9.1f}"
            f"{latency:>9.3f}{added:>10.3f}{measured.lost.get(name, 0):>7}"
        )


def check_thresholds(measured: GatewayMeasurements, names: Sequence[str]) -> bool:
    """Print each bar and whether the whole 95% interval is on its right side."""
    good = True
    for peer, scenario, bar in (("mlflow", REQUESTS, 4.0), ("smg", STREAMS, 0.8), ("smg", BURSTS, 0.8)):
        for name in names:
            if name.partition("==")[0] == peer:
                good &= check_at_least(bar, f"{scenario.unit} against {name}", measured.ratios(OURS, name, scenario))
    good &= check_at_most(1.0, "added to the median, ms", measured.added_ms(OURS))
    # One by one the upstream's writes are the limit, not the client: its ceiling is what it takes in bursts.
    for scenario in (REQUESTS, BURSTS):
        highest = max(names, key=lambda name: measured.mean(name, scenario))
        what = f"client's ceiling, {scenario.unit} against {highest}"
        good &= check_at_least(2.0, what, measured.ratios(ALONE, highest, scenario))
    lost = sum(measured.lost.values())
    print(f"{'answers lost':<60}{lost:>8}{'':<22}   none: {'met' if not lost else 'MISSED'}")
    return good and not lost


def compare(peers: Collection[str], rounds: int, seconds: float, seed: int) -> int:
    cores = list_physical_cores()
    if len(cores) < 2:
        raise SystemExit("two cores are needed: one for the server, one for the load")
    server, client, behind = cores[0], cores[1], cores[2] if len(cores) > 2 else cores[1]
    upstream = UpstreamServer("", behind)
    started: list[ServerUnderTest] = []
    try:
        address = upstream.start()
        ours = BayServer(OURS, "fake", "fake", {"script": _SCRIPT}, {server}, {behind})
        contenders: list[ServerUnderTest] = [ours, *(PeerGateway(name, address, {server}) for name in peers)]
        contenders += [UpstreamServer(ALONE, server), UpstreamServer(ONE_CORE, client)]
        running = []
        for contender in contenders:
            started.append(contender)
            running.append((contender, contender.start()))
        print(f"server on core {server}, client on {client}, upstream and fake engine on {behind}", flush=True)
        measured = measure(running, rounds, seconds, client, seed)
    finally:
        for contender in started:
            contender.stop()
        upstream.stop()
    names = [OURS, *peers]
    print_table(measured, [*names, ALONE, ONE_CORE])
    print()
    return 0 if check_thresholds(measured, names) else 1


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--peers", nargs="*", default=list(RECIPES))
    options.add_argument("--rounds", type=int, default=5, choices=range(5, 11))
    options.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    options.add_argument("--seed", type=int, default=0, help="of the order")
    given = options.parse_args()
    exit_on_sigterm()
    sys.exit(compare(given.peers, given.rounds, given.seconds, given.seed))
