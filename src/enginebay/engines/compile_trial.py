"""Compile a constraint in a child process first, under a limit on time and memory, where xgrammar compiles constraints.

A compilation cannot be stopped in the engine's own process, and a runaway would keep its threads and its memory until the
worker ends. A small constraint skips the trial. The child is started with the first large one and kept; it ends when it
has nothing to do, when it exceeds a limit, and with its parent.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import select
import signal
import struct
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from enginebay.constraints.constraint_size import estimate_states
from enginebay.contract import Guided
from enginebay.errors import EngineFailed, InvalidRequest, Overloaded

SAFE_STATES = 1_000  # such a constraint compiles in a moment
_CHILD = Path(__file__).with_name("compile_trial_child.py")
_CPU_S = 4.0
_MEMORY_BYTES = 1 << 30
_DEADLINE_S = 4.5  # on the wall clock: the model goes first
_START_S = 60.0  # the child imports the library
_EXIT_S = 5.0
_MAX_WAIT_S = 30.0  # for other trials
_RETRY_AFTER_S = 10.0
_ATTEMPTS = 2  # a child that has nothing to do may end just now
_CACHE_SIZE = 512
_STARVED_S = 1.0  # a child that got less processor time by its deadline says nothing of the constraint
_NICENESS = 3
_FRAME = struct.Struct("<I")
_LIMIT_SIGNALS = (-signal.SIGPROF, -signal.SIGKILL, -signal.SIGABRT)

_INVALID, _EXPENSIVE, _LATE = "invalid", "expensive", "late"  # codes; the child has more
_SMALLER = "use smaller repeat counts, and do not repeat what can be empty"
_TOO_EXPENSIVE = (f"compiling it takes more than {_CPU_S:g} s or 1 GiB", _SMALLER)
_PROBLEMS = {
    _EXPENSIVE: _TOO_EXPENSIVE,
    _LATE: _TOO_EXPENSIVE,
    "slow": ("a step takes more than 50 ms on average", _SMALLER),
    "no_output": ("no output can match it", "correct it"),
}


def needs_trial(guided: Guided) -> bool:
    """Return whether to try this constraint before it is compiled. Parses it: do not call it in a thread that must not wait."""
    return estimate_states(guided) > SAFE_STATES


def check_wait(queued_at: float) -> None:
    """Raise `Overloaded` if a constraint has waited too long for its trial. `queued_at` is a time of `time.monotonic`."""
    if time.monotonic() - queued_at > _MAX_WAIT_S:
        raise _make_busy_error()


class CompileTrial:
    """Remembers results. Thread-safe: one trial at a time.

    `any_whitespace`: how the engine compiles JSON schemas. `limits_only`: let constraints pass that xgrammar rejects,
    because the engine has another library for them. Not regexes: that library fails on large ones, in the engine's process.
    """

    def __init__(
        self, describe_tokenizer: Callable[[], str], *, any_whitespace: bool = False, limits_only: bool = False
    ) -> None:
        self._describe_tokenizer = describe_tokenizer
        self._any_whitespace = any_whitespace
        self._limits_only = limits_only
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._closed = False
        self._results: OrderedDict[bytes, dict[str, str]] = OrderedDict()

    def check(self, guided: Guided, kind: str, text: str) -> None:
        """Raise `InvalidRequest` if this constraint does not compile, or not within the limits.

        Raises `Overloaded` or `EngineFailed` if it could not be tried; neither is remembered.
        """
        key = hashlib.sha256(f"{kind}\0{text}".encode()).digest()
        with self._lock:
            result = self._get_result(key, kind, text)
        code = result.get("code")
        if code is None or (code == _INVALID and self._limits_only and kind != "regex"):
            return
        problem, hint = _PROBLEMS.get(code) or (result["reason"], "correct it")
        raise InvalidRequest(
            f"the guided constraint cannot be compiled: {problem}", hint, param=f"guided_{get_kind(guided)}"
        )

    def _get_result(self, key: bytes, kind: str, text: str) -> dict[str, str]:
        if key in self._results:
            return self._results[key]
        result = self._try(kind, text)
        if result.get("code") != _LATE:  # another time there may be more processor time
            self._results[key] = result
            if len(self._results) > _CACHE_SIZE:
                self._results.popitem(last=False)
        return result

    def close(self) -> None:
        self._closed = True
        child = self._child
        if child is not None:
            child.kill()  # without the lock: it ends a trial that runs
        if self._lock.acquire(timeout=_EXIT_S):
            self._end_child()
            self._lock.release()

    def _try(self, kind: str, text: str) -> dict[str, str]:
        """Return the child's answer: the code of a problem and its reason; empty if the constraint compiles."""
        order = {"kind": kind, "text": text, "cpu_s": _CPU_S, "memory_bytes": _MEMORY_BYTES}
        for _ in range(_ATTEMPTS):
            child = self._get_child()
            used_s = _read_cpu_s(child)
            try:
                _send(child, {**order, "any_whitespace": self._any_whitespace}, _DEADLINE_S)
                return _receive(child, _DEADLINE_S)
            except TimeoutError:
                used_s = _read_cpu_s(child) - used_s
                self._end_child()
                if used_s < _STARVED_S:
                    raise _make_busy_error() from None
                return {"code": _LATE}
            except (OSError, EOFError):
                exit_code = _wait_for_exit(child)
                self._end_child()
                self._check_open()
                if exit_code in _LIMIT_SIGNALS:
                    break
        return {"code": _EXPENSIVE}

    def _get_child(self) -> subprocess.Popen[bytes]:
        """Return the child; start one if there is none. Raises `EngineFailed` if it does not start."""
        if self._child is not None and self._child.poll() is None:
            return self._child
        self._end_child()
        try:
            return self._start_child(self._describe_tokenizer())
        except TimeoutError:
            self._end_child()
            raise _make_busy_error() from None
        except Exception as error:
            self._end_child()
            self._check_open()
            logging.getLogger(__name__).exception("the process that tries large constraints did not start")
            raise EngineFailed(
                "the process that tries large constraints did not start", "see the worker's log"
            ) from error

    def _start_child(self, tokenizer: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(_CHILD)]
        self._child = child = subprocess.Popen(
            command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )
        self._check_open()
        assert child.stdin is not None
        os.set_blocking(child.stdin.fileno(), False)
        _send(child, {"tokenizer": tokenizer}, _START_S)
        _receive(child, _START_S)
        return child

    def _check_open(self) -> None:
        if self._closed:
            raise EngineFailed("the engine has stopped", "load the model again")

    def _end_child(self) -> None:
        if self._child is None:
            return
        self._child.kill()
        self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                pipe.close()
        self._child = None


def get_kind(guided: Guided) -> str:
    return next(name for name in ("json", "regex", "grammar", "choice") if getattr(guided, name) is not None)


def _make_busy_error() -> Overloaded:
    message = "the guided constraint cannot be compiled: the server is too busy to compile it"
    return Overloaded(message, "retry later", retry_after_s=_RETRY_AFTER_S)


def _read_cpu_s(child: subprocess.Popen[bytes]) -> float:
    import psutil  # type: ignore[import-untyped, unused-ignore]

    with contextlib.suppress(psutil.Error):
        times = psutil.Process(child.pid).cpu_times()
        return float(times.user + times.system)
    return 0.0


def _wait_for_exit(child: subprocess.Popen[bytes]) -> int | None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        return child.wait(_EXIT_S)
    return None


def _send(child: subprocess.Popen[bytes], message: dict[str, Any], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    text = json.dumps(message).encode()
    data = memoryview(_FRAME.pack(len(text)) + text)
    assert child.stdin is not None
    while data:
        if not select.select([], [child.stdin], [], max(0.0, deadline - time.monotonic()))[1]:
            raise TimeoutError
        data = data[os.write(child.stdin.fileno(), data) :]


def _receive(child: subprocess.Popen[bytes], timeout_s: float) -> dict[str, Any]:
    deadline = time.monotonic() + timeout_s
    (size,) = _FRAME.unpack(_read(child, _FRAME.size, deadline))
    message: dict[str, Any] = json.loads(_read(child, size, deadline))
    return message


def _read(child: subprocess.Popen[bytes], size: int, deadline: float) -> bytes:
    assert child.stdout is not None
    data = b""
    while len(data) < size:
        if not select.select([child.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise TimeoutError
        chunk = os.read(child.stdout.fileno(), size - len(data))
        if not chunk:
            raise EOFError
        data += chunk
    return data


def lower_priority() -> None:
    """Let this thread, and those it starts, yield the processor to the model."""
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
