"""Parse and check HTTP responses as raw bytes. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

_HEAD_END = b"\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length:\s*(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:[^\r]*chunked", re.IGNORECASE)
_CLOSES = re.compile(rb"\r\nconnection:\s*close", re.IGNORECASE)
LAST_CHUNK = b"0\r\n\r\n"
# Non-empty text. Quotes inside a text are escaped, so this never matches there.
CONTENT = re.compile(rb'"content"\s*:\s*"[^"]')
_COMPLETION_TOKENS = re.compile(rb'"completion_tokens"\s*:\s*(\d+)')
_DONE = b"data: [DONE]"


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """The status line and headers that describe the body."""

    status: int
    start: int  # where the body begins
    length: int | None  # Content-Length, if any
    chunked: bool
    closes: bool  # Connection: close


def parse_head(raw: bytes) -> ResponseHead | None:
    """Parse the head, or return None while it is incomplete."""
    end = raw.find(_HEAD_END)
    if end < 0:
        return None
    head = raw[:end]
    length = _LENGTH.search(head)
    return ResponseHead(
        status=int(head[9:12]),
        start=end + len(_HEAD_END),
        length=int(length.group(1)) if length else None,
        chunked=_CHUNKED.search(head) is not None,
        closes=_CLOSES.search(head) is not None,
    )


def parse_body(raw: bytes, head: ResponseHead) -> tuple[bytes, int] | None:
    """Return the body and its number of chunks, or None while it is incomplete.

    A body without length and chunks ends with the connection: always None.
    """
    if head.chunked:
        pieces = split_chunks(raw, head.start)
        return None if pieces is None else (b"".join(pieces), len(pieces))
    if head.length is not None and len(raw) >= head.start + head.length:
        return raw[head.start : head.start + head.length], 1
    return None


def split_chunks(raw: bytes, start: int) -> list[bytes] | None:
    """Return the pieces of a chunked body, or None while it is incomplete."""
    pieces: list[bytes] = []
    while True:
        end = raw.find(b"\r\n", start)
        if end < 0:
            return None
        size = int(raw[start:end].partition(b";")[0], 16)
        start = end + 2
        if len(raw) < start + size + 2:
            return None
        if not size:
            return pieces
        pieces.append(raw[start : start + size])
        start += size + 2


def parse_usage_tokens(body: bytes) -> int | None:
    """Return the output tokens of the last usage in the body."""
    counts = _COMPLETION_TOKENS.findall(body)
    return int(counts[-1]) if counts else None


def check_whole(status: int, body: bytes, expected: int | None) -> tuple[int, str | None]:
    """Return the output tokens of a response that was not streamed, and its fault if any."""
    if status != 200:
        return 0, f"status {status}: {body[:200].decode(errors='replace')}"
    tokens = parse_usage_tokens(body)
    if tokens is None:
        return 0, "no usage"
    fault = None if expected in (None, tokens) else f"{tokens} tokens by usage, expected {expected}"
    return tokens, fault


def check_stream(
    status: int, body: bytes, expected: int | None, by_usage: bool = False, ends_with_done: bool = True
) -> tuple[int, str | None]:
    """Return the output tokens of a streamed response, and its fault if any.

    Counts events with text, one for each token, or `by_usage` what the server reports: a real tokenizer has tokens without
    their own text.
    """
    if status != 200:
        return 0, f"status {status}: {body[:200].decode(errors='replace')}"
    if ends_with_done and (body.count(_DONE) != 1 or not body.rstrip().endswith(_DONE)):
        return 0, f"the stream does not end with [DONE]: {body[-200:].decode(errors='replace')}"
    events = len(CONTENT.findall(body))
    tokens = parse_usage_tokens(body) if by_usage else events
    if not tokens or not events:
        return 0, "no tokens" if events or not by_usage else "no text"
    fault = None if expected in (None, tokens) else f"{tokens} tokens, expected {expected}"
    return tokens, fault
