"""An HTTP/1.1 answer, read as it arrives. No input or output here; every size has a bound."""

from __future__ import annotations

import re

_MOST_HEAD = 1 << 16
_LONGEST_CHUNK_LINE = 1 << 12
_MOST_BODY = 1 << 30

_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: [^\r\n]*)?\Z")
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")
_CHUNK_SIZE = re.compile(rb"([0-9a-fA-F]{1,12})[ \t]*(?:;.*)?\Z")
_NO_BODY = (204, 304)


class Garbled(Exception):
    """What came is not what was agreed on; the message says what is wrong with it."""


class ResponseReader:
    """Takes the bytes of one answer in any pieces and gives back those of its body."""

    def __init__(self) -> None:
        self.status = 0  # 0: the head is not complete yet
        self.headers: dict[str, str] = {}
        self.complete = False
        self.keep_alive = False  # the connection may be used again, once the answer is complete
        self._buffer = bytearray()
        self._body = bytearray()
        self._total = 0
        self._left = 0
        self._step = self._head

    def feed(self, data: bytes) -> bytes:
        """The part of the body that is in the data. Raises `Garbled`."""
        self._buffer += data
        while self._step():
            pass
        body, self._body = bytes(self._body), bytearray()
        self._total += len(body)
        if self._total > _MOST_BODY:
            raise Garbled(f"an answer of more than {_MOST_BODY >> 20} MiB")
        return body

    def end(self) -> None:
        """The connection was closed. Raises `Garbled` when that leaves the answer incomplete."""
        if self._step == self._to_the_end:
            self.complete = True
        if not self.complete:
            raise Garbled("an answer that breaks off")

    # One state each: True when it did something and there may be more to do.

    def _head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > _MOST_HEAD:
                raise Garbled("a head of more than 64 KiB")
            if self._buffer and not b"HTTP/1.".startswith(self._buffer[:7]):
                raise Garbled("something that is not HTTP")
            return False
        lines = bytes(self._buffer[:end]).split(b"\r\n")
        del self._buffer[: end + 4]
        match = _STATUS.match(lines[0])
        if match is None:
            raise Garbled("something that is not HTTP")
        status, headers = int(match[2]), _headers(lines[1:])
        if status < 200:  # early hints, or "continue"
            return True
        self.status, self.headers = status, headers
        connection = headers.get("connection", "").lower()
        self.keep_alive = match[1] == b"1" and "close" not in connection
        self._choose_body()
        return True

    def _choose_body(self) -> None:
        coding = self.headers.get("transfer-encoding", "").strip().lower()
        length = self.headers.get("content-length")
        if self.status in _NO_BODY:
            self._finish()
        elif coding == "chunked":
            self._step = self._chunk_size
        elif coding:
            raise Garbled("an answer in an unknown transfer encoding")
        elif length is None:
            self.keep_alive = False
            self._step = self._to_the_end
        elif not re.fullmatch(r"[0-9]{1,15}", length):
            raise Garbled("a Content-Length that is no number")
        else:
            self._left = int(length)
            self._step = self._counted

    def _counted(self) -> bool:
        self._take()
        if not self._left:
            self._finish()
        return False

    def _to_the_end(self) -> bool:
        self._body += self._buffer
        self._buffer.clear()
        return False

    def _chunk_size(self) -> bool:
        line = self._line()
        if line is None:
            return False
        match = _CHUNK_SIZE.match(line)
        if match is None:
            raise Garbled("a chunk without a size")
        self._left = int(match[1], 16)
        self._step = self._chunk if self._left else self._trailer
        return True

    def _chunk(self) -> bool:
        self._take()
        if self._left:
            return False
        self._step = self._chunk_end
        return True

    def _chunk_end(self) -> bool:
        if len(self._buffer) < 2:
            return False
        if self._buffer[:2] != b"\r\n":
            raise Garbled("a chunk longer than its size")
        del self._buffer[:2]
        self._step = self._chunk_size
        return True

    def _trailer(self) -> bool:
        line = self._line()
        if line is None:
            return False
        if not line:
            self._finish()
        return bool(line)

    def _nothing(self) -> bool:
        return False

    def _finish(self) -> None:
        self.complete = True
        self.keep_alive &= not self._buffer  # bytes that nobody asked for: do not go on with this one
        self._step = self._nothing

    def _take(self) -> None:
        part = self._buffer[: self._left]
        self._body += part
        del self._buffer[: len(part)]
        self._left -= len(part)

    def _line(self) -> bytes | None:
        end = self._buffer.find(b"\r\n")
        if end < 0 and len(self._buffer) > _LONGEST_CHUNK_LINE:
            raise Garbled("a chunk without a size")
        if end < 0:
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        return line


def _headers(lines: list[bytes]) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not _NAME.match(name):
            raise Garbled("a header that is none")
        key, text = name.decode("ascii").lower(), value.strip().decode("latin-1")
        if key in ("content-length", "transfer-encoding") and found.get(key, text) != text:
            raise Garbled(f"two different headers {key}")
        found[key] = text
    return found
