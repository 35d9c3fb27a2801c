"""The task of one sender process, and the outcomes it returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import msgspec

from enginebay.errors import ConfigError
from enginebay.lab.profiles.profile import STALL_TIMEOUT_S
from enginebay.lab.workload.request_records import Record, Request

API_PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}


@dataclass(frozen=True, slots=True)
class TargetServer:
    """The server to measure, and what all requests to it have in common."""

    url: str  # http://host:port, plus a path prefix before /v1 if there is one
    model: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict)  # fields of every request, such as sampling
    timeout_s: float = STALL_TIMEOUT_S  # a request without a byte for this long has stalled
    is_enginebay: bool = False  # reports queue times and meters

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        if "@" in parts.netloc:  # the message must not repeat the password
            raise ConfigError(
                "a server's address must not contain a user name or password: it is stored with every run",
                "remove what is before the @, and set ENGINEBAY_API_KEY",
            )
        try:
            port = parts.port
        except ValueError:
            port = 0
        if parts.scheme not in ("http", "https") or not parts.hostname or port == 0 or parts.query or parts.fragment:
            raise ConfigError(f"{self.url!r} is not a server address", "use one like http://127.0.0.1:8000")
        return parts.hostname, port or (443 if parts.scheme == "https" else 80)

    @property
    def uses_tls(self) -> bool:
        return urlsplit(self.url).scheme == "https"

    @property
    def base_path(self) -> str:
        return urlsplit(self.url).path.rstrip("/").removesuffix("/v1")


class ScheduledRequest(msgspec.Struct, frozen=True):
    """One request as bytes, and when to send it. `at_s` None: as soon as a connection is idle."""

    index: int
    at_s: float | None
    data: bytes


class SenderTask(msgspec.Struct, frozen=True):
    """One process's share of the requests."""

    process: int
    host: str
    port: int
    tls: bool
    requests: list[ScheduledRequest]
    connections: int  # opened before the window; also the maximum in a closed loop
    timeout_s: float
    stop_sending_s: float | None = None  # no request is sent after this
    core: int | None = None
    queues: bool = (
        False  # the server gets more requests than it runs: one without a byte stalls only if no other gets any
    )


class RequestOutcome(msgspec.Struct):
    """The outcome of one request, with the arrival times of its output events."""

    index: int
    intended_s: float
    sent_s: float
    end_s: float
    status: int | None = None
    error: str | None = None
    detail: str = ""
    arrivals: list[float] = []
    text: str = ""
    finish_reason: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    queue_s: float | None = None


class SenderProgress(msgspec.Struct):
    """The progress of a process; one line of its output."""

    sent: int = 0
    ended: int = 0
    failed: int = 0  # as far as known before responses are parsed
    events: int = 0  # of streams; about as many as tokens, for display
    # (index, sent_s, end_s) of requests that did not fail, since the last line
    ends: list[tuple[int, float, float]] = []
    finished: bool = False
    core_share: float = 0.0  # of one core, used in the window; set when that is over


def encode_request(target: TargetServer, request: Request) -> bytes:
    """Encode a request as it goes over the wire: always streamed, always with usage. Pure."""
    stream_options = {"include_usage": True} | ({"include_timing": True} if target.is_enginebay else {})
    body: dict[str, Any] = {"model": target.model, "stream": True, "stream_options": stream_options}
    prompt = request.prompt
    if isinstance(prompt, str) or not prompt or isinstance(prompt[0], int):
        path, body["prompt"] = API_PATHS["completions"], prompt
    else:
        path, body["messages"] = API_PATHS["chat"], prompt
    if request.output_tokens is not None:
        body |= {"max_tokens": request.output_tokens, "min_tokens": request.output_tokens, "ignore_eos": True}
    data = msgspec.json.encode({**target.body, **body})  # a request's own length overrides the common one
    host, port = target.address
    host_name = f"[{host}]" if ":" in host else host
    lines = [f"POST {target.base_path}{path} HTTP/1.1", f"Host: {host_name}:{port}", "Content-Type: application/json"]
    lines += [f"{name}: {value}" for name, value in target.headers.items()]
    lines.append(f"Content-Length: {len(data)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


def split_into_tasks(
    target: TargetServer,
    requests: Sequence[Request],
    times: Sequence[float] | None,
    concurrency: int,
    processes: int,
    stop_sending_s: float | None = None,
    cores: Sequence[int] = (),
    queues: bool = False,
) -> list[SenderTask]:
    """Deal the requests to processes round-robin, so that no queue is shared. Pure."""
    host, port = target.address
    processes = max(1, min(processes, concurrency, len(requests)))
    tasks = []
    for process in range(processes):
        scheduled = [
            ScheduledRequest(index, None if times is None else times[index], encode_request(target, requests[index]))
            for index in range(process, len(requests), processes)
        ]
        connections = concurrency // processes + (process < concurrency % processes)
        core = cores[process % len(cores)] if cores else None
        tasks.append(
            SenderTask(
                process,
                host,
                port,
                target.uses_tls,
                scheduled,
                connections,
                target.timeout_s,
                stop_sending_s=stop_sending_s,
                core=core,
                queues=queues,
            )
        )
    return tasks


def to_record(outcome: RequestOutcome, request: Request, process: int) -> Record:
    """Return the stored record of a request."""
    return Record(
        index=outcome.index,
        intended_s=outcome.intended_s,
        sent_s=outcome.sent_s,
        first_s=outcome.arrivals[0] if outcome.arrivals else None,
        last_s=outcome.arrivals[-1] if outcome.arrivals else None,
        end_s=outcome.end_s,
        input_tokens=outcome.input_tokens,
        output_tokens=outcome.output_tokens,
        cached_tokens=outcome.cached_tokens,
        queue_s=outcome.queue_s,
        events=len(outcome.arrivals),
        finish_reason=outcome.finish_reason,
        status=outcome.status,
        error=outcome.error,
        detail=outcome.detail,
        group=request.group,
        process=process,
        text=outcome.text,
    )
