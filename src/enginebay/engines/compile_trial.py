"""Compile a constraint in a child process first, under a limit on time and memory, where xgrammar compiles constraints.

A compilation cannot be stopped in the engine's own process, and a runaway would keep its threads and its memory until the
worker ends. A small constraint skips the trial. The child is started with the first large one and kept; it ends when it
has nothing to do, when it exceeds a limit, and with its parent.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import select
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
from enginebay.errors import InvalidRequest

SAFE_STATES = 1_000  # such a constraint compiles in a moment
_CHILD = Path(__file__).with_name("compile_trial_child.py")
_CPU_S = 8.0
_MEMORY_BYTES = 1 << 30
_DEADLINE_S = 120.0  # on the wall clock: the child has low priority, and its processor time is limited apart from that
_START_S = 120.0  # the child imports the library
_CACHE_SIZE = 512
_NICENESS = 10
_FRAME = struct.Struct("<I")

TOO_EXPENSIVE = "it takes too long or too much memory to compile"
BUSY = "the server is too busy to try it"
SLOW_STEPS = "each of its steps takes too long"
_HINTS = dict.fromkeys((TOO_EXPENSIVE, SLOW_STEPS), "use smaller counts, and repeat nothing that may be empty")
_HINTS[BUSY] = "try again later"


def needs_trial(guided: Guided) -> bool:
    return estimate_states(guided) > SAFE_STATES


class CompileTrial:
    """Remembers results. Thread-safe: one trial at a time."""

    def __init__(self, describe_tokenizer: Callable[[], str]) -> None:
        self._describe_tokenizer = describe_tokenizer
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._results: OrderedDict[bytes, str | None] = OrderedDict()

    def check(self, guided: Guided, kind: str, text: str) -> None:
        """Raise `InvalidRequest` if this constraint does not compile, or not within the limits."""
        if not needs_trial(guided):
            return
        key = hashlib.sha256(f"{kind}\0{text}".encode()).digest()
        with self._lock:
            if key not in self._results:
                self._results[key] = self._try(kind, text)
                if len(self._results) > _CACHE_SIZE:
                    self._results.popitem(last=False)
            problem = self._results[key]
            if problem == BUSY:
                del self._results[key]
        if problem is not None:
            hint = _HINTS.get(problem, "correct it")
            raise InvalidRequest(
                f"the guided constraint cannot be compiled: {problem}", hint, param=f"guided_{get_kind(guided)}"
            )

    def close(self) -> None:
        child = self._child  # without the lock: a trial may run
        if child is not None:
            child.kill()

    def _try(self, kind: str, text: str) -> str | None:
        """Return why the constraint does not compile; None if it does."""
        try:
            child = self._get_child()
            _send(child, {"kind": kind, "text": text, "cpu_s": _CPU_S, "memory_bytes": _MEMORY_BYTES})
            problem: str | None = _receive(child, _DEADLINE_S)["problem"]
            return problem
        except TimeoutError:
            self._end_child()
            return BUSY
        except (OSError, EOFError):
            self._end_child()
            return TOO_EXPENSIVE

    def _get_child(self) -> subprocess.Popen[bytes]:
        if self._child is not None and self._child.poll() is None:
            return self._child
        self._end_child()
        environment = {**os.environ, "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1"}
        self._child = subprocess.Popen(
            [sys.executable, str(_CHILD)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )
        _send(self._child, {"tokenizer": self._describe_tokenizer()})
        _receive(self._child, _START_S)
        return self._child

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


def _send(child: subprocess.Popen[bytes], message: dict[str, Any]) -> None:
    data = json.dumps(message).encode()
    assert child.stdin is not None
    child.stdin.write(_FRAME.pack(len(data)) + data)
    child.stdin.flush()


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
