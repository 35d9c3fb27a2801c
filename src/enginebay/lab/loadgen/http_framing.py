"""Parse HTTP/1.1 responses from timestamped bytes: find the body, and when each byte of it arrived. Pure."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

HEAD_END = b"\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})[ \r]")
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:[^\r]*chunked", re.IGNORECASE)
_CLOSES = re.compile(rb"\r\nconnection:[^\r]*close", re.IGNORECASE)
_KEEP_ALIVE = re.compile(rb"\r\nconnection:[^\r]*keep-alive", re.IGNORECASE)
_TYPE = re.compile(rb"\r\ncontent-type:[ \t]*([^;\r]+)", re.IGNORECASE)
_MAX_HEAD_BYTES = 1 << 16
_HEX_DIGITS = frozenset(b"0123456789abcdefABCDEF")


class MalformedHttp(ValueError):
    """The response is not valid HTTP, or not a stream of the OpenAI API."""


@dataclass(frozen=True, slots=True)
class ResponseHead:
    status: int
    size: int  # of the head itself
    length: int | None  # of the body; None: chunked, or until the connection closes
    chunked: bool
    closes: bool
    content_type: str

    @property
    def ends_with_connection(self) -> bool:
        return not self.chunked and self.length is None


def parse_head(raw: bytes) -> ResponseHead | None:
    """Parse the head of a response. None: it is incomplete. Raise `MalformedHttp`."""
    end = raw.find(HEAD_END)
    if end < 0:
        if len(raw) > _MAX_HEAD_BYTES or not (raw.startswith(b"HTTP/1.") or b"HTTP/1.".startswith(raw[:7])):
            raise MalformedHttp("the response is not HTTP/1.1")
        return None
    head = raw[: end + 2]
    status = _STATUS.match(head)
    if status is None:
        raise MalformedHttp("the response is not HTTP/1.1")
    code = int(status[1])
    if code < 200:  # such as "100 Continue", before the real head
        final = parse_head(raw[end + len(HEAD_END) :])
        return None if final is None else _shift_head(final, end + len(HEAD_END))
    length, kind = _LENGTH.search(head), _TYPE.search(head)
    chunked = _CHUNKED.search(head) is not None
    closes_by_default = head.startswith(b"HTTP/1.0") and _KEEP_ALIVE.search(head) is None
    return ResponseHead(
        status=code,
        size=end + len(HEAD_END),
        length=int(length[1]) if length and not chunked else None,
        chunked=chunked,
        closes=closes_by_default or _CLOSES.search(head) is not None,
        content_type=kind[1].decode("latin-1").strip().lower() if kind else "",
    )


def _shift_head(head: ResponseHead, by: int) -> ResponseHead:
    return ResponseHead(head.status, head.size + by, head.length, head.chunked, head.closes, head.content_type)


def looks_complete(head: ResponseHead, size: int, tail: bytes) -> bool:
    """Return whether the response may be complete. `tail`: its last bytes. A cheap check; parsing checks again."""
    if head.chunked:
        return tail.endswith(LAST_CHUNK)
    return head.length is not None and size >= head.size + head.length


@dataclass(frozen=True, slots=True)
class ResponseBody:
    """A body without its framing, and when each of its bytes arrived."""

    data: bytes
    complete: bool  # False: truncated
    _starts: Sequence[int]  # offsets in `data` where a chunk begins
    _shifts: Sequence[int]  # distance of that chunk to its offset in the raw bytes
    _arrived: Sequence[int]  # number of raw bytes at each timestamp
    _stamps: Sequence[float]

    def arrival_time(self, end: int) -> float:
        """Return when all bytes before this offset had arrived."""
        piece = bisect_right(self._starts, end - 1) - 1
        raw_end = end + self._shifts[piece]
        return self._stamps[min(bisect_right(self._arrived, raw_end - 1), len(self._stamps) - 1)]


def parse_body(raw: bytes, head: ResponseHead, parts: Sequence[bytes], stamps: Sequence[float]) -> ResponseBody:
    """Parse the body of a response that arrived in these parts at these times. Raise `MalformedHttp`."""
    arrived = list(accumulate(map(len, parts)))
    if not head.chunked:
        stop = len(raw) if head.length is None else head.size + head.length
        complete = head.length is None or len(raw) >= stop
        return ResponseBody(raw[head.size : stop], complete, [0], [head.size], arrived, stamps)
    pieces: list[bytes] = []
    starts, shifts = [0], [head.size]
    offset, decoded = head.size, 0
    while True:
        line = raw.find(b"\r\n", offset)
        if line < 0:
            return ResponseBody(b"".join(pieces), False, starts, shifts, arrived, stamps)
        size = _parse_chunk_size(raw[offset:line])
        begin = line + 2
        if size == 0:
            return ResponseBody(b"".join(pieces), True, starts, shifts, arrived, stamps)
        piece = raw[begin : begin + size]
        starts.append(decoded)
        shifts.append(begin - decoded)
        pieces.append(piece)
        decoded += len(piece)
        if len(piece) < size:
            return ResponseBody(b"".join(pieces), False, starts, shifts, arrived, stamps)
        offset = begin + size + 2


def _parse_chunk_size(line: bytes) -> int:
    """Parse plain hex digits only: `int` also accepts a sign, and a negative size would loop forever."""
    digits = line.partition(b";")[0].strip(b" \t")
    if not digits or not _HEX_DIGITS.issuperset(digits):
        raise MalformedHttp("a chunk has no size")
    return int(digits, 16)
