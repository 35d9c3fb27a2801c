"""Parse a finished streamed response: when its output arrived, and the usage the server reports. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from enginebay.lab.loadgen.http_framing import MalformedHttp, ResponseHead, parse_body

_MAX_DETAIL_CHARS = 300  # of a server's error message


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
    """A parsed response. With an `error`, no other field counts."""

    status: int | None = None
    error: str | None = None
    detail: str = ""
    arrivals: list[float] = field(default_factory=list)  # of the events with output
    texts: list[str] = field(default_factory=list)
    finish_reason: str | None = None
    finish_s: float | None = None  # when the finish reason arrived
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
    """Parse a response that arrived in these parts at these times."""
    response = ParsedResponse(status=head.status if head else None)
    if head is None:
        return response.as_error("closed", "the connection closed before the response began")
    try:
        body = parse_body(b"".join(parts), head, parts, stamps)
        if head.status != 200:
            return response.as_error("status", f"{head.status}: {_extract_error_message(body.data)}")
        if head.content_type != "text/event-stream":
            raise MalformedHttp(f"expected an event stream, got {head.content_type or 'no content type'}")
        for data, end in _iter_events(body.data):
            _apply_event(response, data, body.arrival_time(end))
            if response.error:
                return response.as_error(response.error, response.detail)
    except MalformedHttp as error:
        return response.as_error("garbage", str(error))
    return _check_complete(response, body.complete)


def _check_complete(response: ParsedResponse, is_complete: bool) -> ParsedResponse:
    if not is_complete or not (response.done or response.finish_reason):
        return response.as_error("closed", f"after {len(response.arrivals)} events")
    if response.output_tokens is None:
        return response.as_error("no_usage", "the server must support stream_options.include_usage")
    if response.output_tokens == 1 and not response.arrivals and response.finish_s is not None:
        # The model stopped at once: its only token is the end-of-sequence token, which has no text.
        response.arrivals.append(response.finish_s)
    if response.output_tokens and not response.arrivals:
        return response.as_error("garbage", f"usage reports {response.output_tokens} tokens, but no output arrived")
    if response.arrivals and not response.output_tokens:
        return response.as_error("garbage", "output arrived, but usage reports 0 tokens")
    return response


def _iter_events(body: bytes) -> Iterator[tuple[bytes, int]]:
    """Yield the data of each event, and the offset after its last line."""
    offset, lines = 0, list[bytes]()
    while offset < len(body):
        end = body.find(b"\n", offset)
        if end < 0:
            return  # an event without its empty line is incomplete
        line = body[offset:end].rstrip(b"\r")
        offset = end + 1
        if line.startswith(b"data:"):
            lines.append(line[6:] if line[5:6] == b" " else line[5:])
        elif line and not line.startswith((b":", b"event:", b"id:", b"retry:")):
            raise MalformedHttp(f"not a server-sent event: {line[:60]!r}")
        elif not line and lines:
            yield b"\n".join(lines), offset
            lines = []


def _apply_event(response: ParsedResponse, data: bytes, stamp: float) -> None:
    if data == b"[DONE]":
        response.done = True
        return
    try:
        event = _decode_event(data)
    except msgspec.MsgspecError as error:
        raise MalformedHttp(f"{error}: {data[:60]!r}")
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
        raise MalformedHttp("usage reports a negative number of tokens")
    response.input_tokens, response.output_tokens = usage.prompt_tokens, usage.completion_tokens
    if usage.prompt_tokens_details is not None:
        response.cached_tokens = usage.prompt_tokens_details.cached_tokens
    if usage.enginebay is not None:
        response.queue_s = usage.enginebay.queue_s


def _extract_error_message(body: bytes) -> str:
    """Return the message of an error body, in the usual JSON form or as text."""
    try:
        value = msgspec.json.decode(body)
    except msgspec.MsgspecError:
        return body[:_MAX_DETAIL_CHARS].decode("utf-8", "replace").strip()
    error = value.get("error", value) if isinstance(value, dict) else value
    message = error.get("message", error) if isinstance(error, dict) else error
    return str(message)[:_MAX_DETAIL_CHARS]
