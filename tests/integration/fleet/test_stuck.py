"""Hung or unreachable workers and full disks: detected, reported and survived."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.integration.fleet.background_clients import BackgroundWorkload
from tests.integration.fleet.server_site import (
    ServerSite,
    find_worker,
    find_workers,
    read_worker_deaths,
    wait_another_worker,
    wait_until,
)
from tests.integration.server.bay_process import run_server
from tests.integration.server.fake_requests import ask
from tests.integration.server.raw_http import assert_error

MODELS = {"toy": {"engine": "fake", "fake": {"step_s": 0.004}}}


@pytest.mark.slow
async def test_a_worker_that_is_stopped_counts_as_hung(site: ServerSite) -> None:
    """It is killed and replaced. The next worker answers requests that had no output yet."""
    config: dict[str, object] = {"models": MODELS, "fleet": {"hang_s": 2}}
    with run_server(config=config, environ=site.alone) as server:
        async with BackgroundWorkload(server.url, ["toy"]) as load:
            await load.wait_answers_for_all(streams=True)
            well = lambda: len(find_workers(server)) == 1 and _answers(server.port)  # noqa: E731
            await asyncio.to_thread(wait_until, well, 60, "a worker that is well")
            stopped = find_worker(server)
            stopped.suspend()
            await wait_another_worker(server, {stopped.pid})
            await load.wait_answers_for_all(streams=True)
        assert not stopped.is_running()
        assert read_worker_deaths(server) and all(
            "cause=hang" in line for line in read_worker_deaths(server)
        )  # more, on a machine that stalls
        assert load.ended == load.asked and not load.lost
        assert not load.unstreamed.refused and not load.streamed.refused
        assert 1.9 < load.slowest_s < 60


async def test_an_engine_that_stops_stepping_counts_as_hung(site: ServerSite) -> None:
    """Its process is healthy and answers RPCs: only the missing steps show it."""
    config: dict[str, object] = {
        "models": {"toy": {"engine": "fake", "fake": {"hang_after_tokens": 5}}},
        "fleet": {"hang_s": 1, "restarts": 2, "backoff_s": 0.05},
    }
    with run_server(config=config, environ=site.alone) as server:
        error = assert_error(ask(server, max_tokens=100), 503)  # on each worker that it meets, until there is none
        assert error["code"] == "engine_unavailable"
        wait_until(lambda: len(read_worker_deaths(server)) >= 3, 20, "word of them")
        assert len(read_worker_deaths(server)) == 3 and all("cause=hang" in line for line in read_worker_deaths(server))


@pytest.mark.slow
@pytest.mark.parametrize("gone", ["s", "t", "st"])
def test_sockets_that_were_removed(gone: str, site: ServerSite) -> None:
    """A cleanup job deleted them. A new server process cannot reach the worker: it is replaced."""
    config: dict[str, object] = {"models": MODELS, "server": {"workers": 2}}
    with run_server(config=config, environ=site.alone) as server:
        worker = find_worker(server)
        [directory] = site.list_directories()
        for name in gone:
            (directory / name).unlink()
        assert ask(server).status == 200  # sessions that are open stay so
        children = psutil.Process(server.process.pid).children()
        for child in children:
            if "enginebay.server.supervisor.child_server" in " ".join(child.cmdline()):
                child.kill()
        wait_until(lambda: _answers(server.port), 20, "an answer from a new server process")
        assert ask(server).status == 200
        if "t" in gone:
            assert not worker.is_running() and "cause=stopped" in read_worker_deaths(server)[0]


def _answers(port: int) -> bool:
    import httpx2 as httpx

    try:
        return httpx.get(f"http://127.0.0.1:{port}/health/ready", timeout=20).status_code == 200
    except httpx.HTTPError:
        return False


async def test_a_disk_without_space_for_logs(site: ServerSite) -> None:
    """Requests are answered even if neither logs nor measurements can be written."""
    logs, log = site.home / "logs", site.home / "logs" / "fake-toy.log"
    logs.mkdir()
    log.symlink_to("/dev/full")
    (site.home / "fleet").write_text("in the way of measured.json")
    config: dict[str, object] = {"models": MODELS}
    with run_server(config=config, environ=site.alone) as server:
        async with BackgroundWorkload(server.url, ["toy"]) as load:
            await load.wait_answers_for_all(streams=True)
            find_worker(server).kill()
            await load.wait_answers_for_all(2, streams=True)
        assert not load.lost and not load.unstreamed.refused


@pytest.fixture
def tiny(site: ServerSite) -> Iterator[Path]:
    """The socket directory on a tiny file system."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k,nr_inodes=64,mode=700", "tmpfs", str(site.runtime)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("only root can mount a small file system")
    try:
        yield site.runtime
        deadline = time.monotonic() + 30  # before it goes: nothing may be left there but what we put there
        while (left := site.list_directories()) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert left == []
    finally:
        subprocess.run(["umount", "--lazy", str(site.runtime)], check=True)


async def test_a_disk_without_space_for_sockets(site: ServerSite, tiny: Path) -> None:
    """No worker can start: requests fail at once, and succeed when there is space again."""
    models = {"toy": {"engine": "fake", "load": "use"}}
    config: dict[str, object] = {"models": models, "fleet": {"backoff_s": 0.1, "backoff_max_s": 0.2, "restarts": 1000}}
    with run_server(config=config, environ=site.alone) as server:
        _fill(tiny / "filling")
        async with BackgroundWorkload(server.url, ["toy"], pause_s=0.02) as load:
            while load.ended < 50:
                await load.wait_for_end()
            assert load.streamed.whole == load.unstreamed.whole == 0 and load.slowest_s < 30
            (tiny / "filling").unlink()
            await load.wait_answers_for_all(streams=True)
        assert load.ended == load.asked and not load.lost
        assert set(load.unstreamed.refused) == set(load.streamed.refused) == {(503, "engine_unavailable")}


def _fill(file: Path) -> None:
    with file.open("wb", buffering=0) as filling:
        try:
            while True:
                filling.write(b"x" * 4096)
        except OSError:
            return
