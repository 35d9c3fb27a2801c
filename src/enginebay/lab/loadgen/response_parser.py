"""One streamed answer, taken apart after it has ended: when its output came, and what the server says it was. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from enginebay.lab.loadgen.http_framing import MalformedHttp, ResponseHead, parse_body

_MAX_DETAIL_CHARS = 300  # characters of what a server said


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[Any] | None = None


class _StreamChoice(msgspec.Struct):
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _EnginebayUsage(msgspec.Struct):
    queue_s: float | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int = 0
    prompt_tokens_details: _PromptDetails | None = None
    enginebay: _EnginebayUsage | None = None


class _StreamEvent(msgspec.Struct):
    choices: list[_StreamChoice] = []
    usage: _Usage | None = None
    error: Any = None


_decode_event = msgspec.json.Decoder(_StreamEvent).decode


@dataclass(slots=True)
class ParsedResponse:
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

    def as_error(self, error: str, detail: str = "") -> ParsedResponse:
        return ParsedResponse(status=self.status, error=error, detail=detail[:_MAX_DETAIL_CHARS])


def parse_response(head: ResponseHead | None, parts: Sequence[bytes], stamps: Sequence[float]) -> ParsedResponse:
    """The answer in these parts, which arrived at these times."""
    found = ParsedResponse(status=head.status if head else None)
    if head is None:
        return found.as_error("closed", "the connection ended before an answer began")
    try:
        body = parse_body(b"".join(parts), head, parts, stamps)
        if head.status != 200:
            return found.as_error("status", f"{head.status}: {_extract_error_message(body.data)}")
        if head.content_type != "text/event-stream":
            raise MalformedHttp(f"a stream was asked for, and {head.content_type or 'something unnamed'} came")
        for data, end in _iter_events(body.data):
            _apply_event(found, data, body.arrival_time(end))
            if found.error:
                return found.as_error(found.error, found.detail)
    except MalformedHttp as problem:
        return found.as_error("garbage", str(problem))
    return _check_complete(found, body.complete)


def _check_complete(response: ParsedResponse, is_complete: bool) -> ParsedResponse:
    if not is_complete or not (response.done or response.finish_reason):
        return response.as_error("closed", f"after {len(response.arrivals)} events")
    if response.output_tokens is None:
        return response.as_error("no_usage", "ask it for stream_options.include_usage, or measure another server")
    if response.output_tokens == 1 and not response.arrivals and response.finish_s is not None:
        response.arrivals.append(
            response.finish_s
        )  # the model ended at once: its only token is the end, which has no text
    if response.output_tokens and not response.arrivals:
        return response.as_error("garbage", f"{response.output_tokens} tokens by its usage, and none came")
    if response.arrivals and not response.output_tokens:
        return response.as_error("garbage", "output came, and its usage says 0 tokens")
    return response


def _iter_events(body: bytes) -> Iterator[tuple[bytes, int]]:
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
            raise MalformedHttp(f"a line that is no event: {line[:60]!r}")
        elif not line and lines:
            yield b"\n".join(lines), place
            lines = []


def _apply_event(response: ParsedResponse, data: bytes, stamp: float) -> None:
    if data == b"[DONE]":
        response.done = True
        return
    try:
        event = _decode_event(data)
    except msgspec.MsgspecError as problem:
        raise MalformedHttp(f"{problem}: {data[:60]!r}")
    if event.error is not None:
        response.error, response.detail = "in_stream", _extract_error_message(data)
        return
    if event.usage is not None:
        _apply_usage(response, event.usage)
    texts = [text for choice in event.choices for text in _iter_output_texts(choice)]
    if texts:
        response.arrivals.append(stamp)
        response.texts += texts
    for choice in event.choices:
        if choice.finish_reason:
            response.finish_reason, response.finish_s = choice.finish_reason, stamp


def _iter_output_texts(choice: _StreamChoice) -> Iterator[str]:
    if choice.text:
        yield choice.text
    delta = choice.delta
    if delta is not None:
        yield from filter(None, (delta.content, delta.reasoning_content or delta.reasoning, delta.refusal))
        if delta.tool_calls:
            yield ""


def _apply_usage(response: ParsedResponse, usage: _Usage) -> None:
    if usage.prompt_tokens < 0 or usage.completion_tokens < 0:
        raise MalformedHttp("a negative number of tokens in its usage")
    response.input_tokens, response.output_tokens = usage.prompt_tokens, usage.completion_tokens
    if usage.prompt_tokens_details is not None:
        response.cached_tokens = usage.prompt_tokens_details.cached_tokens
    if usage.enginebay is not None:
        response.queue_s = usage.enginebay.queue_s


def _extract_error_message(body: bytes) -> str:
    """What an error says, as far as it is JSON of the usual form."""
    try:
        value = msgspec.json.decode(body)
    except msgspec.MsgspecError:
        return body[:_MAX_DETAIL_CHARS].decode("utf-8", "replace").strip()
    error = value.get("error", value) if isinstance(value, dict) else value
    message = error.get("message", error) if isinstance(error, dict) else error
    return str(message)[:_MAX_DETAIL_CHARS]
