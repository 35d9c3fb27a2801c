"""Surroundings of its own for one server, and a look at what it has left there."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.integration.server.bay_process import BayProcess, read_command

_MARK = "XDG_RUNTIME_DIR"


@dataclass(frozen=True)
class ServerSite:
    """Whatever the server starts inherits these variables, so nothing of it can hide, whoever its parent is."""

    folder: Path

    @property
    def runtime(self) -> Path:
        return self.folder / "run"

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def environ(self) -> dict[str, str]:
        """The engines and models are those of the tests."""
        kept = str(self.folder / "compiled")  # for the next start, so it is nothing left behind
        return {_MARK: str(self.runtime), "TMPDIR": str(self.folder / "tmp"), "TORCHINDUCTOR_CACHE_DIR": kept}

    @property
    def alone(self) -> dict[str, str]:
        """With a home of its own as well: for the fake engine, which needs nothing there."""
        return {**self.environ, "ENGINEBAY_HOME": str(self.home)}

    def list_processes(self) -> list[psutil.Process]:
        return [one for one in psutil.process_iter() if self._is_ours(one)]

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            ours = process.environ().get(_MARK) == str(self.runtime)
            return ours and process.status() != psutil.STATUS_ZOMBIE
        except (psutil.NoSuchProcess, psutil.AccessDenied, OSError):
            return False

    def list_leftovers(self) -> list[str]:
        """Processes, sockets and temporary files that are there now."""
        files = [path for name in ("run", "tmp") for path in (self.folder / name).rglob("*")]
        return [
            *(f"process {one.pid}: {' '.join(read_command(one)) or 'has just ended'}" for one in self.list_processes()),
            *(str(path) for path in files if path != self.runtime / "enginebay"),
        ]

    def list_directories(self) -> list[Path]:
        """Of workers, each with its sockets."""
        return sorted((self.runtime / "enginebay").glob("w*"))

    def list_loads(self) -> list[Path]:
        """Of workers that have a model, or are loading one."""
        return sorted((self.runtime / "enginebay").glob("w*/load.json"))


def find_children(server: BayProcess, *words: str) -> list[psutil.Process]:
    """Those alive whose command line has all these words in it."""
    found = {one: " ".join(read_command(one)) for one in psutil.Process(server.process.pid).children()}
    return [one for one, line in found.items() if line and all(word in line for word in words)]


def find_workers(server: BayProcess, how: str = "serve") -> list[psutil.Process]:
    """`how` is `standby` for spare ones."""
    return find_children(server, "worker/bootstrap.py", f" {how} ")


def find_worker(server: BayProcess, model: str = "toy") -> psutil.Process:
    [worker] = find_workers_for(server, model)
    return worker


def find_workers_for(server: BayProcess, model: str) -> list[psutil.Process]:
    return [one for one in find_workers(server) if _read_load(one).get("model") == model]


def _read_load(worker: psutil.Process) -> dict[str, Any]:
    """What it was told to load."""
    with contextlib.suppress(OSError, psutil.NoSuchProcess):  # it may end meanwhile
        found: dict[str, Any] = json.loads((Path(worker.cmdline()[-1]) / "load.json").read_text())
        return found
    return {}


async def wait_another_worker(server: BayProcess, known: Collection[int], within_s: float = 30.0) -> psutil.Process:
    """One that is none of these."""
    async with asyncio.timeout(within_s):
        while True:
            found = [one for one in find_workers(server) if one.pid not in known]
            if found:
                return found[0]
            await asyncio.sleep(0.03)


def wait_until(condition: Callable[[], object], within_s: float, what: str) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {within_s:g} s for {what}"
        time.sleep(0.02)


def read_worker_deaths(server: BayProcess) -> list[str]:
    """What the server's log says of workers' ends."""
    return [line for line in server.read_log().splitlines() if "worker died" in line]
