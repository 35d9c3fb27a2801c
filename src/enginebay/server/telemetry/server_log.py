"""The server's log: one line per finished request and one per server event.

A thread writes the lines, so that a slow terminal or pipe does not block the event loop. If the thread falls too far
behind, lines are dropped and their number is logged. The caller formats: this takes microseconds, while a second busy
thread would hold the interpreter for milliseconds at a time.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from typing import Any, Literal, TextIO

from enginebay.server.telemetry.log_format import (
    LEVELS,
    RequestRecord,
    format_json_line,
    format_request_line,
    format_text_line,
    get_request_level,
)

__all__ = ["LEVELS", "RequestRecord", "ServerLog"]

LogFormat = Literal["text", "json"]

_MAX_QUEUED_LINES = 10_000
_MAX_BATCH_LINES = 1000  # in one write
_MAX_PROMPT_CHARS = 10_000
_CLOSE_S = 2.0
_FLUSH_INTERVAL_S = 0.02  # between writes: under load, one wake-up for many lines


class ServerLog:
    """Thread-safe. The writer thread starts with the first line: do not fork after that."""

    def __init__(
        self,
        format: LogFormat = "text",
        level: str = "info",
        prompts: bool = False,
        stream: TextIO | None = None,
        *,
        max_queued: int = _MAX_QUEUED_LINES,
    ) -> None:
        self._format = format
        self._min_level = LEVELS.index(level)
        self._prompts = prompts
        self._stream = sys.stderr if stream is None else stream
        self._max_queued = max_queued
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._reported_drops = 0
        self.dropped = 0  # since the start

    def log_event(self, name: str, /, *, level: str = "info", **fields: Any) -> None:
        """Log a server event."""
        if LEVELS.index(level) >= self._min_level:
            self._enqueue(self._format_line(level, name, fields))

    def log_request(self, record: RequestRecord) -> None:
        """Log a finished request."""
        level = get_request_level(record)
        if LEVELS.index(level) < self._min_level:
            return
        record.prompt = truncate_prompt(record.prompt) if self._prompts else ""
        if self._format == "json":
            self._enqueue(self._format_line(level, "request", record.known_fields()))
        else:
            self._enqueue(format_request_line(time.time(), record))

    def close(self) -> None:
        """Write the queued lines, for at most `_CLOSE_S`."""
        if self._thread is not None:
            self._lines.put(None)
            self._thread.join(_CLOSE_S)
            self._thread = None

    def _format_line(self, level: str, event: str, fields: dict[str, Any]) -> str:
        return (format_json_line if self._format == "json" else format_text_line)(time.time(), level, event, fields)

    def _enqueue(self, line: str) -> None:
        if self._lines.qsize() >= self._max_queued:
            self._count_dropped(1)
            return
        self._lines.put(line)
        if self._thread is None:
            self._start_writer()

    def _count_dropped(self, lines: int) -> None:
        with self._lock:
            self.dropped += lines

    def _start_writer(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run_writer, name="log", daemon=True)
                self._thread.start()

    # In the writer thread

    def _run_writer(self) -> None:
        running = True
        while running:
            batch = [self._lines.get()]
            while len(batch) < _MAX_BATCH_LINES and not self._lines.empty():
                batch.append(self._lines.get())
            lines = [line for line in batch if line is not None]
            running = len(lines) == len(batch)
            dropped = self.dropped
            notice = [self._format_drop_notice(dropped)] if dropped > self._reported_drops else []
            if self._write("".join(f"{line}\n" for line in (*lines, *notice))):
                self._reported_drops = dropped
            else:
                self._count_dropped(len(lines))
            if running:
                time.sleep(_FLUSH_INTERVAL_S)

    def _format_drop_notice(self, dropped: int) -> str:
        lost = {"dropped": dropped - self._reported_drops, "dropped_in_all": dropped}
        return self._format_line("warning", "log lines dropped", lost)

    def _write(self, text: str) -> bool:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # the reader is gone: keep serving without a log
            return False
        return True


def truncate_prompt(prompt: str) -> str:
    """Return the prompt cut to `_MAX_PROMPT_CHARS`, with the number of characters left out."""
    over = len(prompt) - _MAX_PROMPT_CHARS
    return prompt if over <= 0 else f"{prompt[:_MAX_PROMPT_CHARS]} ({over} more characters)"
