"""HTTP responses as raw bytes: are they whole, what do they hold, are they right? Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

_HEAD_END = b"\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length:\s*(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:[^\r]*chunked", re.IGNORECASE)
_CLOSES = re.compile(rb"\r\nconnection:\s*close", re.IGNORECASE)
LAST_CHUNK = b"0\r\n\r\n"
# Text that is not empty. Quotes inside a text are escaped, so neither name nor value is found there.
CONTENT = re.compile(rb'"content"\s*:\s*"[^"]')
_COMPLETION_TOKENS = re.compile(rb'"completion_tokens"\s*:\s*(\d+)')
_DONE = b"data: [DONE]"


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """What the head says about the body."""

    status: int
    start: int  # where the body begins
    length: int | None  # of the body, where the head gives it
    chunked: bool
    closes: bool  # the connection ends with this answer


def parse_head(raw: bytes) -> ResponseHead | None:
    """None while the head is not whole."""
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
    """The body and in how many chunks it came, or None while some of it is missing.

    A body without length and chunks ends with the connection: always None.
    """
    if head.chunked:
        pieces = split_chunks(raw, head.start)
        return None if pieces is None else (b"".join(pieces), len(pieces))
    if head.length is not None and len(raw) >= head.start + head.length:
        return raw[head.start : head.start + head.length], 1
    return None


def split_chunks(raw: bytes, start: int) -> list[bytes] | None:
    """The pieces of a chunked body, or None while the last one is missing."""
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
    """Output tokens by the last usage in the body."""
    found = _COMPLETION_TOKENS.findall(body)
    return int(found[-1]) if found else None


def check_whole(status: int, body: bytes, tokens: int | None) -> tuple[int, str | None]:
    """Output tokens of an answer that was not streamed, and what is wrong with it."""
    if status != 200:
        return 0, f"status {status}: {body[:200].decode(errors='replace')}"
    made = parse_usage_tokens(body)
    if made is None:
        return 0, "no usage"
    wrong = None if tokens in (None, made) else f"{made} tokens by usage, not {tokens}"
    return made, wrong


def check_stream(
    status: int, body: bytes, tokens: int | None, by_usage: bool = False, ends_with_done: bool = True
) -> tuple[int, str | None]:
    """Output tokens of a streamed answer, and what is wrong with it.

    Counted are the events with text, one for each token; or, `by_usage`, what the server says: a real tokenizer has
    tokens without a text of their own.
    """
    if status != 200:
        return 0, f"status {status}: {body[:200].decode(errors='replace')}"
    if ends_with_done and (body.count(_DONE) != 1 or not body.rstrip().endswith(_DONE)):
        return 0, f"the stream does not end with [DONE] but with: {body[-200:].decode(errors='replace')}"
    events = len(CONTENT.findall(body))
    made = parse_usage_tokens(body) if by_usage else events
    if not made or not events:
        return 0, "no tokens" if events or not by_usage else "no text"
    wrong = None if tokens in (None, made) else f"{made} tokens, not {tokens}"
    return made, wrong
