"""The server's log: one line per request at its end, and one per event of the server.

A terminal or a pipe may be slow, and the event loop must not wait for it: lines are written by a thread, and when that
thread falls behind by too much, lines are dropped, counted, and the number is logged. Formatting is the caller's: it
takes microseconds, while a second thread that computes would hold the interpreter for milliseconds at a time.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from typing import Any, Literal, TextIO

from enginebay.server.log_lines import LEVELS, RequestRecord, json_line, level_of, request_line, text_line

__all__ = ["LEVELS", "Log", "RequestRecord"]

Format = Literal["text", "json"]

_MOST_WAITING = 10_000  # lines
_MOST_AT_ONCE = 1000  # lines in one write
_LONGEST_PROMPT = 10_000  # characters
_CLOSE_S = 2.0
_PAUSE_S = 0.02  # between writes: under load, one wake-up for many lines


class Log:
    """Any thread may call. The writing thread starts with the first line: make no fork after that."""

    def __init__(
        self,
        format: Format = "text",
        level: str = "info",
        prompts: bool = False,
        stream: TextIO | None = None,
        *,
        most_waiting: int = _MOST_WAITING,
    ) -> None:
        self._format = format
        self._least = LEVELS.index(level)
        self._prompts = prompts
        self._stream = sys.stderr if stream is None else stream
        self._most_waiting = most_waiting
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._reported = 0
        self.dropped = 0  # since the start

    def event(self, name: str, /, *, level: str = "info", **fields: Any) -> None:
        """Something that happened to the server."""
        if LEVELS.index(level) >= self._least:
            self._put(self._formatted(level, name, fields))

    def request(self, record: RequestRecord) -> None:
        """A request has ended."""
        level = level_of(record)
        if LEVELS.index(level) < self._least:
            return
        record.prompt = shortened(record.prompt) if self._prompts else ""
        if self._format == "json":
            self._put(self._formatted(level, "request", record.shown()))
        else:
            self._put(request_line(time.time(), record))

    def close(self) -> None:
        """Write what waits; a reader that does not read is not waited for long."""
        if self._thread is not None:
            self._lines.put(None)
            self._thread.join(_CLOSE_S)
            self._thread = None

    def _formatted(self, level: str, event: str, fields: dict[str, Any]) -> str:
        return (json_line if self._format == "json" else text_line)(time.time(), level, event, fields)

    def _put(self, line: str) -> None:
        if self._lines.qsize() >= self._most_waiting:
            self._drop(1)
            return
        self._lines.put(line)
        if self._thread is None:
            self._start()

    def _drop(self, lines: int) -> None:
        with self._lock:
            self.dropped += lines

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._write_all, name="log", daemon=True)
                self._thread.start()

    # In the writing thread

    def _write_all(self) -> None:
        going_on = True
        while going_on:
            batch = [self._lines.get()]
            while len(batch) < _MOST_AT_ONCE and not self._lines.empty():
                batch.append(self._lines.get())
            lines = [line for line in batch if line is not None]
            going_on = len(lines) == len(batch)
            dropped = self.dropped
            notice = [self._losses(dropped)] if dropped > self._reported else []
            if self._write("".join(f"{line}\n" for line in (*lines, *notice))):
                self._reported = dropped
            else:
                self._drop(len(lines))
            if going_on:
                time.sleep(_PAUSE_S)

    def _losses(self, dropped: int) -> str:
        lost = {"dropped": dropped - self._reported, "dropped_in_all": dropped}
        return self._formatted("warning", "log lines dropped", lost)

    def _write(self, text: str) -> bool:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # whoever read the log has gone, and serving goes on without
            return False
        return True


def shortened(prompt: str) -> str:
    """A prompt as far as it is worth keeping in a log."""
    over = len(prompt) - _LONGEST_PROMPT
    return prompt if over <= 0 else f"{prompt[:_LONGEST_PROMPT]} ({over} more characters)"
