"""The child process of `compile_trial`: compiles a constraint with xgrammar and follows it for a few tokens.

Runs as a script in the engine's environment and imports nothing of Enginebay. A frame is a length and JSON.
"""

from __future__ import annotations

import json
import os
import random
import resource
import select
import struct
import sys
import time
from pathlib import Path
from typing import Any, BinaryIO

_FRAME = struct.Struct("<I")
_IDLE_S = 120.0
_STEPS = 24
_NICENESS = 10  # the model goes first
_MAX_STEP_S = 0.05
_SLOW_STEPS = "each of its steps takes too long"


def main() -> None:
    incoming, outgoing = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    os.nice(_NICENESS)
    first = _receive(incoming)
    if first is None:
        return
    import xgrammar

    info = xgrammar.TokenizerInfo.deserialize_json(first["tokenizer"])
    del first
    _send(outgoing, {})
    while (order := _receive(incoming)) is not None:
        _limit_resources(order["cpu_s"], order["memory_bytes"])
        _send(outgoing, {"problem": _try_constraint(info, order["kind"], order["text"])})


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
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit = int(used.ru_utime + used.ru_stime + cpu_s) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))
    with Path("/proc/self/statm").open() as file:
        mapped = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + memory_bytes, resource.RLIM_INFINITY))


def _try_constraint(info: Any, kind: str, text: str) -> str | None:
    """Return why the constraint is no good; None if it is."""
    import xgrammar

    try:
        compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        compiled = (
            compiler.compile_json_schema(text, any_whitespace=False)
            if kind == "json"
            else compiler.compile_regex(text)
            if kind == "regex"
            else compiler.compile_grammar(text)
        )
        return _follow(xgrammar.GrammarMatcher(compiled), info)
    except MemoryError:
        return "it takes too long or too much memory to compile"
    except Exception as error:
        return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _follow(matcher: Any, info: Any) -> str | None:
    """Follow a short output and return what is wrong with it."""
    import xgrammar

    mask = xgrammar.allocate_token_bitmask(1, info.vocab_size)
    choices = random.Random(0)
    for _ in range(_STEPS):
        if matcher.is_terminated():
            return None
        began = time.process_time()
        matcher.fill_next_token_bitmask(mask)
        spent = time.process_time() - began
        allowed = _list_allowed(mask[0].tolist())
        if not allowed:
            return "no output can match it"
        began = time.process_time()
        matcher.accept_token(choices.choice(allowed))
        if spent + time.process_time() - began > _MAX_STEP_S:
            return _SLOW_STEPS
    return None


def _list_allowed(words: list[int]) -> list[int]:
    return [index * 32 + bit for index, word in enumerate(words) if word for bit in range(32) if word >> bit & 1]


if __name__ == "__main__":
    main()
