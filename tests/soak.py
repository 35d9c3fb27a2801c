"""Soak a server at full load with all kinds of clients, and look for leaks.

    python tests/soak.py --minutes 30

Fails if the memory of the server or its worker grows, if files stay open, if the engine is not idle at the end, or if a
request fails that should succeed.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import httpx2 as httpx
import uvloop

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.integration.server.bay_process import BayProcess, run_server
from tests.soaking.client_scenarios import MODEL, SCENARIOS, SCRIPTS, SMALL_BUFFER, ClientVisit, VisitCounts
from tests.soaking.process_memory import WatchedProcess, compute_first_and_last, watch_processes
from tests.soaking.soak_connection import BrokenConnection, SoakConnection

GROWTH = 0.05
WARM_S, WARM_SHARE = 20.0, 0.1
LANES = 64
FRESH = 0.1  # share of visits on a new connection
VISIT_TIMEOUT_S = 60.0
CONFIG: dict[str, object] = {
    "models": {MODEL: {"engine": "fake", "tool_format": "hermes", "fake": {"script_by_prompt": SCRIPTS}}},
    "server": {"log_level": "error"},  # request lines would fill the disk; errors still show
}


@dataclass
class SoakRun:
    """The state of one soak run."""

    port: int
    seed: int
    counts: VisitCounts = field(default_factory=VisitCounts)
    problems: Counter[str] = field(default_factory=Counter)
    stopped: bool = False

    async def run_lane(self, number: int) -> None:
        """Run one client after the other until stopped."""
        random = Random(self.seed * 1000 + number)
        connection: SoakConnection | None = None
        scenarios, weights = list(SCENARIOS), list(SCENARIOS.values())
        while not self.stopped:
            scenario = random.choices(scenarios, weights)[0]
            if connection is not None and (scenario in SMALL_BUFFER or random.random() < FRESH):
                connection.close()
                connection = None
            try:
                connection = connection or await SoakConnection.open(
                    self.port, 4096 if scenario in SMALL_BUFFER else None
                )
                async with asyncio.timeout(VISIT_TIMEOUT_S):
                    await scenario(ClientVisit(connection, random, self.counts))
                self.counts.answered += 1
            except (AssertionError, BrokenConnection, OSError, TimeoutError, LookupError) as error:
                self.problems[f"{scenario.__name__}: {type(error).__name__}: {str(error)[:300]}"] += 1
                connection = _close_if_open(connection)
            if connection is not None and (scenario in SMALL_BUFFER or not connection.usable):
                connection = _close_if_open(connection)
        _close_if_open(connection)


def _close_if_open(connection: SoakConnection | None) -> None:
    if connection is not None:
        connection.close()


async def run_workload(
    server: BayProcess, minutes: float, lanes: int, seed: int
) -> tuple[SoakRun, list[WatchedProcess]]:
    """Run all lanes and sample the processes twice a second."""
    soak = SoakRun(server.port, seed)
    processes = watch_processes(server.process.pid)
    before = {process.name: process.read_cpu_s() for process in processes}
    started = time.monotonic()
    running = [asyncio.create_task(soak.run_lane(number)) for number in range(lanes)]
    logged_s = 0.0
    while (now_s := time.monotonic() - started) < minutes * 60:
        await asyncio.sleep(0.5)
        for process in processes:
            process.sample(now_s)
        if now_s - logged_s >= 10:
            logged_s = now_s
            _log(f"{now_s:6.0f} s  {format_progress(soak, processes, now_s)}")
    busy = [f"{process.name} {(process.read_cpu_s() - before[process.name]) / now_s:.0%}" for process in processes]
    _log(f"share of one core: {', '.join(busy)}, clients {time.process_time() / now_s:.0%}")
    soak.stopped = True
    await asyncio.gather(*running)
    return soak, processes


def format_progress(soak: SoakRun, processes: list[WatchedProcess], seconds: float) -> str:
    counts = soak.counts
    held = ", ".join(f"{process.name} {process.resident[-1][1] / 1e6:.1f} MB" for process in processes)
    return (
        f"{counts.answered} visits ({counts.answered / seconds:.0f}/s), {counts.tokens / seconds:.0f} tok/s, "
        f"{counts.left} left early, {sum(soak.problems.values())} problems, {held}"
    )


async def wait_idle(server: BayProcess) -> list[str]:
    """Wait up to 30 s for the server to become idle. Return what is still running."""
    gauges = ("enginebay_engine_running", "enginebay_requests_running", "enginebay_requests_waiting")
    deadline = time.monotonic() + 30
    busy = [""]
    async with httpx.AsyncClient(timeout=60) as client:
        while busy and time.monotonic() < deadline:
            await asyncio.sleep(0.2)
            lines = (await client.get(f"{server.url}/metrics")).text.splitlines()
            found = [line for line in lines if line.startswith(gauges)]
            assert len(found) == len(gauges), f"the metrics lack some of {gauges}"
            busy = [f"not idle at the end: {line}" for line in found if not line.endswith(" 0")]
    return busy


def find_problems(soak: SoakRun, processes: list[WatchedProcess], minutes: float) -> list[str]:
    """Return the failures and the growth of memory."""
    problems = [f"{count} times {problem}" for problem, count in soak.problems.most_common(20)]
    warm_s = max(WARM_S, WARM_SHARE * minutes * 60)
    for process in processes:
        first, last = compute_first_and_last(process.resident, warm_s)
        growth = last / first - 1
        _log(f"{process.name}: {first / 1e6:.1f} MB, then {last / 1e6:.1f} MB ({growth:+.1%})")
        if growth > GROWTH:
            problems.append(f"the {process.name} grew by {growth:.1%}")
    return problems


async def run_soak(minutes: float, lanes: int, seed: int) -> list[str]:
    with run_server(config=CONFIG) as server:
        start = len(server.read_log())
        await _warm_up(server)
        files = {watched.process.pid: watched.count_files() for watched in watch_processes(server.process.pid)}
        result, processes = await run_workload(server, minutes, lanes, seed)
        problems = await wait_idle(server)
        problems += find_problems(result, processes, minutes)
        for watched in processes:
            count, before = watched.count_files(), files[watched.process.pid]
            if count > before + 2:
                problems.append(f"the {watched.name} has {count} open files, {before} before")
        if logged := server.read_log()[start:].strip():
            problems.append(f"the server's log: {logged[:2000]}")
    return problems


async def _warm_up(server: BayProcess) -> None:
    """Run each scenario once, so that files that stay open are open."""
    for scenario in SCENARIOS:
        connection = await SoakConnection.open(server.port)
        await scenario(ClientVisit(connection, Random(0), VisitCounts()))
        connection.close()
    await wait_idle(server)


def _log(line: str) -> None:
    print(line, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--lanes", type=int, default=LANES, help="concurrent clients")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    problems = uvloop.run(run_soak(args.minutes, args.lanes, args.seed))
    for problem in problems:
        _log(f"PROBLEM {problem}")
    _log("failed" if problems else "passed")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
