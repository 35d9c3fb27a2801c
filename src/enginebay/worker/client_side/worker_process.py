"""Starts a worker process, waits until it is ready, and stops it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from enginebay.contract import Facts, LaunchMode, Load
from enginebay.errors import EnginebayError, LoadFailed, OutOfMemory, WorkerDied, from_kind
from enginebay.util import nvml
from enginebay.util.child_processes import select_worker_variables
from enginebay.util.gpus.gpu_discovery import VISIBLE_DEVICES
from enginebay.util.paths import open_log_file
from enginebay.worker import bootstrap, codec
from enginebay.worker.client_side.child_process import ChildProcess
from enginebay.worker.client_side.oom_kills import read_oom_kills

_LOG_TAIL_LINES = 5
_LOG_TAIL_BYTES = 8192
_GUARD_TIMEOUT_S = 1.0  # for the guards' connections, made before the worker's first reply
_KILL_TIMEOUT_S = 10.0  # for the kernel to end a killed process
_CLOSE_GRACE_S = 5.0  # requests are cancelled by then


@dataclass(frozen=True, slots=True)
class WorkerLaunch:
    """How to start a worker."""

    load: Load
    python: Path
    runtime_dir: Path
    log: Path
    mode: LaunchMode = LaunchMode.DIRECT
    processes: int = 1
    environment: Mapping[str, str] | None = None  # of the engine's environment
    env_prefixes: tuple[str, ...] = ()  # of variables that pass to the worker beside the common ones
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)  # the model's own; may hold secrets
    devices: Mapping[str, str] = field(default_factory=dict)  # variables that name its GPUs


def build_argv(launch: WorkerLaunch, directory: Path) -> list[str]:
    """Build the command line of a worker, with its engine's launcher."""
    python = str(launch.python)
    serve = [str(Path(bootstrap.__file__)), "serve", str(directory)]
    count = str(launch.processes)
    if launch.mode is LaunchMode.TORCHRUN:
        return [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", count, *serve]
    if launch.mode is LaunchMode.ACCELERATE:
        multi_gpu = ["--multi_gpu"] if launch.processes > 1 else []
        return [python, "-m", "accelerate.commands.launch", "--num_processes", count, "--num_machines", "1",
                "--mixed_precision", "no", "--dynamo_backend", "no", *multi_gpu, *serve]  # fmt: skip
    return [python, *serve]


class WorkerProcess:
    """One worker and its private directory. It ends when its owner does, however that dies."""

    def __init__(self, launch: WorkerLaunch, directory: Path) -> None:
        self.launch = launch
        self.directory = directory
        self.address = f"unix:{directory / 's'}"
        self.facts: Facts | None = None
        self.import_s = 0.0  # of a standby
        self.initialized_cuda = False  # a standby whose GPUs are fixed
        self._process: ChildProcess | None = None
        self._connections: list[socket.socket] = []
        self._control: socket.socket | None = None  # the worker's own connection
        self._oom_kills_before = read_oom_kills()
        self._log_start = 0  # earlier workers wrote to the same log

    @classmethod
    async def start(cls, launch: WorkerLaunch, timeout_s: float = 600.0) -> WorkerProcess:
        """Start a worker and wait until its engine is loaded.

        Raises `LoadFailed`, `OutOfMemory` or the engine's error, and leaves nothing behind.
        """
        worker = cls._create(launch)
        async with worker._close_on_error():
            worker.directory.mkdir(mode=0o700)
            (worker.directory / "load.json").write_text(codec.encode_load(launch.load))
            worker._store_facts(await worker._spawn(build_argv(launch, worker.directory), timeout_s))
        return worker

    @classmethod
    async def start_standby(cls, launch: WorkerLaunch, timeout_s: float = 600.0) -> WorkerProcess:
        """Start a worker that imports its engine's library and waits for a model. `launch` names the engine."""
        worker = cls._create(launch)
        serve = [str(Path(bootstrap.__file__)), "standby", str(worker.directory), launch.load.engine]
        async with worker._close_on_error():
            worker.directory.mkdir(mode=0o700)
            reply = await worker._spawn([str(launch.python), *serve], timeout_s)
            if "import_s" not in reply:
                raise _to_error(reply, launch)
        worker.import_s = float(reply["import_s"])
        worker.initialized_cuda = bool(reply.get("cuda"))
        return worker

    async def assign(self, launch: WorkerLaunch, timeout_s: float = 600.0) -> None:
        """Make a standby load a model. Raises like `start`, and leaves nothing behind."""
        assert self._control is not None
        self.launch = launch
        async with self._close_on_error():
            (self.directory / "load.json").write_text(codec.encode_load(launch.load))
            self._open_log().close()
            reply: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
            reading = asyncio.create_task(self._read_reply(self._control, reply))
            try:
                order = json.dumps({"log": str(launch.log), "variables": dict(launch.devices)})
                await asyncio.get_running_loop().sock_sendall(self._control, f"{order}\n".encode())
                self._store_facts(await self._wait_for_reply(reply, timeout_s))
            finally:
                reading.cancel()

    @asynccontextmanager
    async def _close_on_error(self) -> AsyncIterator[None]:
        """Close the worker on any error. An `OSError`, such as a full disk, becomes `LoadFailed`."""
        try:
            yield
        except BaseException as error:
            await asyncio.shield(self.close(grace_s=0))
            if isinstance(error, OSError):
                load = self.launch.load
                raise LoadFailed(f"the {load.kind} worker of {load.model} could not be started: {error}") from error
            raise

    @classmethod
    def _create(cls, launch: WorkerLaunch) -> WorkerProcess:
        _remove_stale_directories(launch.runtime_dir)
        return cls(launch, launch.runtime_dir / f"w{os.getpid():x}-{secrets.token_hex(4)}")

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return None if self._process is None else self._process.returncode

    def _open_log(self) -> BinaryIO:
        load, path = self.launch.load, self.launch.log
        try:
            log: BinaryIO = os.fdopen(open_log_file(path, append=True), "ab", buffering=0)
        except OSError:  # serve even if the disk has no space for logs
            log = Path(os.devnull).open("ab", buffering=0)  # noqa: SIM115 - the caller closes it
        self._log_start = log.seek(0, os.SEEK_END)
        self._write_log_line(f"{load.kind} {load.model}")
        return log

    def _write_log_line(self, text: str) -> None:
        """Append a line to the worker's log."""
        with contextlib.suppress(OSError), self.launch.log.open("a", encoding="utf-8") as log:
            log.write(f"--- {time.strftime('%Y-%m-%dT%H:%M:%S')} {text}\n")

    async def _spawn(self, arguments: Sequence[str], timeout_s: float) -> dict[str, Any]:
        """Start the process. Return its first reply."""
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self.directory / "c"))
        listener.listen(2 * self.launch.processes)
        listener.setblocking(False)
        with listener, self._open_log() as log:
            self._process = ChildProcess(arguments, log, _build_environment(self.launch))
            reply: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
            listening = asyncio.create_task(self._accept_connections(listener, reply))
            try:
                result = await self._wait_for_reply(reply, timeout_s)
                await asyncio.wait({listening}, timeout=_GUARD_TIMEOUT_S)
                return result
            finally:
                listening.cancel()
                await asyncio.gather(listening, return_exceptions=True)

    async def _wait_for_reply(self, reply: asyncio.Future[dict[str, Any]], timeout_s: float) -> dict[str, Any]:
        """Wait until the worker is ready or reports an error. Raises if it exits or times out first."""
        assert self._process is not None
        exited = asyncio.create_task(self._process.wait())
        waited: set[asyncio.Future[Any]] = {reply, exited}
        try:
            await asyncio.wait(waited, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if reply.done():
                return reply.result()
            if exited.done():
                raise self.build_load_error()
            load = self.launch.load
            raise LoadFailed(f"{load.kind} did not load {load.model} within {timeout_s:.0f} s", self.read_log_tail())
        finally:
            exited.cancel()

    def _store_facts(self, reply: Mapping[str, Any]) -> None:
        if "facts" not in reply:
            raise _to_error(reply, self.launch)
        self.facts = codec.decode_facts(reply["facts"])

    async def _accept_connections(self, listener: socket.socket, reply: asyncio.Future[dict[str, Any]]) -> None:
        """Accept the connections of the worker, its guard and the guards of its other ranks. Only the worker replies."""
        loop = asyncio.get_running_loop()
        tasks: set[asyncio.Task[None]] = set()
        try:
            for _ in range(1 + self.launch.processes):
                connection, _ = await loop.sock_accept(listener)
                connection.setblocking(False)
                self._connections.append(connection)
                tasks.add(asyncio.create_task(self._read_reply(connection, reply)))
            await reply
        except OSError as error:  # such as too many open files
            if not reply.done():
                reply.set_exception(error)
        finally:
            for task in tasks:
                task.cancel()

    async def _read_reply(self, connection: socket.socket, reply: asyncio.Future[dict[str, Any]]) -> None:
        """Wait for a line on one connection. Guards never send one."""
        loop = asyncio.get_running_loop()
        line = b""
        while not line.endswith(b"\n"):
            chunk = await loop.sock_recv(connection, 1 << 20)
            if not chunk:
                return
            line += chunk
        self._control = connection
        if not reply.done():
            reply.set_result(json.loads(line))

    def build_load_error(self) -> EnginebayError:
        load = self.launch.load
        if self.returncode == -signal.SIGKILL:
            now = read_oom_kills()
            if now is not None and now == self._oom_kills_before:
                return WorkerDied(f"the {load.kind} worker was killed while loading {load.model}", self.read_log_tail())
            return OutOfMemory(
                f"the {load.kind} worker was killed while loading {load.model}, most likely out of memory",
                self.read_log_tail(),
            )
        return LoadFailed(
            f"the {load.kind} worker exited while loading {load.model} ({self._describe_exit()})", self.read_log_tail()
        )

    def build_death_error(self) -> WorkerDied:
        """Build the error for requests that were running when the worker died."""
        load = self.launch.load
        return WorkerDied(
            f"the {load.kind} worker of {load.model} died ({self._describe_exit()})", self.read_log_tail()
        )

    def _describe_exit(self) -> str:
        code = self.returncode
        if code is None:
            return "its connection broke"
        if code < 0:
            return f"signal {signal.Signals(-code).name}"
        return f"exit code {code}"

    def read_log_tail(self) -> str:
        """Return the last lines of the worker's log, for error hints."""
        try:
            with self.launch.log.open("rb") as log:
                log.seek(max(self._log_start, log.seek(0, os.SEEK_END) - _LOG_TAIL_BYTES))
                lines = log.read(_LOG_TAIL_BYTES).decode(errors="replace").splitlines()
        except OSError:
            lines = []
        last = [line.strip() for line in lines if line.strip()][-_LOG_TAIL_LINES:]
        return f"its log, {self.launch.log}, ends with: " + " | ".join(last)

    async def wait(self) -> int:
        assert self._process is not None
        return await self._process.wait()

    async def close(self, grace_s: float = _CLOSE_GRACE_S) -> None:
        """Stop the worker: SIGTERM, wait, then kill its process group. Removes its directory."""
        for connection in self._connections:
            connection.close()
        process = self._process
        if process is not None:
            if process.returncode is None and grace_s > 0:
                _send_signal(process.pid, signal.SIGTERM)
                try:
                    await asyncio.wait_for(process.wait(), grace_s)
                except TimeoutError:
                    pass
            _kill_group(process.pid)
            try:
                await asyncio.wait_for(process.wait(), _KILL_TIMEOUT_S)
            except TimeoutError:  # stuck in the kernel, on a device or a disk
                self._write_log_line(f"process {process.pid} was killed but does not exit")
        shutil.rmtree(self.directory, ignore_errors=True)


def _to_error(reply: Mapping[str, Any], launch: WorkerLaunch) -> EnginebayError:
    error = from_kind(reply["kind"], reply["message"], reply["hint"], reply["param"])
    error.hint = error.hint or f"its log: {launch.log}"
    return error


def _remove_stale_directories(runtime_dir: Path) -> None:
    """Remove directories whose owner has exited. Guards do that too, unless they were killed as well."""
    for directory in runtime_dir.glob("w*-*"):
        try:
            os.kill(int(directory.name[1:].partition("-")[0], 16), 0)
        except ProcessLookupError:
            shutil.rmtree(directory, ignore_errors=True)
        except (ValueError, OSError):
            continue


def _send_signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def _build_environment(launch: WorkerLaunch) -> dict[str, str]:
    """Return the worker's environment: an allow-list of ours, and what the engine and the model add."""
    environment = select_worker_variables(launch.env_prefixes) | {**(launch.environment or {})}
    hides_gpus = launch.variables.get(VISIBLE_DEVICES, "0").strip() in ("", "-1")
    environment |= {**launch.devices, **launch.variables} if hides_gpus else {**launch.variables, **launch.devices}
    environment |= {"PYTHONUNBUFFERED": "1", nvml.FILE_VARIABLE: nvml.find_nvml_file()}
    if sys.flags.safe_path:
        environment["PYTHONSAFEPATH"] = "1"
    return environment
