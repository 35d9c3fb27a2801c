"""Programs that must not outlive us, and the one way to interrupt long work from another thread.

    @operation()                          long work: it is interrupted as a whole
    with running(command, env) as it: …   a program that ends with this block, with `end_children()` and with us
    run_logged(command, env, log, tick)   the same, its output in a file
    check()                               between pieces of work that runs no program: raises when interrupted
    end_children()                        from any thread: ends the programs, makes whoever waits raise `FetchFailed`

Work that begins after `end_children()` is not touched by it.
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
# Started in between, so that the program ends when we are killed: the wish to die with the parent survives an exec.
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
_thread_state = threading.local()  # `.since`: how many interruptions there were when this thread's operation began


def isolated_environment() -> dict[str, str]:
    """Our variables, less what would make another Python see our packages."""
    return {name: value for name, value in os.environ.items() if name not in _PYTHON_VARIABLES}


@contextmanager
def interruptible() -> Iterator[None]:
    """Long work of this thread, also as a decorator. One inside another is part of it."""
    if getattr(_thread_state, "since", None) is not None:
        yield
        return
    _thread_state.since = _interruptions
    try:
        yield
    finally:
        _thread_state.since = None


def raise_if_interrupted() -> None:
    """Raises `FetchFailed` if this thread's operation was interrupted."""
    if getattr(_thread_state, "since", None) not in (None, _interruptions):
        raise _build_interrupted_error()


def interrupt_all() -> None:
    """Interrupt every operation that is under way. Returns at once; a program that does not heed is killed soon."""
    global _interruptions
    with _lock:
        _interruptions += 1
        ended = list(_running)
        _running.clear()
    if ended:
        threading.Thread(target=_terminate, args=(ended,), name="end-children", daemon=True).start()


@contextmanager
def child_process(
    command: Sequence[str],
    env: Mapping[str, str],
    *,
    stdout: int | IO[bytes] = subprocess.PIPE,
    stderr: int | IO[bytes] = subprocess.STDOUT,
    pass_fds: Sequence[int] = (),
) -> Iterator[subprocess.Popen[str]]:
    """Start a program in a group of its own. Raises `FetchFailed` at the end of the block if it was interrupted."""
    with _lock:  # an interruption comes before the start, or finds the program
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
            left_alone = process in _running
            _running.discard(process)
        if process.stdout is not None:
            process.stdout.close()
        if process.stderr is not None:
            process.stderr.close()
    if not left_alone:
        raise _build_interrupted_error()


def run_logged(command: Sequence[str], env: Mapping[str, str], log: Path, on_poll: Callable[[], None]) -> int:
    """Run a program with its output in `log`; gives back its exit code. Calls `meanwhile` every now and then."""
    with log.open("wb") as output, child_process(command, env, stdout=output) as process:
        while process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_POLL_S)
                break
            on_poll()
    return process.returncode


def _build_interrupted_error() -> FetchFailed:
    return FetchFailed("interrupted", "run the command again to go on")


def _terminate(processes: Sequence[subprocess.Popen[str]]) -> None:
    """Ask as Ctrl-C does, give them a moment to tidy up, then force what is left of them."""
    asked = [process for process in processes if process.poll() is None]
    for process in asked:
        _send_signal(process, signal.SIGINT)
    limit = time.monotonic() + _GRACE_S
    while any(process.poll() is None for process in asked) and time.monotonic() < limit:
        time.sleep(0.05)
    for process in asked:
        _send_signal(process, signal.SIGKILL)  # to its whole group: a program may leave others behind
        process.wait()


def _send_signal(process: subprocess.Popen[str], number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
