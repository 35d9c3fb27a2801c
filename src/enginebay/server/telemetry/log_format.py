"""Formats log lines as text or JSON. Pure."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from enginebay.util.number_format import format_seconds

LEVELS = ("debug", "info", "warning", "error")
_RESERVED = ("time", "level", "event")
_TRAILING_FIELDS = (
    "fallback",
    "resumed",
    "finish_reason",
    "error",
    "message",
    "key",
    "client",
    "trace_id",
    "prompt",
)  # of a request, at the end of the line
_UNSAFE_CHARS = re.compile(r"[^ -\[\]-~]")  # the backslash, and everything but printable ASCII
_MIN_SHOWN_QUEUE_S = 0.1  # shorter waits are not shown


@dataclass(slots=True)
class RequestRecord:
    """A finished request. Empty or None: unknown or not applicable."""

    request_id: str
    endpoint: str  # chat, completions, embeddings, ...
    status: int
    duration_s: float
    model: str = ""
    engine: str = ""
    fallback: str = ""
    resumed: int | None = None  # times that another worker continued the response
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    queue_s: float | None = None
    ttft_s: float | None = None
    stream: bool | None = None
    finish_reason: str = ""
    error: str = ""  # the error's kind
    message: str = ""  # the error message sent to the client
    key: str = ""  # the API key's name, never the key
    client: str = ""  # address
    trace_id: str = ""
    prompt: str = ""  # dropped unless prompts are logged

    def known_fields(self) -> dict[str, Any]:
        """Return the known fields in order."""
        known = {}
        for name in _NAMES:
            value = getattr(self, name)
            if value is not None and value != "":
                known[name] = value
        return known


_NAMES = tuple(field.name for field in fields(RequestRecord))
# Built once: json.dumps() builds an encoder on each call with non-default options.
# ASCII only, so that control characters, line separators and lone surrogates sent by a client are escaped.
_encode = json.JSONEncoder(ensure_ascii=True, default=str, separators=(",", ":")).encode


def get_request_level(record: RequestRecord) -> str:
    """Return error for server failures (5xx), else info: client errors are routine."""
    return "error" if record.status >= 500 else "info"


def format_json_line(at_s: float, level: str, event: str, fields: Mapping[str, Any]) -> str:
    body = {"time": _format_rfc3339(at_s), "level": level, "event": event}
    for name, value in fields.items():
        if name not in _RESERVED:
            body[name] = _to_plain(value)
    return _encode(body)


def format_text_line(at_s: float, level: str, event: str, fields: Mapping[str, Any]) -> str:
    words = [f"{name}={_quote(value)}" for name, value in fields.items()]
    return " ".join([_format_prefix(at_s, level), escape_unprintable(event), *words])


def format_request_line(at_s: float, record: RequestRecord) -> str:
    """Format as "12:00:01 info  chat 200 smollm2 llamacpp 31+128 tokens ttft 0.21s 2.4s req_abc"."""
    words = [record.endpoint, str(record.status), record.model, record.engine]
    if record.prompt_tokens is not None:
        words.append(f"{record.prompt_tokens}+{record.completion_tokens or 0} tokens")
    if record.cached_tokens:
        words.append(f"({record.cached_tokens} cached)")
    if record.queue_s is not None and record.queue_s >= _MIN_SHOWN_QUEUE_S:
        words.append(f"queued {format_seconds(record.queue_s)}")
    if record.ttft_s is not None:
        words.append(f"ttft {format_seconds(record.ttft_s)}")
    words += [format_seconds(record.duration_s), record.request_id]
    line = f"{_format_prefix(at_s, get_request_level(record))} {escape_unprintable(' '.join(filter(None, words)))}"
    rest = [f"{name}={_quote(value)}" for name in _TRAILING_FIELDS if (value := getattr(record, name))]
    return " ".join([line, *rest])


def escape_unprintable(text: str) -> str:
    """Escape unprintable characters and the backslash, so that text cannot forge lines or move the cursor."""
    if text.isprintable() and "\\" not in text:
        return text
    return _UNSAFE_CHARS.sub(_escape_char, text)


def _escape_char(match: re.Match[str]) -> str:
    char = match[0]
    if char == "\\":
        return "\\\\"
    return char if char.isprintable() else char.encode("unicode_escape").decode()


def _quote(value: Any) -> str:
    text = escape_unprintable(str(_to_plain(value)))
    if text and " " not in text and '"' not in text and "=" not in text:
        return text
    return '"' + text.replace('"', '\\"') + '"'


def _to_plain(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    return value


def _format_prefix(at_s: float, level: str) -> str:
    return f"{_format_clock(int(at_s))} {level:<5}"


@lru_cache(4)
def _format_clock(second: int) -> str:
    return f"{datetime.fromtimestamp(second):%H:%M:%S}"


def _format_rfc3339(at_s: float) -> str:
    second = int(at_s)
    return f"{_format_date(second)}.{int((at_s - second) * 1000):03d}Z"


@lru_cache(4)
def _format_date(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).isoformat()[:19]
