"""Incremental parser for server-sent events."""

from __future__ import annotations

from enginebay.engines.openai.http_response import MalformedResponse

_MAX_EVENT_BYTES = 1 << 22


class SseReader:
    """Accepts bytes in any pieces and returns the data of each complete event. Skips comments and event names."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Return the completed events. Raises `MalformedResponse` for an oversized event."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        events: list[bytes] = []
        for line in lines:
            self._feed_line(line.removesuffix(b"\r"), events)
        if len(self._rest) + self._size > _MAX_EVENT_BYTES:
            raise MalformedResponse(f"an event of more than {_MAX_EVENT_BYTES >> 20} MiB")
        return events

    def end(self) -> list[bytes]:
        """Return the last event. Not every server sends an empty line after it."""
        events: list[bytes] = []
        self._feed_line(self._rest.removesuffix(b"\r"), events)
        self._feed_line(b"", events)
        self._rest = b""
        return events

    def _feed_line(self, line: bytes, events: list[bytes]) -> None:
        if not line:
            if self._data:
                events.append(b"\n".join(self._data))
                self._data, self._size = [], 0
        elif line.startswith(b"data:"):
            value = line[5:].removeprefix(b" ")
            self._data.append(value)
            self._size += len(value)
