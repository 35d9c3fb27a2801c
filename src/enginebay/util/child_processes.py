"""Child processes that die with the parent, and interruption of long work from another thread.

    @interruptible()                                 marks long work, which is interrupted as a whole
    with child_process(command, env) as process: …   ends with the block, on `interrupt_all()` and with the parent
    run_logged(command, env, log, on_poll)           the same, with its output in a file
    raise_if_interrupted()                           a checkpoint for work that runs no child process
    interrupt_all()                                  from any thread: ends children; their callers raise `FetchFailed`

`interrupt_all()` does not affect work that begins after it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from enginebay.errors import FetchFailed

_POLL_S = 0.2
_GRACE_S = 3.0
# Runs between parent and program: PR_SET_PDEATHSIG survives the exec, so the program dies even if the parent is killed.
_DIE_WITH_PARENT = """
import ctypes, os, signal, sys
prctl = getattr(ctypes.CDLL(None), "prctl", None)
if prctl is not None:
    prctl(1, signal.SIGKILL)
    if os.getppid() != int(sys.argv[1]):
        sys.exit(1)
try:
    os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error:
    sys.exit(f"{sys.argv[2]} cannot be run: {error.strerror}")
"""
_PYTHON_VARIABLES = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__")

_lock = threading.Lock()
_running: set[subprocess.Popen[str]] = set()
_interruptions = 0
_thread_state = threading.local()  # `.since`: value of `_interruptions` when this thread's operation began


def isolated_environment() -> dict[str, str]:
    """Return the environment variables without those that expose this Python's packages to another Python."""
    return {name: value for name, value in os.environ.items() if name not in _PYTHON_VARIABLES}


@contextmanager
def interruptible() -> Iterator[None]:
    """Make this thread's work interruptible. Also a decorator. Nested uses belong to the outermost one."""
    if getattr(_thread_state, "since", None) is not None:
        yield
        return
    _thread_state.since = _interruptions
    try:
        yield
    finally:
        _thread_state.since = None


def raise_if_interrupted() -> None:
    """Raise `FetchFailed` if this thread's operation was interrupted."""
    if getattr(_thread_state, "since", None) not in (None, _interruptions):
        raise _build_interrupted_error()


def interrupt_all() -> None:
    """Interrupt every running operation. Returns at once; children that ignore SIGINT are soon killed."""
    global _interruptions
    with _lock:
        _interruptions += 1
        interrupted = list(_running)
        _running.clear()
    if interrupted:
        threading.Thread(target=_terminate, args=(interrupted,), name="end-children", daemon=True).start()


@contextmanager
def child_process(
    command: Sequence[str],
    env: Mapping[str, str],
    *,
    stdout: int | IO[bytes] = subprocess.PIPE,
    stderr: int | IO[bytes] = subprocess.STDOUT,
    pass_fds: Sequence[int] = (),
) -> Iterator[subprocess.Popen[str]]:
    """Run a program in its own process group. Raises `FetchFailed` at the end of the block if it was interrupted."""
    with _lock:  # an interruption either precedes the start or sees the process
        raise_if_interrupted()
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), *command],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            text=True,
            errors="replace",
            start_new_session=True,
            pass_fds=pass_fds,
        )
        _running.add(process)
    try:
        yield process
        process.wait()
    except BaseException:
        _terminate([process])
        raise
    finally:
        with _lock:
            undisturbed = process in _running
            _running.discard(process)
        if process.stdout is not None:
            process.stdout.close()
        if process.stderr is not None:
            process.stderr.close()
    if not undisturbed:
        raise _build_interrupted_error()


def run_logged(command: Sequence[str], env: Mapping[str, str], log: Path, on_poll: Callable[[], None]) -> int:
    """Run a program with its output in `log` and return its exit code. Calls `on_poll` while it runs."""
    with log.open("wb") as output, child_process(command, env, stdout=output) as process:
        while process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_POLL_S)
                break
            on_poll()
    return process.returncode


def _build_interrupted_error() -> FetchFailed:
    return FetchFailed("interrupted", "run the command again to continue")


def _terminate(processes: Sequence[subprocess.Popen[str]]) -> None:
    """Send SIGINT, wait for the grace period, then kill what is left."""
    alive = [process for process in processes if process.poll() is None]
    for process in alive:
        _send_signal(process, signal.SIGINT)
    deadline = time.monotonic() + _GRACE_S
    while any(process.poll() is None for process in alive) and time.monotonic() < deadline:
        time.sleep(0.05)
    for process in alive:
        _send_signal(process, signal.SIGKILL)  # to the whole group: a program may leave children behind
        process.wait()


def _send_signal(process: subprocess.Popen[str], number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
