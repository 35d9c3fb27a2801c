"""How long the parts of a load took, from vLLM's own log lines. Pure; worded as in 0.26 and 0.32, and a little wider."""

from __future__ import annotations

import re
from collections.abc import Iterable

_SECONDS = r"([\d.]+) ?s(?:ec(?:ond)?s?)?\b"

# For each phase, the best source first: a phase takes the first of its patterns that any line matches.
_PHASE_PATTERNS: dict[str, tuple[re.Pattern[str], ...]] = {
    "load": (
        re.compile(rf"Model loading took .*?\band {_SECONDS}"),
        re.compile(rf"Loading weights took {_SECONDS}"),
    ),
    "compile": (
        re.compile(rf"torch\.compile .*?(?:took|takes) {_SECONDS} in total"),
        re.compile(rf"init engine .*?\(compilation: {_SECONDS}"),
    ),
    "capture": (re.compile(rf"(?<!Encoder )[Gg]raph capturing finished in {_SECONDS}"),),
}


def is_phase_line(line: str) -> bool:
    """Is this a line that `phases` reads?"""
    return any(pattern.search(line) for patterns in _PHASE_PATTERNS.values() for pattern in patterns)


def parse_phases(lines: Iterable[tuple[int, str]]) -> dict[str, float]:
    """Seconds by phase, from (process, line). What no line tells is absent.

    Lines of one process add up (a model may be compiled in parts); processes work side by side, so the slowest counts.
    """
    told = list(lines)
    found: dict[str, float] = {}
    for phase, patterns in _PHASE_PATTERNS.items():
        for pattern in patterns:
            by_process: dict[int, float] = {}
            for process, line in told:
                match = pattern.search(line)
                if match is not None:
                    by_process[process] = by_process.get(process, 0.0) + float(match[1])
            if by_process:
                found[phase] = max(by_process.values())
                break
    return found
