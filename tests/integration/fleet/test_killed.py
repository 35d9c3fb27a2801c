"""Processes killed under load: each request ends with an answer or a clear error, and nothing is left behind."""

from __future__ import annotations

import asyncio
import random
import signal
from dataclasses import dataclass, field
from typing import Any

import psutil
import pytest

from tests.integration.fleet.background_clients import BackgroundWorkload
from tests.integration.fleet.server_site import (
    ServerSite,
    find_children,
    find_worker,
    find_workers,
    read_worker_deaths,
    wait_another_worker,
    wait_until,
)
from tests.integration.server.bay_process import BayProcess, run_server

MB = 1 << 20
# Restart at once and without limit: here the test causes the crashes.
PATIENT = {"restarts": 1000, "backoff_s": 0.05, "backoff_max_s": 0.1}


@dataclass(frozen=True)
class Case:
    engine: str
    kills: int
    max_tokens: int  # enough for streams to be hit in their middle
    clients: int = 2  # of each kind; real engines read prompts slowly on a small machine
    settings: dict[str, Any] = field(default_factory=dict)

    def config(self) -> dict[str, object]:
        model: dict[str, object] = {"engine": self.engine, self.engine: self.settings}
        if self.engine != "fake":
            model["source"] = "smollm2"
        return {"models": {"toy": model}, "fleet": PATIENT}


CASES = [
    Case("fake", 100, 30, 6, {"step_s": 0.004}),
    Case("llamacpp", 20, 12, 2, {"context_length": 512, "max_batch": 32}),
    Case(
        "vllm", 3, 24, 2,
        {"max_model_len": 512, "dtype": "float32", "max_num_seqs": 32, "enforce_eager": True, "cpu_kvcache_space_gib": 1},
    ),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.engine)
async def test_workers_killed_under_load(case: Case, site: ServerSite) -> None:
    environ = site.alone if case.engine == "fake" else site.environ
    with run_server(config=case.config(), environ=environ) as server:
        rss = []
        count = case.clients
        async with BackgroundWorkload(
            server.url, ["toy"], streams=count, wholes=count, max_tokens=case.max_tokens
        ) as load:
            await load.wait_answers_for_all(streams=True)
            for number in range(case.kills):
                await _kill_worker(server, load, in_a_stream=number % 2 == 0)
                rss.append(psutil.Process(server.process.pid).memory_info().rss)
            await load.wait_answers_for_all(streams=True)
        assert server.process.poll() is None
        assert load.ended == load.asked and not load.lost
        assert load.unstreamed.refused == {}, "none of these had sent anything: the next worker answers them"
        assert load.streamed.refused == {} and load.streamed.told == {}, "streams continue on the next worker"
        assert "resumed=1" in server.read_log(), "the kills hit no stream: the test shows nothing"
        assert len(read_worker_deaths(server)) == case.kills
        settled = len(rss) // 5
        assert max(rss[settled:]) < rss[settled] + 20 * MB


async def _kill_worker(server: BayProcess, load: BackgroundWorkload, in_a_stream: bool) -> None:
    """Kill the worker mid-stream or at any time once it serves: a request sees at most one crash."""
    await load.wait_answers_for_all(streams=True)
    if in_a_stream:
        await load.wait_mid_stream()
    else:
        await asyncio.sleep(random.uniform(0, 0.1))
    killed = find_worker(server)
    killed.kill()
    await wait_another_worker(server, {killed.pid})


@pytest.mark.slow
async def test_two_models_of_which_one_is_killed_again_and_again(site: ServerSite) -> None:
    """The other one's clients notice nothing."""
    fake = {"engine": "fake", "fake": {"step_s": 0.002}}
    config: dict[str, object] = {"models": {"good": fake, "bad": fake}, "fleet": PATIENT}
    with run_server(config=config, environ=site.alone) as server:
        bad = find_worker(server, "bad")
        async with BackgroundWorkload(server.url, ["good"]) as good, BackgroundWorkload(server.url, ["bad"]) as load:
            for _ in range(5):
                await load.wait_answers_for_all()
                known = {one.pid for one in find_workers(server)}
                bad.kill()
                bad = await wait_another_worker(server, known)
        assert good.ended == good.streamed.whole + good.unstreamed.whole == good.asked
        assert not load.lost and not load.unstreamed.refused
        assert [line for line in read_worker_deaths(server) if "model=bad" not in line] == []


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
async def test_the_server_itself_is_killed_under_load(workers: int, site: ServerSite) -> None:
    """Clients lose their connections or get an error. Workers, guards, standbys and server processes all end."""
    config: dict[str, object] = {
        "models": {name: {"engine": "fake", "fake": {"step_s": 0.01}} for name in ("one", "two")},
        "fleet": {"standby": ["fake"]},
        "server": {"workers": workers},
    }
    with run_server(config=config, environ=site.alone, exit_code=-signal.SIGKILL) as server:
        wait_until(lambda: len(site.list_directories()) == 3, 20, "a spare worker")
        async with BackgroundWorkload(server.url, ["one", "two"], max_tokens=300, pause_s=0.1) as load:
            await load.wait_mid_stream()
            server.process.kill()
            server.process.wait()
            load.stop()
        wait_until(lambda: not site.list_leftovers(), 30, "the end of all processes and sockets")
        assert load.ended == load.asked > load.streamed.whole + load.unstreamed.whole


async def test_a_server_process_is_killed_under_load(site: ServerSite) -> None:
    """Its own clients lose their connections; the others notice nothing."""
    config: dict[str, object] = {
        "models": {"toy": {"engine": "fake", "fake": {"step_s": 0.005}}},
        "server": {"workers": 2},
    }
    with run_server(config=config, environ=site.alone) as server:
        worker = find_worker(server).pid
        async with BackgroundWorkload(server.url, ["toy"], streams=8, wholes=8) as load:
            for _ in range(5):
                await load.wait_answers_for_all(streams=True)
                victim = random.choice(find_children(server, "enginebay.server.supervisor.child_server"))
                victim.kill()
                await asyncio.sleep(1)  # by then there is another
        assert find_worker(server).pid == worker and read_worker_deaths(server) == []
        assert load.ended == load.asked
        assert 0 < len(load.lost) <= 5 * 16
        assert not load.unstreamed.refused and not load.streamed.refused and not load.streamed.told
