"""The worker process: load one engine, then serve it until the parent lets go.

    started ──import──▶ (standby ──assigned──▶) load ──▶ ready ──SIGTERM or parent gone──▶ closing ──▶ exit 0
       └──────────────── load failed ─────────────────────────────▶ exit 1, the reason sent to the parent

The engine is made in the main thread before any other thread exists, since some engines fork. A standby has imported
its engine's library and waits for a model: it has one thread and has touched no device.
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
from enginebay.worker import codec
from enginebay.worker.engine_side import process_guard

_RPC_THREADS = 64  # for questions; a drain holds one for as long as it takes


class _Terminated(BaseException):
    """Raised in the main thread by SIGTERM."""


def main(arguments: list[str]) -> int:
    directory = Path(arguments[0])
    if int(os.environ.get("RANK", "0")) > 0:  # only a launcher sets it: see process.py
        return _run_follower_rank(_read_load(directory), directory)
    os.environ["ENGINEBAY_WORKER_DIR"] = str(directory)  # private, and removed after any death
    try:
        control = _connect_to_parent(directory)
        process_guard.start_guard(_connect_to_parent(directory), str(directory))
    except OSError:  # the parent died before we were there, and no guard is there yet to tidy up
        shutil.rmtree(directory, ignore_errors=True)
        return 0
    signal.signal(signal.SIGTERM, _raise_terminated)
    for one in (
        signal.SIGINT,
        signal.SIGHUP,
    ):  # for the parent, which ends the worker in order, or reads its files again
        signal.signal(one, signal.SIG_IGN)
    try:
        if len(arguments) > 1 and not _wait_as_standby(arguments[1], control):
            return 0
        return _serve(_read_load(directory), directory, control)
    except _Terminated:
        return 0


def _read_load(directory: Path) -> Load:
    return codec.decode_load((directory / "load.json").read_text())


def _wait_as_standby(engine: str, control: socket.socket) -> bool:
    """Import the engine's library and wait for a model. False: there will be none."""
    import_s = _import_engine(engine)
    control.sendall(json.dumps({"import_s": import_s}).encode() + b"\n")
    log = b""
    while not log.endswith(b"\n"):
        piece = control.recv(4096)
        if not piece:
            return False
        log += piece
    _redirect_output(log.decode().strip())
    return True


def _redirect_output(path: str) -> None:
    """From now on this process writes to the model's log."""
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    except OSError:  # a disk without room for logs is no reason not to answer
        log = os.open(os.devnull, os.O_WRONLY)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def _import_engine(engine: str) -> float:
    """Everything heavy that loading needs; gives back how long it took."""
    started = time.perf_counter()
    gc.disable()  # modules are not garbage: looking for it takes a seventh of torch's import
    try:
        warm = getattr(_resolve_engine_class(engine), "warm", None)
        if warm is not None:
            warm()
    finally:
        gc.freeze()  # nor are they looked at again, here or in a process forked from this one
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
        server, questions, sessions = _start_servers(engine, directory)
        # From here on the parent's closing is the sign to end. A signal to all processes of a service is not:
        # the server then still has answers to finish.
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
            sessions.close()
            questions.end()
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
    ledger = RequestTable(engine)
    engine.start(ledger)
    server = grpc.server(
        ThreadPoolExecutor(_RPC_THREADS),
        options=[("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)],
    )
    questions = LazyRpcHandler(SERVICE)
    server.add_generic_rpc_handlers((build_handlers(WorkerServicer(engine, ledger)), questions))
    server.add_insecure_port(f"unix:{directory / 's'}")
    server.start()
    return server, questions, StreamServer(directory / "t", ledger)


def _run_follower_rank(load: Load, directory: Path) -> int:
    """Another rank of a distributed launch: computes what rank 0 says, until it says nothing more."""
    process_guard.start_guard(
        _connect_to_parent(directory), ""
    )  # a launcher gives each rank a session of its own, so each has its own guard
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

    traceback.print_exc()  # to the log; the user gets one line
    if isinstance(error, MemoryError):
        return OutOfMemory(f"not enough memory to load {load.model} on {load.kind}")
    if isinstance(error, ImportError):
        return LoadFailed(
            f"{load.kind} cannot be imported: {error}", f"repair it with: bay engines install {load.kind}"
        )
    line = next(iter(str(error).strip().splitlines()), "")
    return LoadFailed(f"{load.kind} could not load {load.model}: {type(error).__name__}: {line}")


def _connect_to_parent(directory: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(directory / "c"))
    return connection


def _report(control: socket.socket, facts: str | None = None, failure: EnginebayError | None = None) -> None:
    message: dict[str, Any] = {"facts": facts}
    if failure is not None:
        message = {"kind": failure.kind, "message": failure.message, "hint": failure.hint, "param": failure.param}
    control.sendall(json.dumps(message).encode() + b"\n")


def _wait_for_parent(control: socket.socket) -> None:
    """Until the parent closes its end, or dies."""
    while True:
        select.select([control], [], [])
        if not control.recv(1024):
            return


def _raise_terminated(*_: Any) -> None:
    raise _Terminated
