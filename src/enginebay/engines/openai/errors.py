"""Convert a remote server's error responses to Enginebay errors. None of them contains the key.

Clients see the messages of request errors and of `Overloaded`, so those do not name the server. `describe_in_full` does.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from enginebay.engines.openai.remote_server import RemoteServer
from enginebay.errors import (
    ContextOverflow,
    EnginebayError,
    EngineFailed,
    InvalidRequest,
    Overloaded,
    Unreachable,
)

_log = logging.getLogger(__name__)

RETRYABLE_STATUSES = frozenset((429, 502, 503, 504))
_MAX_LINE = 500
_OVERFLOW = re.compile(
    r"context.?(length|window|size)|maximum.{0,20}context|max_model_len|too many (input )?tokens"
    r"|(prompt|input).{0,40}(too long|longer than)|`inputs` tokens \+ `max_new_tokens`",
    re.IGNORECASE,
)


def replace_lone_surrogates(text: str) -> str:
    """Replace lone surrogates, which cannot be encoded."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def parse_retry_after_s(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """Return the Retry-After header in seconds; None if it is missing or invalid."""
    value = headers.get("retry-after", "").strip()
    if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,6})?", value):
        return float(value)
    try:
        moment = parsedate_to_datetime(value)
    except (ValueError, TypeError):
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(0.0, (moment - (now or datetime.now(UTC))).total_seconds())


def error_from_status(server: RemoteServer, status: int, headers: Mapping[str, str], body: bytes) -> EnginebayError:
    """Return the error for a response with a status other than 200."""
    remote = _RemoteError(server, _parse_body(body))
    authority = server.authority
    if status in (401, 403):  # its message may repeat parts of the key
        hint = (
            "check the key that openai.key_env or openai.key_file refers to" if server.api_key else "set openai.key_env"
        )
        problem = "rejects the API key" if server.api_key else "requires an API key"
        return Unreachable(f"the remote server {authority} {problem} (HTTP {status})", hint)
    if 300 <= status < 400:
        return EngineFailed(
            f"{authority} redirects to another address, which Enginebay does not follow (HTTP {status})",
            "set openai.url to the address it redirects to",
        )
    if status in (400, 413, 422):
        rejected = remote.to_request_error()
        rejected.add_note(f"{authority} rejects the request (HTTP {status}){remote.suffix}")
        return rejected
    if status == 404:
        return EngineFailed(
            f"{authority} has no such path or model (HTTP 404){remote.suffix}", "check openai.url and openai.model"
        )
    if status in (429, 503):
        wait = parse_retry_after_s(headers)
        busy = Overloaded(
            "the remote server is overloaded",
            "try again later",
            retry_after_s=1.0 if wait is None else wait,
        )
        busy.add_note(f"{authority} is overloaded (HTTP {status}){remote.suffix}")
        _log.warning("%s", describe_in_full(busy))
        return busy
    if status in (408, 504):
        return Unreachable(f"{authority} timed out (HTTP {status}){remote.suffix}")
    failed = Unreachable if status >= 500 else EngineFailed
    return failed(f"{authority} failed (HTTP {status}){remote.suffix}")


def describe_in_full(error: EnginebayError) -> str:
    """Return the error's message with the server's address, for operators. Not for clients."""
    return next(iter(getattr(error, "__notes__", ())), error.message)


def error_from_event(server: RemoteServer, error: Any) -> EnginebayError:
    """Return the error for an error event inside a stream."""
    remote = _RemoteError(server, error)
    if remote.code in ("400", "422", "invalid_request_error", "BadRequestError") or remote.is_overflow:
        return remote.to_request_error()
    return EngineFailed(f"{server.authority} failed on this request{remote.suffix}")


class _RemoteError:
    """A server's error object, in any of the common formats."""

    def __init__(self, remote: RemoteServer, error: Any) -> None:
        inner = error.get("error", error) if isinstance(error, Mapping) else error
        fields: Mapping[str, Any] = inner if isinstance(inner, Mapping) else {"message": inner}
        message = next((fields[name] for name in ("message", "detail", "error", "title") if fields.get(name)), "")
        message = message if isinstance(message, str) else json.dumps(message, ensure_ascii=False)
        self.message = _sanitize_line(remote, message)
        self.code = str(fields.get("code") or fields.get("type") or "")
        param = fields.get("param")
        self.param = _sanitize_line(remote, param)[:64] if isinstance(param, str) and param else None
        self.is_overflow = self.code == "context_length_exceeded" or bool(_OVERFLOW.search(self.message))

    @property
    def suffix(self) -> str:
        return f": {self.message}" if self.message else ""

    def to_request_error(self) -> EnginebayError:
        message = f"the remote server rejects the request{self.suffix}"
        if self.is_overflow:
            return ContextOverflow(message, "shorten the prompt or max_tokens", param=self.param)
        return InvalidRequest(message, param=self.param)


def _parse_body(body: bytes) -> Any:
    text = body.decode("utf-8", "replace").strip()
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return "" if text.startswith("<") else text  # a proxy's HTML page is no use


def _sanitize_line(remote: RemoteServer, text: str) -> str:
    """Return one short line of printable characters, without the key."""
    if remote.api_key:
        text = text.replace(remote.api_key, "***")
    line = " ".join("".join(char if char.isprintable() else " " for char in replace_lone_surrogates(text)).split())
    return line if len(line) <= _MAX_LINE else line[: _MAX_LINE - 1] + "…"
