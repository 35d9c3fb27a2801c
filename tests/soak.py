"""A server at full load for a long time, by clients of all kinds: does it hold on to anything?

    python tests/soak.py --minutes 30

Fails when the memory of the server or its worker grows, when files stay open, when the engine is not idle in the end, or
when any request failed that should have succeeded.
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
FRESH = 0.1  # of the visits begin with a new connection
PATIENCE_S = 60.0  # for one visit
CONFIG: dict[str, object] = {
    "models": {MODEL: {"engine": "fake", "tool_format": "hermes", "fake": {"script_by_prompt": SCRIPTS}}},
    "server": {"log_level": "error"},  # a line for each request would fill the disk; what is wrong is still seen
}


@dataclass
class SoakRun:
    """One run."""

    port: int
    seed: int
    counts: VisitCounts = field(default_factory=VisitCounts)
    problems: Counter[str] = field(default_factory=Counter)
    over: bool = False

    async def run_lane(self, number: int) -> None:
        """One client after the other, until it is over."""
        random = Random(self.seed * 1000 + number)
        connection: SoakConnection | None = None
        scenes, shares = list(SCENARIOS), list(SCENARIOS.values())
        while not self.over:
            scene = random.choices(scenes, shares)[0]
            if connection is not None and (scene in SMALL_BUFFER or random.random() < FRESH):
                connection.close()
                connection = None
            try:
                connection = connection or await SoakConnection.open(self.port, 4096 if scene in SMALL_BUFFER else None)
                async with asyncio.timeout(PATIENCE_S):
                    await scene(ClientVisit(connection, random, self.counts))
                self.counts.answered += 1
            except (AssertionError, BrokenConnection, OSError, TimeoutError, LookupError) as error:
                self.problems[f"{scene.__name__}: {type(error).__name__}: {str(error)[:300]}"] += 1
                connection = _close_if_open(connection)
            if connection is not None and (scene in SMALL_BUFFER or not connection.usable):
                connection = _close_if_open(connection)
        _close_if_open(connection)


def _close_if_open(connection: SoakConnection | None) -> None:
    if connection is not None:
        connection.close()


async def run_workload(
    server: BayProcess, minutes: float, lanes: int, seed: int
) -> tuple[SoakRun, list[WatchedProcess]]:
    """All lanes for so long, with a look at the processes twice a second."""
    soak = SoakRun(server.port, seed)
    processes = watch_processes(server.process.pid)
    before = {one.name: one.read_cpu_s() for one in processes}
    started = time.monotonic()
    running = [asyncio.create_task(soak.run_lane(number)) for number in range(lanes)]
    said = 0.0
    while (now_s := time.monotonic() - started) < minutes * 60:
        await asyncio.sleep(0.5)
        for one in processes:
            one.sample(now_s)
        if now_s - said >= 10:
            said = now_s
            _log(f"{now_s:6.0f} s  {format_progress(soak, processes, now_s)}")
    busy = [f"{one.name} {(one.read_cpu_s() - before[one.name]) / now_s:.0%}" for one in processes]
    _log(f"of one core: {', '.join(busy)}, clients {time.process_time() / now_s:.0%}")
    soak.over = True
    await asyncio.gather(*running)
    return soak, processes


def format_progress(soak: SoakRun, processes: list[WatchedProcess], seconds: float) -> str:
    counts = soak.counts
    held = ", ".join(f"{one.name} {one.resident[-1][1] / 1e6:.1f} MB" for one in processes)
    return (
        f"{counts.answered} visits ({counts.answered / seconds:.0f}/s), {counts.tokens / seconds:.0f} tok/s, "
        f"{counts.left} left early, {sum(soak.problems.values())} problems, {held}"
    )


async def wait_idle(server: BayProcess) -> list[str]:
    """What still goes on, half a minute after the last client has gone."""
    gauges = ("enginebay_engine_running", "enginebay_requests_running", "enginebay_requests_waiting")
    deadline = time.monotonic() + 30
    busy = [""]
    async with httpx.AsyncClient(timeout=60) as client:
        while busy and time.monotonic() < deadline:
            await asyncio.sleep(0.2)
            lines = (await client.get(f"{server.url}/metrics")).text.splitlines()
            seen = [line for line in lines if line.startswith(gauges)]
            assert len(seen) == len(gauges), "the metrics are not what they were"
            busy = [f"not idle in the end: {line}" for line in seen if not line.endswith(" 0")]
    return busy


def find_problems(soak: SoakRun, processes: list[WatchedProcess], minutes: float) -> list[str]:
    """What is wrong, in words."""
    found = [f"{count} times {problem}" for problem, count in soak.problems.most_common(20)]
    warm_s = max(WARM_S, WARM_SHARE * minutes * 60)
    for one in processes:
        first, last = compute_first_and_last(one.resident, warm_s)
        growth = last / first - 1
        _log(f"{one.name}: {first / 1e6:.1f} MB, then {last / 1e6:.1f} MB ({growth:+.1%})")
        if growth > GROWTH:
            found.append(f"the {one.name} grew by {growth:.1%}")
    return found


async def run_soak(minutes: float, lanes: int, seed: int) -> list[str]:
    with run_server(config=CONFIG) as server:
        start = len(server.read_log())
        await _warm_up(server)
        files = {one.process.pid: one.count_files() for one in watch_processes(server.process.pid)}
        result, processes = await run_workload(server, minutes, lanes, seed)
        problems = await wait_idle(server)
        problems += find_problems(result, processes, minutes)
        for one in processes:
            if one.count_files() > files[one.process.pid] + 2:
                problems.append(f"the {one.name} has {one.count_files()} files open, and had {files[one.process.pid]}")
        if said := server.read_log()[start:].strip():
            problems.append(f"the server's log: {said[:2000]}")
    return problems


async def _warm_up(server: BayProcess) -> None:
    """One visit of each kind, so that whatever is opened once is open."""
    for scene in SCENARIOS:
        connection = await SoakConnection.open(server.port)
        await scene(ClientVisit(connection, Random(0), VisitCounts()))
        connection.close()
    await wait_idle(server)


def _log(line: str) -> None:
    print(line, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--lanes", type=int, default=LANES, help="clients at once")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    problems = uvloop.run(run_soak(asked.minutes, asked.lanes, asked.seed))
    for problem in problems:
        _log(f"PROBLEM {problem}")
    _log("not passed" if problems else "passed")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
