"""An isolated environment for one server, and what the server leaves there."""

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
    """All processes of the server inherit these variables, so each can be found whatever its parent is."""

    folder: Path

    @property
    def runtime(self) -> Path:
        return self.folder / "run"

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def environ(self) -> dict[str, str]:
        """Uses the engines and models of the tests."""
        kept = str(self.folder / "compiled")  # for the next start, so it is nothing left behind
        return {_MARK: str(self.runtime), "TMPDIR": str(self.folder / "tmp"), "TORCHINDUCTOR_CACHE_DIR": kept}

    @property
    def alone(self) -> dict[str, str]:
        """Also has its own home: for the fake engine, which needs nothing there."""
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
        """Return the current processes, sockets and temporary files. A killed server leaves its token, which opens nothing."""
        files = [path for name in ("run", "tmp") for path in (self.folder / name).rglob("*")]
        return [
            *(f"process {one.pid}: {' '.join(read_command(one)) or 'has just ended'}" for one in self.list_processes()),
            *(str(path) for path in files if path != self.runtime / "enginebay" and path.suffix != ".token"),
        ]

    def list_directories(self) -> list[Path]:
        """Return the workers' directories."""
        return sorted((self.runtime / "enginebay").glob("w*"))

    def list_loads(self) -> list[Path]:
        """Return the load files of workers that have or load a model."""
        return sorted((self.runtime / "enginebay").glob("w*/load.json"))


def find_children(server: BayProcess, *words: str) -> list[psutil.Process]:
    """Return live children whose command line contains all these words."""
    found = {one: " ".join(read_command(one)) for one in psutil.Process(server.process.pid).children()}
    return [one for one, line in found.items() if line and all(word in line for word in words)]


def find_workers(server: BayProcess, how: str = "serve") -> list[psutil.Process]:
    """Return the workers; `how` is `standby` for standbys."""
    return find_children(server, "worker/bootstrap.py", f" {how} ")


def find_worker(server: BayProcess, model: str = "toy") -> psutil.Process:
    [worker] = find_workers_for(server, model)
    return worker


def find_workers_for(server: BayProcess, model: str) -> list[psutil.Process]:
    return [one for one in find_workers(server) if _read_load(one).get("model") == model]


def _read_load(worker: psutil.Process) -> dict[str, Any]:
    """Return what it loads."""
    with contextlib.suppress(OSError, psutil.NoSuchProcess):  # it may end meanwhile
        found: dict[str, Any] = json.loads((Path(worker.cmdline()[-1]) / "load.json").read_text())
        return found
    return {}


async def wait_another_worker(server: BayProcess, known: Collection[int], within_s: float = 30.0) -> psutil.Process:
    """Wait for a worker that is none of these."""
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
    """Return the crash lines of the server's log."""
    return [line for line in server.read_log().splitlines() if "worker died" in line]
