"""Requests that the lab sends, and the record it keeps of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Prompt = tuple[int, ...] | str | tuple[Mapping[str, Any], ...]  # token ids, text, or chat messages


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a workload, identical on every engine."""

    prompt: Prompt
    input_tokens: int | None = None  # by the model's tokenizer; None: unknown
    output_tokens: int | None = None  # exact number requested; None: the model decides
    at_s: float | None = None  # arrival time in a trace
    group: str = ""  # kind of request in a mix


@dataclass(frozen=True, slots=True)
class Record:
    """Outcome of one request. Times are seconds since the start of the measured window, on one clock.

    A failed request has no tokens: output before the failure does not count.
    """

    index: int  # position in the workload
    intended_s: float  # scheduled send time; in a closed loop the actual one
    sent_s: float  # when the first byte was sent; latencies are reported from both
    first_s: float | None = None  # arrival of the first output
    last_s: float | None = None  # arrival of the last output
    end_s: float | None = None  # end of the response, or failure
    input_tokens: int | None = None  # by the server's usage
    output_tokens: int | None = None  # by the server's usage
    cached_tokens: int | None = None  # cached input tokens, if the server reports them
    queue_s: float | None = None  # queue time, if the server reports it
    events: int = 0  # events with output; not a token count
    finish_reason: str | None = None
    status: int | None = None
    error: str | None = None  # one of ERRORS
    detail: str = ""  # message of the server or the socket
    group: str = ""
    process: int = 0  # of the load client
    text: str = ""


ERRORS = {
    "connect": "no connection to the server",
    "status": "the server returned an HTTP status other than 200",
    "garbage": "the response violates the API",
    "stalled": "no data arrived for too long",
    "closed": "the connection closed before the response was complete",
    "no_usage": "the server did not report token usage",
    "in_stream": "the server sent an error in the middle of the stream",
}
