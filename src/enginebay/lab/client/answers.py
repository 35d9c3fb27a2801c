"""One streamed answer, taken apart after it has ended: when its output came, and what the server says it was. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from enginebay.lab.client.framing import Garbage, Head, read_body

_SHOWN = 300  # characters of what a server said


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[Any] | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Ours(msgspec.Struct):
    queue_s: float | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None
    enginebay: _Ours | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Event).decode


@dataclass(slots=True)
class Answer:
    """What one answer was. With an `error` nothing else counts."""

    status: int | None = None
    error: str | None = None
    detail: str = ""
    arrivals: list[float] = field(default_factory=list)  # of the events that carried output
    texts: list[str] = field(default_factory=list)
    finish_reason: str | None = None
    finish_s: float | None = None  # when that was told
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    queue_s: float | None = None
    done: bool = False

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def failed(self, error: str, detail: str = "") -> Answer:
        return Answer(status=self.status, error=error, detail=detail[:_SHOWN])


def read_answer(head: Head | None, parts: Sequence[bytes], stamps: Sequence[float]) -> Answer:
    """The answer in these parts, which arrived at these times."""
    found = Answer(status=head.status if head else None)
    if head is None:
        return found.failed("closed", "the connection ended before an answer began")
    try:
        body = read_body(b"".join(parts), head, parts, stamps)
        if head.status != 200:
            return found.failed("status", f"{head.status}: {_said(body.data)}")
        if head.content_type != "text/event-stream":
            raise Garbage(f"a stream was asked for, and {head.content_type or 'something unnamed'} came")
        for data, end in _events(body.data):
            _take(found, data, body.stamp(end))
            if found.error:
                return found.failed(found.error, found.detail)
    except Garbage as problem:
        return found.failed("garbage", str(problem))
    return _judged(found, body.whole)


def _judged(found: Answer, whole: bool) -> Answer:
    if not whole or not (found.done or found.finish_reason):
        return found.failed("closed", f"after {len(found.arrivals)} events")
    if found.output_tokens is None:
        return found.failed("no_usage", "ask it for stream_options.include_usage, or measure another server")
    if found.output_tokens == 1 and not found.arrivals and found.finish_s is not None:
        found.arrivals.append(found.finish_s)  # the model ended at once: its only token is the end, which has no text
    if found.output_tokens and not found.arrivals:
        return found.failed("garbage", f"{found.output_tokens} tokens by its usage, and none came")
    if found.arrivals and not found.output_tokens:
        return found.failed("garbage", "output came, and its usage says 0 tokens")
    return found


def _events(body: bytes) -> Iterator[tuple[bytes, int]]:
    """The data of each event, and the place after its last line."""
    place, lines = 0, list[bytes]()
    while place < len(body):
        end = body.find(b"\n", place)
        if end < 0:
            return  # an event ends with an empty line; what has none is not one
        line = body[place:end].rstrip(b"\r")
        place = end + 1
        if line.startswith(b"data:"):
            lines.append(line[6:] if line[5:6] == b" " else line[5:])
        elif line and not line.startswith((b":", b"event:", b"id:", b"retry:")):
            raise Garbage(f"a line that is no event: {line[:60]!r}")
        elif not line and lines:
            yield b"\n".join(lines), place
            lines = []


def _take(found: Answer, data: bytes, stamp: float) -> None:
    if data == b"[DONE]":
        found.done = True
        return
    try:
        event = _decode(data)
    except msgspec.MsgspecError as problem:
        raise Garbage(f"{problem}: {data[:60]!r}")
    if event.error is not None:
        found.error, found.detail = "in_stream", _said(data)
        return
    if event.usage is not None:
        _count(found, event.usage)
    texts = [text for choice in event.choices for text in _output(choice)]
    if texts:
        found.arrivals.append(stamp)
        found.texts += texts
    for choice in event.choices:
        if choice.finish_reason:
            found.finish_reason, found.finish_s = choice.finish_reason, stamp


def _output(choice: _Choice) -> Iterator[str]:
    if choice.text:
        yield choice.text
    delta = choice.delta
    if delta is not None:
        yield from filter(None, (delta.content, delta.reasoning_content or delta.reasoning, delta.refusal))
        if delta.tool_calls:
            yield ""


def _count(found: Answer, usage: _Usage) -> None:
    if usage.prompt_tokens < 0 or usage.completion_tokens < 0:
        raise Garbage("a negative number of tokens in its usage")
    found.input_tokens, found.output_tokens = usage.prompt_tokens, usage.completion_tokens
    if usage.prompt_tokens_details is not None:
        found.cached_tokens = usage.prompt_tokens_details.cached_tokens
    if usage.enginebay is not None:
        found.queue_s = usage.enginebay.queue_s


def _said(body: bytes) -> str:
    """What an error says, as far as it is JSON of the usual form."""
    try:
        value = msgspec.json.decode(body)
    except msgspec.MsgspecError:
        return body[:_SHOWN].decode("utf-8", "replace").strip()
    error = value.get("error", value) if isinstance(value, dict) else value
    message = error.get("message", error) if isinstance(error, dict) else error
    return str(message)[:_SHOWN]
