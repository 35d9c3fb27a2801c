"""Starting a worker process, waiting until it is ready, and ending it."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import signal
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from enginebay.contract import Facts, LaunchMode, Load
from enginebay.errors import EnginebayError, LoadFailed, OutOfMemory, WorkerDied, from_kind
from enginebay.worker import bootstrap, wire

_LAST_LINES = 5
_OF_OUR_PYTHON = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__")
# Of a launcher that we may run under ourselves: a worker must not take itself for one of its ranks.
_OF_LAUNCHERS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
_HIDDEN = frozenset((*_OF_OUR_PYTHON, *_OF_LAUNCHERS))
_CLOSE_S = 5.0  # by then its requests are cancelled and only tidying up is left


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start a worker."""

    load: Load
    python: Path
    runtime_dir: Path
    log: Path
    mode: LaunchMode = LaunchMode.DIRECT
    processes: int = 1
    environment: Mapping[str, str] | None = None


def command(launch: Launch, directory: Path) -> list[str]:
    """The command line of a worker, under the launcher that its engine wants."""
    python = str(launch.python)
    serve = [str(Path(bootstrap.__file__)), "serve", str(directory)]
    count = str(launch.processes)
    if launch.mode is LaunchMode.TORCHRUN:
        return [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", count, *serve]
    if launch.mode is LaunchMode.ACCELERATE:
        spread = ["--multi_gpu"] if launch.processes > 1 else []
        return [python, "-m", "accelerate.commands.launch", "--num_processes", count, "--num_machines", "1",
                "--mixed_precision", "no", "--dynamo_backend", "no", *spread, *serve]  # fmt: skip
    return [python, *serve]


class WorkerProcess:
    """One worker and its private directory. Ends with its owner, by any death of either."""

    def __init__(self, launch: Launch, directory: Path) -> None:
        self.launch = launch
        self.directory = directory
        self.address = f"unix:{directory / 's'}"
        self.facts: Facts | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._connections: list[socket.socket] = []
        self._log_start = 0  # earlier workers wrote to the same log: their words are not ours

    @classmethod
    async def start(cls, launch: Launch, timeout_s: float = 600.0) -> WorkerProcess:
        """Start a worker and wait until its engine is loaded.

        Raises LoadFailed, OutOfMemory or whatever error the engine gave; then nothing is left behind.
        """
        _sweep(launch.runtime_dir)
        directory = launch.runtime_dir / f"w{os.getpid():x}-{secrets.token_hex(4)}"
        directory.mkdir(mode=0o700)
        worker = cls(launch, directory)
        try:
            await worker._start(timeout_s)
        except BaseException:
            await asyncio.shield(worker.close(grace_s=0))
            raise
        return worker

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return None if self._process is None else self._process.returncode

    async def _start(self, timeout_s: float) -> None:
        (self.directory / "load.json").write_text(wire.load_json(self.launch.load))
        self.launch.log.parent.mkdir(parents=True, exist_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self.directory / "c"))
        listener.listen(2 * self.launch.processes)
        listener.setblocking(False)
        with listener, self.launch.log.open("ab") as log:
            self._log_start = log.seek(0, os.SEEK_END)
            log.write(
                f"--- {time.strftime('%Y-%m-%dT%H:%M:%S')} {self.launch.load.kind} {self.launch.load.model}\n".encode()
            )
            log.flush()
            self._process = await asyncio.create_subprocess_exec(
                *command(self.launch, self.directory),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**_clean_environment(), **(self.launch.environment or {})},
            )
            try:
                answer = await asyncio.wait_for(self._answer(listener), timeout_s)
            except TimeoutError:
                raise LoadFailed(
                    f"{self.launch.load.kind} did not load {self.launch.load.model} within {timeout_s:.0f} s",
                    self.last_words(),
                ) from None
        if "facts" not in answer:
            error = from_kind(answer["kind"], answer["message"], answer["hint"], answer["param"])
            error.hint = error.hint or f"its log: {self.launch.log}"
            raise error
        self.facts = wire.received_facts(answer["facts"])

    async def _answer(self, listener: socket.socket) -> dict[str, str]:
        """The worker's word that it is ready or why not; an error when it dies without one."""
        assert self._process is not None
        speaking = asyncio.create_task(self._listen(listener))
        ending = asyncio.create_task(self._process.wait())
        try:
            await asyncio.wait({speaking, ending}, return_when=asyncio.FIRST_COMPLETED)
            if speaking.done() and (said := speaking.result()):
                return said
            await ending
            raise self.death_while_loading()
        finally:
            speaking.cancel()
            ending.cancel()

    async def _listen(self, listener: socket.socket) -> dict[str, str]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[dict[str, str]] = loop.create_future()
        tasks = []
        try:
            # The worker's own connection, its guard's, and the guards' of its other ranks: the first is the one that speaks.
            for _ in range(1 + self.launch.processes):
                accepting = asyncio.create_task(loop.sock_accept(listener))
                waited: set[asyncio.Future[Any]] = {accepting, answer}
                await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
                if not accepting.done():
                    accepting.cancel()
                    break
                connection, _ = accepting.result()
                connection.setblocking(False)
                self._connections.append(connection)
                tasks.append(asyncio.create_task(_hear(connection, answer)))
            return await answer
        finally:
            for task in tasks:
                task.cancel()

    def death_while_loading(self) -> EnginebayError:
        load = self.launch.load
        if self.returncode == -signal.SIGKILL:
            return OutOfMemory(
                f"the {load.kind} worker was killed while loading {load.model}, most likely for want of memory",
                self.last_words(),
            )
        return LoadFailed(
            f"the {load.kind} worker ended while loading {load.model} ({self._ending()})", self.last_words()
        )

    def death(self) -> WorkerDied:
        """The error for requests that were running when the worker died."""
        load = self.launch.load
        return WorkerDied(f"the {load.kind} worker of {load.model} died ({self._ending()})", self.last_words())

    def _ending(self) -> str:
        code = self.returncode
        if code is None:
            return "its connection broke"
        if code < 0:
            return f"signal {signal.Signals(-code).name}"
        return f"exit code {code}"

    def last_words(self) -> str:
        """The last lines of the worker's log, for the error a user sees."""
        try:
            with self.launch.log.open("rb") as log:
                log.seek(max(self._log_start, log.seek(0, os.SEEK_END) - 8192))
                lines = log.read().decode(errors="replace").splitlines()
        except OSError:
            lines = []
        said = [line.strip() for line in lines if line.strip()][-_LAST_LINES:]
        return f"its log, {self.launch.log}, ends with: " + " | ".join(said)

    async def wait(self) -> int:
        assert self._process is not None
        return await self._process.wait()

    async def close(self, grace_s: float = _CLOSE_S) -> None:
        """End the worker: ask, wait, then force. Its whole process group and its directory go with it."""
        for connection in self._connections:
            connection.close()
        process = self._process
        if process is not None:
            if process.returncode is None and grace_s > 0:
                _signal(process.pid, signal.SIGTERM)
                try:
                    await asyncio.wait_for(process.wait(), grace_s)
                except TimeoutError:
                    pass
            _kill_group(process.pid)
            await process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)


async def _hear(connection: socket.socket, answer: asyncio.Future[dict[str, str]]) -> None:
    """Wait for a line on one connection. Guards never speak; a speaker that goes away says nothing."""
    loop = asyncio.get_running_loop()
    heard = b""
    while not heard.endswith(b"\n"):
        piece = await loop.sock_recv(connection, 1 << 20)
        if not piece:
            return
        heard += piece
    if not answer.done():
        answer.set_result(json.loads(heard))


def _sweep(runtime_dir: Path) -> None:
    """Remove the directories of owners that are gone: their guards do it too, unless those were killed as well."""
    for directory in runtime_dir.glob("w*-*"):
        try:
            os.kill(int(directory.name[1:].partition("-")[0], 16), 0)
        except ProcessLookupError:
            shutil.rmtree(directory, ignore_errors=True)
        except (ValueError, OSError):
            continue


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def _clean_environment() -> dict[str, str]:
    """Ours, less what would make another interpreter import from our environment."""
    kept = {name: value for name, value in os.environ.items() if name not in _HIDDEN}
    kept["PYTHONUNBUFFERED"] = "1"
    if sys.flags.safe_path:
        kept["PYTHONSAFEPATH"] = "1"
    return kept
