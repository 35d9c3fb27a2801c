"""Entry point of the worker process: loads one engine and serves it until the parent disconnects.

    started ──import──▶ (standby ──assign──▶) load ──▶ ready ──parent disconnects──▶ closing ──▶ exit 0
       └──────────────── load failed ─────────────────────────▶ reports the error to the parent, exit 1

The engine is created in the main thread before any other thread exists, because some engines fork. A standby has
imported its engine's library and waits for a model: it has one thread and has not touched a device.
"""

from __future__ import annotations

import gc
import json
import os
import select
import shutil
import signal
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from enginebay.contract import Engine, Load
from enginebay.errors import EnginebayError, LoadFailed, OutOfMemory
from enginebay.util.child_processes import ProcessGuard
from enginebay.worker import codec

_EXIT_TIMEOUT_S = 5.0  # once the parent has exited
_RPC_THREADS = 64  # a drain holds one until it ends


class _Terminated(BaseException):
    """Raised in the main thread by SIGTERM."""


def main(arguments: list[str]) -> int:
    directory = Path(arguments[0])
    if int(os.environ.get("RANK", "0")) > 0:  # set by a launcher only: see worker_process.py
        return _run_follower_rank(_read_load(directory), directory)
    os.environ["ENGINEBAY_WORKER_DIR"] = str(directory)  # private; always removed after exit
    try:
        control = _connect_to_parent(directory)
        _start_guard(directory, str(directory))
    except OSError:  # the parent died first, and no guard cleans up yet
        shutil.rmtree(directory, ignore_errors=True)
        return 0
    signal.signal(signal.SIGTERM, _raise_terminated)
    for number in (signal.SIGINT, signal.SIGHUP):  # meant for the parent
        signal.signal(number, signal.SIG_IGN)
    try:
        if len(arguments) > 1 and not _wait_as_standby(arguments[1], control):
            return 0
        return _serve(_read_load(directory), directory, control)
    except _Terminated:
        return 0


def _read_load(directory: Path) -> Load:
    return codec.decode_load((directory / "load.json").read_text())


def _wait_as_standby(engine: str, control: socket.socket) -> bool:
    """Import the engine's library and wait for a model. Return False if the parent disconnects."""
    from enginebay.meters.devices.engine_gpu_meter import has_initialized_cuda

    import_s = _import_engine(engine)
    reply = {"import_s": import_s, "cuda": has_initialized_cuda(os.getpid())}
    control.sendall(json.dumps(reply).encode() + b"\n")
    line = b""
    while not line.endswith(b"\n"):
        chunk = control.recv(4096)
        if not chunk:
            return False
        line += chunk
    order = json.loads(line)
    os.environ.update(order["variables"])  # in time, unless the import initialized CUDA: see `standby_pool`
    _redirect_output(order["log"])
    return True


def _redirect_output(path: str) -> None:
    """Send stdout and stderr to the model's log."""
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    except OSError:  # serve even if the disk has no space for logs
        log = os.open(os.devnull, os.O_WRONLY)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def _import_engine(engine: str) -> float:
    """Import the engine's library. Return the seconds it took."""
    started = time.perf_counter()
    gc.disable()  # collection takes a seventh of torch's import time and frees nothing
    try:
        warm = getattr(_resolve_engine_class(engine), "warm", None)
        if warm is not None:
            warm()
    finally:
        gc.freeze()  # skip modules in later collections, also in forked processes
        gc.enable()
    return time.perf_counter() - started


def _serve(load: Load, directory: Path, control: socket.socket) -> int:
    started = time.perf_counter()
    try:
        import_s = _import_engine(load.engine)
        engine = _resolve_engine_class(load.engine)(load)
    except Exception as error:
        _report(control, failure=_to_load_error(load, error))
        return 1
    load_s = time.perf_counter() - started
    server: Any = None
    try:
        server, lazy_rpc, streams = _start_servers(engine, directory)
        # From here on only the parent's disconnect ends the worker. SIGTERM to all processes of a service must not:
        # the server still has requests to finish.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        facts = engine.facts()
        phases = {"load": load_s - import_s, **facts.phases, "import": import_s}
        _report(control, facts=codec.encode_facts(replace(facts, load_s=load_s, phases=phases)))
        _wait_for_parent(control)
    except _Terminated:
        pass
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if server is not None:
            streams.close()
            lazy_rpc.shut_down()
            server.stop(grace=None)
        engine.close()
    return 0


def _start_servers(engine: Engine, directory: Path) -> tuple[Any, Any, Any]:
    import grpc

    from enginebay.worker.engine_side.lazy_rpc import LazyRpcHandler
    from enginebay.worker.engine_side.request_table import RequestTable
    from enginebay.worker.engine_side.servicer import WorkerServicer, build_handlers
    from enginebay.worker.engine_side.stream_server import StreamServer
    from enginebay.worker.proto import SERVICE

    sys.setswitchinterval(0.0005)  # a request must not wait 5 ms for a busy engine thread
    requests = RequestTable(engine)
    engine.start(requests)
    server = grpc.server(
        ThreadPoolExecutor(_RPC_THREADS),
        options=[("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)],
    )
    lazy_rpc = LazyRpcHandler(SERVICE)
    server.add_generic_rpc_handlers((build_handlers(WorkerServicer(engine, requests)), lazy_rpc))
    server.add_insecure_port(f"unix:{directory / 's'}")
    server.start()
    return server, lazy_rpc, StreamServer(directory / "t", requests)


def _run_follower_rank(load: Load, directory: Path) -> int:
    """Run another rank of a distributed launch until rank 0 ends."""
    # The launcher starts each rank in its own session, so each rank needs its own guard.
    _start_guard(directory, "")
    engine: Any = _resolve_engine_class(load.engine)(load)
    engine.follow()
    return 0


def _resolve_engine_class(engine: str) -> Any:
    module, _, name = engine.partition(":")
    return getattr(import_module(module), name)


def _to_load_error(load: Load, error: Exception) -> EnginebayError:
    if isinstance(error, EnginebayError):
        return error
    import traceback

    traceback.print_exc()  # goes to the log; the user gets one line
    if isinstance(error, MemoryError):
        return OutOfMemory(f"not enough memory to load {load.model} on {load.kind}")
    if isinstance(error, ImportError):
        return LoadFailed(
            f"{load.kind} cannot be imported: {error}", f"reinstall it with: bay engines install {load.kind}"
        )
    line = next(iter(str(error).strip().splitlines()), "")
    return LoadFailed(f"{load.kind} could not load {load.model}: {type(error).__name__}: {line}")


def _connect_to_parent(directory: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(directory / "c"))
    return connection


def _start_guard(directory: Path, removed: str) -> None:
    """Start the guard that cleans up, whichever of worker and parent dies first."""
    guard = ProcessGuard(grace_s=_EXIT_TIMEOUT_S, parent=_connect_to_parent(directory), directory=removed)
    guard.watch(os.getpid(), os.getpgrp())


def _report(control: socket.socket, facts: str | None = None, failure: EnginebayError | None = None) -> None:
    message: dict[str, Any] = {"facts": facts}
    if failure is not None:
        message = {"kind": failure.kind, "message": failure.message, "hint": failure.hint, "param": failure.param}
    control.sendall(json.dumps(message).encode() + b"\n")


def _wait_for_parent(control: socket.socket) -> None:
    """Block until the parent disconnects or dies."""
    while True:
        select.select([control], [], [])
        if not control.recv(1024):
            return


def _raise_terminated(*_: Any) -> None:
    raise _Terminated
