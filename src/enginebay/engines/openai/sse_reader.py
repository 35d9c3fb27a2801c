"""Server-sent events, read as they arrive."""

from __future__ import annotations

from enginebay.engines.openai.http_response import MalformedResponse

_MAX_EVENT_BYTES = 1 << 22


class SseReader:
    """Takes bytes in any pieces and gives back the data of each complete event; comments and names are left out."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Raises `Garbled` for an event beyond all measure."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        found: list[bytes] = []
        for line in lines:
            self._feed_line(line.removesuffix(b"\r"), found)
        if len(self._rest) + self._size > _MAX_EVENT_BYTES:
            raise MalformedResponse(f"an event of more than {_MAX_EVENT_BYTES >> 20} MiB")
        return found

    def end(self) -> list[bytes]:
        """The answer is complete; not every server puts an empty line behind the last event."""
        found: list[bytes] = []
        self._feed_line(self._rest.removesuffix(b"\r"), found)
        self._feed_line(b"", found)
        self._rest = b""
        return found

    def _feed_line(self, line: bytes, found: list[bytes]) -> None:
        if not line:
            if self._data:
                found.append(b"\n".join(self._data))
                self._data, self._size = [], 0
        elif line.startswith(b"data:"):
            value = line[5:].removeprefix(b" ")
            self._data.append(value)
            self._size += len(value)
