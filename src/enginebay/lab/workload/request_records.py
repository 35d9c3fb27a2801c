"""What the lab sends and what it keeps of each answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Prompt = tuple[int, ...] | str | tuple[Mapping[str, Any], ...]  # token ids, text, or chat messages


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a workload; the same on every engine."""

    prompt: Prompt
    input_tokens: int | None = None  # as the model's tokenizer counts them; None: not known
    output_tokens: int | None = None  # exactly so many are wanted; None: the model ends when it will
    at_s: float | None = None  # a trace's own time of arrival
    group: str = ""  # requests of one kind in a mix


@dataclass(frozen=True, slots=True)
class Record:
    """What became of one request. Times are seconds since the start of the measured window, on one clock.

    A request with an `error` has no tokens: what arrived before it failed is not counted.
    """

    index: int  # its place in the workload
    intended_s: float  # when it should have been sent; in a closed loop that is when it was sent
    sent_s: float  # when its first byte left; latencies are given from both
    first_s: float | None = None  # when the first output arrived
    last_s: float | None = None  # when the last output arrived
    end_s: float | None = None  # when the answer was whole, or had failed
    input_tokens: int | None = None  # by the server's usage
    output_tokens: int | None = None  # by the server's usage
    cached_tokens: int | None = None  # input tokens that the server had in its cache, where it says so
    queue_s: float | None = None  # how long the server let it wait, where it says so
    events: int = 0  # that carried output; never a count of tokens
    finish_reason: str | None = None
    status: int | None = None
    error: str | None = None  # one of ERRORS
    detail: str = ""  # what the server or the socket said
    group: str = ""
    process: int = 0  # of the load client
    text: str = ""


ERRORS = {
    "connect": "no connection to the server",
    "status": "the server refused: an HTTP status other than 200",
    "garbage": "the answer is not what the API promises",
    "stalled": "nothing arrived for too long",
    "closed": "the connection ended before the answer was whole",
    "no_usage": "the server did not say how many tokens there were",
    "in_stream": "the server sent an error in the middle of the stream",
}
