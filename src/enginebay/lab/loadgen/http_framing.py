"""HTTP/1.1 answers as bytes and stamps: where the body is, and when each place of it arrived. Pure."""

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
    """What came is not the HTTP or the API that was asked for."""


@dataclass(frozen=True, slots=True)
class ResponseHead:
    status: int
    size: int  # of the head itself
    length: int | None  # of the body; None: chunked, or until the connection ends
    chunked: bool
    closes: bool
    content_type: str

    @property
    def ends_with_connection(self) -> bool:
        return not self.chunked and self.length is None


def parse_head(raw: bytes) -> ResponseHead | None:
    """The head of the answer that begins here, once it is whole. Raises `Garbage`."""
    end = raw.find(HEAD_END)
    if end < 0:
        if len(raw) > _MAX_HEAD_BYTES or not (raw.startswith(b"HTTP/1.") or b"HTTP/1.".startswith(raw[:7])):
            raise MalformedHttp("what came is not HTTP/1.1")
        return None
    head = raw[: end + 2]
    status = _STATUS.match(head)
    if status is None:
        raise MalformedHttp("what came is not HTTP/1.1")
    number = int(status[1])
    if number < 200:  # "100 Continue" and its like come before the real one
        later = parse_head(raw[end + len(HEAD_END) :])
        return None if later is None else _shift_head(later, end + len(HEAD_END))
    length, kind = _LENGTH.search(head), _TYPE.search(head)
    chunked = _CHUNKED.search(head) is not None
    old = head.startswith(b"HTTP/1.0") and _KEEP_ALIVE.search(head) is None
    return ResponseHead(
        status=number,
        size=end + len(HEAD_END),
        length=int(length[1]) if length and not chunked else None,
        chunked=chunked,
        closes=old or _CLOSES.search(head) is not None,
        content_type=kind[1].decode("latin-1").strip().lower() if kind else "",
    )


def _shift_head(head: ResponseHead, by: int) -> ResponseHead:
    return ResponseHead(head.status, head.size + by, head.length, head.chunked, head.closes, head.content_type)


def looks_complete(head: ResponseHead, size: int, tail: bytes) -> bool:
    """May the answer be whole now? `tail`: its last bytes. Cheap, and checked again when the answer is read."""
    if head.chunked:
        return tail.endswith(LAST_CHUNK)
    return head.length is not None and size >= head.size + head.length


@dataclass(frozen=True, slots=True)
class ResponseBody:
    """A body without its framing, and when the byte before each of its places arrived."""

    data: bytes
    complete: bool  # false: it was cut off
    _starts: Sequence[int]  # places in `data` where a piece of the raw bytes begins
    _shifts: Sequence[int]  # how far that piece lies further on in the raw bytes
    _arrived: Sequence[int]  # raw bytes that there were at each stamp
    _stamps: Sequence[float]

    def arrival_time(self, end: int) -> float:
        """When all bytes before this place had arrived."""
        piece = bisect_right(self._starts, end - 1) - 1
        raw_end = end + self._shifts[piece]
        return self._stamps[min(bisect_right(self._arrived, raw_end - 1), len(self._stamps) - 1)]


def parse_body(raw: bytes, head: ResponseHead, parts: Sequence[bytes], stamps: Sequence[float]) -> ResponseBody:
    """The body of an answer that came in these parts at these times. Raises `Garbage`."""
    arrived = list(accumulate(map(len, parts)))
    if not head.chunked:
        stop = len(raw) if head.length is None else head.size + head.length
        whole = head.length is None or len(raw) >= stop
        return ResponseBody(raw[head.size : stop], whole, [0], [head.size], arrived, stamps)
    pieces: list[bytes] = []
    starts, shifts = [0], [head.size]
    place, made = head.size, 0
    while True:
        line = raw.find(b"\r\n", place)
        if line < 0:
            return ResponseBody(b"".join(pieces), False, starts, shifts, arrived, stamps)
        size = _parse_chunk_size(raw[place:line])
        begin = line + 2
        if size == 0:
            return ResponseBody(b"".join(pieces), True, starts, shifts, arrived, stamps)
        piece = raw[begin : begin + size]
        starts.append(made)
        shifts.append(begin - made)
        pieces.append(piece)
        made += len(piece)
        if len(piece) < size:
            return ResponseBody(b"".join(pieces), False, starts, shifts, arrived, stamps)
        place = begin + size + 2


def _parse_chunk_size(line: bytes) -> int:
    """Plain hex digits alone: `int` would also take a sign, and with a negative size the reading never ends."""
    digits = line.partition(b";")[0].strip(b" \t")
    if not digits or not _HEX_DIGITS.issuperset(digits):
        raise MalformedHttp("a chunk has no size")
    return int(digits, 16)
