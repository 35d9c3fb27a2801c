"""Load phases and errors read from vLLM's log lines, as vLLM 0.26 and 0.32 word them."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any

_SECONDS = r"([\d.]+) ?s(?:ec(?:ond)?s?)?\b"

# A phase takes the first of its patterns that any line matches: best source first.
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
    """Return whether `parse_phases` reads this line."""
    return any(pattern.search(line) for patterns in _PHASE_PATTERNS.values() for pattern in patterns)


def parse_phases(lines: Iterable[tuple[int, str]]) -> dict[str, float]:
    """Return seconds by phase, from (process, line). Omits phases that no line mentions.

    Sums the lines of one process (a model may compile in parts) and takes the slowest process, since they run in parallel.
    """
    entries = list(lines)
    seconds: dict[str, float] = {}
    for phase, patterns in _PHASE_PATTERNS.items():
        for pattern in patterns:
            by_process: dict[int, float] = {}
            for process, line in entries:
                match = pattern.search(line)
                if match is not None:
                    by_process[process] = by_process.get(process, 0.0) + float(match[1])
            if by_process:
                seconds[phase] = max(by_process.values())
                break
    return seconds


class LoadLog:
    """Collects exceptions and load times that vLLM logs, from this process and every process forked from it.

    Hooks the record factory, because vLLM replaces its log handlers while it starts. Writes to an unnamed file, so
    nothing is left behind. Spawned processes do not inherit the file; their messages are only in the log.
    """

    def __init__(self, enabled: bool = True) -> None:
        self._enabled = enabled
        self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 (open for the engine's lifetime)

    @contextlib.contextmanager
    def capture(self) -> Iterator[None]:
        """Collect records in this process, and permanently in every process forked meanwhile."""
        if not self._enabled:
            yield
            return
        make = logging.getLogRecordFactory()

        def record_and_make(*args: Any, **kwargs: Any) -> logging.LogRecord:
            record = make(*args, **kwargs)
            self._record(record)
            return record

        os.ftruncate(self._file.fileno(), 0)
        self._file.seek(0)
        logging.setLogRecordFactory(record_and_make)
        try:
            yield
        finally:
            logging.setLogRecordFactory(make)

    def find_first_error(self) -> tuple[str, str] | None:
        """Return class name and message of the first exception."""
        return next(((kind, text) for _, kind, text in self._read_entries() if kind), None)

    def read_phases(self) -> dict[str, float]:
        """Return the seconds each reported load phase took."""
        return parse_phases((process, text) for process, kind, text in self._read_entries() if not kind)

    def _record(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and record.levelno >= logging.ERROR:
            self._write(type(error).__name__, str(error)[:2000])
        elif record.levelno == logging.INFO and record.name.startswith("vllm"):
            with contextlib.suppress(Exception):  # a record that does not format is not our bug
                line = record.getMessage()
                if is_phase_line(line):
                    self._write("", line[:500])

    def _write(self, kind: str, text: str) -> None:
        os.write(self._file.fileno(), json.dumps([os.getpid(), kind, text]).encode() + b"\n")

    def _read_entries(self) -> list[tuple[int, str, str]]:
        entries: list[tuple[int, str, str]] = []
        for line in os.pread(self._file.fileno(), 100_000, 0).splitlines():
            with contextlib.suppress(ValueError):  # the last line may be cut off
                process, kind, text = json.loads(line)
                entries.append((int(process), str(kind), str(text)))
        return entries
