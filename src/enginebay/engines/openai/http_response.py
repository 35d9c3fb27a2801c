"""Incremental HTTP/1.1 response parser. Does no I/O; bounds every size."""

from __future__ import annotations

import re

_MAX_HEAD_BYTES = 1 << 16
_MAX_CHUNK_LINE_BYTES = 1 << 12
_MAX_BODY_BYTES = 1 << 30

_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: [^\r\n]*)?\Z")
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")
_CHUNK_SIZE = re.compile(rb"([0-9a-fA-F]{1,12})[ \t]*(?:;.*)?\Z")
_NO_BODY = (204, 304)


class MalformedResponse(Exception):
    """The server sent an invalid response. The message is a noun phrase: "<server> sent <message>"."""


class HttpResponseParser:
    """Accepts the bytes of one response in any pieces and returns those of its body."""

    def __init__(self) -> None:
        self.status = 0  # 0: the head is incomplete
        self.headers: dict[str, str] = {}
        self.is_complete = False
        self.keep_alive = False  # the connection is reusable once the response is complete
        self._buffer = bytearray()
        self._body = bytearray()
        self._total = 0
        self._remaining = 0
        self._state = self._read_head

    def feed(self, data: bytes) -> bytes:
        """Return the part of the body in the data. Raises `MalformedResponse`."""
        self._buffer += data
        while self._state():
            pass
        body, self._body = bytes(self._body), bytearray()
        self._total += len(body)
        if self._total > _MAX_BODY_BYTES:
            raise MalformedResponse(f"a response of more than {_MAX_BODY_BYTES >> 20} MiB")
        return body

    def end(self) -> None:
        """Handle a closed connection. Raises `MalformedResponse` if the response is incomplete."""
        if self._state == self._read_until_close:
            self.is_complete = True
        if not self.is_complete:
            raise MalformedResponse("a truncated response")

    # Parser states. Each returns True if it made progress and there may be more to do.

    def _read_head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > _MAX_HEAD_BYTES:
                raise MalformedResponse("a head of more than 64 KiB")
            if self._buffer and not b"HTTP/1.".startswith(self._buffer[:7]):
                raise MalformedResponse("something that is not HTTP")
            return False
        lines = bytes(self._buffer[:end]).split(b"\r\n")
        del self._buffer[: end + 4]
        match = _STATUS.match(lines[0])
        if match is None:
            raise MalformedResponse("something that is not HTTP")
        status, headers = int(match[2]), _parse_headers(lines[1:])
        if status < 200:  # early hints, or "continue"
            return True
        self.status, self.headers = status, headers
        connection = headers.get("connection", "").lower()
        self.keep_alive = match[1] == b"1" and "close" not in connection
        self._choose_body_state()
        return True

    def _choose_body_state(self) -> None:
        coding = self.headers.get("transfer-encoding", "").strip().lower()
        length = self.headers.get("content-length")
        if self.status in _NO_BODY:
            self._finish()
        elif coding == "chunked":
            self._state = self._read_chunk_size
        elif coding:
            raise MalformedResponse("a response with an unknown transfer encoding")
        elif length is None:
            self.keep_alive = False
            self._state = self._read_until_close
        elif not re.fullmatch(r"[0-9]{1,15}", length):
            raise MalformedResponse("a Content-Length that is not a number")
        else:
            self._remaining = int(length)
            self._state = self._read_counted

    def _read_counted(self) -> bool:
        self._consume_body()
        if not self._remaining:
            self._finish()
        return False

    def _read_until_close(self) -> bool:
        self._body += self._buffer
        self._buffer.clear()
        return False

    def _read_chunk_size(self) -> bool:
        line = self._read_line()
        if line is None:
            return False
        match = _CHUNK_SIZE.match(line)
        if match is None:
            raise MalformedResponse("a chunk without a size")
        self._remaining = int(match[1], 16)
        self._state = self._read_chunk if self._remaining else self._read_trailer
        return True

    def _read_chunk(self) -> bool:
        self._consume_body()
        if self._remaining:
            return False
        self._state = self._read_chunk_end
        return True

    def _read_chunk_end(self) -> bool:
        if len(self._buffer) < 2:
            return False
        if self._buffer[:2] != b"\r\n":
            raise MalformedResponse("a chunk longer than its size")
        del self._buffer[:2]
        self._state = self._read_chunk_size
        return True

    def _read_trailer(self) -> bool:
        line = self._read_line()
        if line is None:
            return False
        if not line:
            self._finish()
        return bool(line)

    def _read_nothing(self) -> bool:
        return False

    def _finish(self) -> None:
        self.is_complete = True
        self.keep_alive &= not self._buffer  # unexpected extra bytes: do not reuse the connection
        self._state = self._read_nothing

    def _consume_body(self) -> None:
        part = self._buffer[: self._remaining]
        self._body += part
        del self._buffer[: len(part)]
        self._remaining -= len(part)

    def _read_line(self) -> bytes | None:
        end = self._buffer.find(b"\r\n")
        if end < 0 and len(self._buffer) > _MAX_CHUNK_LINE_BYTES:
            raise MalformedResponse("a chunk without a size")
        if end < 0:
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        return line


def _parse_headers(lines: list[bytes]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not _NAME.match(name):
            raise MalformedResponse("an invalid header")
        key, text = name.decode("ascii").lower(), value.strip().decode("latin-1")
        if key in ("content-length", "transfer-encoding") and headers.get(key, text) != text:
            raise MalformedResponse(f"two different {key} headers")
        headers[key] = text
    return headers
