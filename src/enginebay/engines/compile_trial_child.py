"""The child process of `compile_trial`: compiles a constraint with xgrammar and follows it for a few tokens.

Runs as a script in the engine's environment and imports nothing of Enginebay. A frame is a length and JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import select
import signal
import struct
import sys
import time
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

_FRAME = struct.Struct("<I")
_IDLE_S = 120.0
_STEPS = 24
_MAX_STEPS_S = _STEPS * 0.05  # together: a few may be slow
_WITH_TORCH = "--with-torch"


def main() -> None:
    incoming, outgoing = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    if _WITH_TORCH not in sys.argv:
        _import_without_torch(outgoing.fileno())
    first = _receive(incoming)
    if first is None:
        return
    import numpy  # noqa: F401  (before a limit applies)
    import xgrammar

    info = xgrammar.TokenizerInfo.deserialize_json(first["tokenizer"])
    del first
    _send(outgoing, {})
    while (order := _receive(incoming)) is not None:
        _limit_resources(order["cpu_s"], order["memory_bytes"])
        answer = _try_constraint(info, order)
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        _send(outgoing, answer)


class _StandIn(ModuleType):
    """Stands in for a module that is imported and not used: it has every name, as a class that does nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__init__": lambda *_, **__: None})


def _import_without_torch(answers: int) -> None:
    """Import xgrammar without torch and transformers, which take seconds and are not needed here.

    If it does not work this way, start this script again, with them. Nothing has been read or written by now.
    """
    try:
        modules: dict[str, Any] = sys.modules
        modules.update(dict.fromkeys(("torch", "sentencepiece", "tiktoken")))  # None: as if not installed
        with contextlib.suppress(ImportError):
            import_module("tvm_ffi")
        modules.update({name: _StandIn(name) for name in ("torch", "transformers")})
        import xgrammar

        info = xgrammar.TokenizerInfo(["a", "b"], stop_token_ids=[1])
        if problem := _try_constraint(info, {"kind": "grammar", "text": 'root ::= "a"'}):
            raise ImportError(str(problem))
    except Exception:
        os.dup2(answers, 1)
        os.execv(sys.executable, [sys.executable, __file__, _WITH_TORCH])


def _receive(incoming: BinaryIO) -> dict[str, Any] | None:
    """Return the next message; None if there is none for a while, or the parent has ended."""
    if not select.select([incoming], [], [], _IDLE_S)[0]:
        return None
    header = incoming.read(_FRAME.size)
    if len(header) < _FRAME.size:
        return None
    message: dict[str, Any] = json.loads(incoming.read(_FRAME.unpack(header)[0]))
    return message


def _send(outgoing: BinaryIO, message: dict[str, Any]) -> None:
    data = json.dumps(message).encode()
    outgoing.write(_FRAME.pack(len(data)) + data)
    outgoing.flush()


def _limit_resources(cpu_s: float, memory_bytes: int) -> None:
    """Allow so much more than is used now. Beyond it the kernel ends this process, or allocation fails."""
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    _lower_limit(resource.RLIMIT_CORE, 0)
    with contextlib.suppress(OSError, ValueError):  # not every system has such a limit
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        _lower_limit(resource.RLIMIT_AS, mapped + memory_bytes)


def _lower_limit(kind: int, wanted: int) -> None:
    """Set the soft limit. The hard limit stays: only root may raise it."""
    hard = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def _try_constraint(info: Any, order: dict[str, Any]) -> dict[str, str]:
    """Return the code of a problem and its reason; empty if the constraint compiles and can be followed."""
    import xgrammar

    try:
        compiled = _compile(xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False), order)
        code = _follow(xgrammar.GrammarMatcher(compiled), info)
        return {} if code is None else {"code": code}
    except Exception as error:
        if isinstance(error, MemoryError) or "bad_alloc" in str(error):
            return {"code": "expensive"}
        lines = str(error).strip().splitlines()
        return {"code": "invalid", "reason": lines[0] if lines else type(error).__name__}


def _compile(compiler: Any, order: dict[str, Any]) -> Any:
    kind, text = order["kind"], order["text"]
    if kind == "json":
        return compiler.compile_json_schema(text, any_whitespace=order["any_whitespace"])
    return compiler.compile_regex(text) if kind == "regex" else compiler.compile_grammar(text)


def _follow(matcher: Any, info: Any) -> str | None:
    """Follow a short output and return the code of a problem. The first step does not count: it allocates memory."""
    import numpy

    mask = numpy.zeros((1, (info.vocab_size + 31) // 32), numpy.int32)
    choices = random.Random(0)
    total = 0.0
    for step in range(_STEPS):
        if matcher.is_terminated():
            return None
        began = time.process_time()
        matcher.fill_next_token_bitmask(mask)
        spent = time.process_time() - began
        allowed = numpy.flatnonzero(numpy.unpackbits(mask.view(numpy.uint8), bitorder="little")[: info.vocab_size])
        if not allowed.size:
            return "no_output"
        began = time.process_time()
        matcher.accept_token(int(allowed[choices.randrange(allowed.size)]))
        total += spent + time.process_time() - began if step else 0.0
        if total > _MAX_STEPS_S:
            return "slow"
    return None


if __name__ == "__main__":
    main()
