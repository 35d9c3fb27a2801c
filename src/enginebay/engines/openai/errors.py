"""From what a server answered instead of tokens to our errors. The key is in none of them.

Clients see the messages of request errors and of `Overloaded`: those do not say where the server is (`in_full` does).
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
    """Without halves of characters, which no message could carry."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def parse_retry_after_s(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """How long the server wants to be left alone; None when it does not say."""
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
    """The error for an answer other than 200."""
    told = _RemoteError(server, _parse_body(body))
    place = server.authority
    if status in (401, 403):  # its own words may repeat parts of the key
        hint = "check what openai.key_env or openai.key_file names" if server.api_key else "set openai.key_env"
        what = "refuses our key" if server.api_key else "wants a key"
        return Unreachable(f"the remote server {place} {what} (HTTP {status})", hint)
    if 300 <= status < 400:
        return EngineFailed(
            f"{place} redirects to another address, which is not followed (HTTP {status})",
            "set openai.url to the address it redirects to",
        )
    if status in (400, 413, 422):
        refused = told.to_request_error()
        refused.add_note(f"{place} refuses the request (HTTP {status}){told.suffix}")
        return refused
    if status == 404:
        return EngineFailed(
            f"{place} knows no such path or model (HTTP 404){told.suffix}", "check openai.url and openai.model"
        )
    if status in (429, 503):
        wait = parse_retry_after_s(headers)
        busy = Overloaded(
            "the server that runs the model takes no more requests now",
            "try again later",
            retry_after_s=1.0 if wait is None else wait,
        )
        busy.add_note(f"{place} takes no more requests now (HTTP {status}){told.suffix}")
        _log.warning("%s", describe_in_full(busy))
        return busy
    if status in (408, 504):
        return Unreachable(f"{place} did not answer in time (HTTP {status}){told.suffix}")
    failed = Unreachable if status >= 500 else EngineFailed
    return failed(f"{place} failed (HTTP {status}){told.suffix}")


def describe_in_full(error: EnginebayError) -> str:
    """An error's message as those who run this host may read it: with the server's place. Not for clients."""
    return next(iter(getattr(error, "__notes__", ())), error.message)


def error_from_event(server: RemoteServer, error: Any) -> EnginebayError:
    """The error for one that came in the stream, where the status could not say it any more."""
    told = _RemoteError(server, error)
    if told.code in ("400", "422", "invalid_request_error", "BadRequestError") or told.is_overflow:
        return told.to_request_error()
    return EngineFailed(f"{server.authority} failed on this request{told.suffix}")


class _RemoteError:
    """What a server says about an error, in any of the usual shapes."""

    def __init__(self, remote: RemoteServer, error: Any) -> None:
        inner = error.get("error", error) if isinstance(error, Mapping) else error
        fields: Mapping[str, Any] = inner if isinstance(inner, Mapping) else {"message": inner}
        said = next((fields[name] for name in ("message", "detail", "error", "title") if fields.get(name)), "")
        said = said if isinstance(said, str) else json.dumps(said, ensure_ascii=False)
        self.message = _sanitize_line(remote, said)
        self.code = str(fields.get("code") or fields.get("type") or "")
        param = fields.get("param")
        self.param = _sanitize_line(remote, param)[:64] if isinstance(param, str) and param else None
        self.is_overflow = self.code == "context_length_exceeded" or bool(_OVERFLOW.search(self.message))

    @property
    def suffix(self) -> str:
        return f": {self.message}" if self.message else ""

    def to_request_error(self) -> EnginebayError:
        message = f"the server that runs the model refuses the request{self.suffix}"
        if self.is_overflow:
            return ContextOverflow(message, "shorten the prompt or max_tokens", param=self.param)
        return InvalidRequest(message, param=self.param)


def _parse_body(body: bytes) -> Any:
    text = body.decode("utf-8", "replace").strip()
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return "" if text.startswith("<") else text  # the page of some proxy says nothing


def _sanitize_line(remote: RemoteServer, text: str) -> str:
    """One short line of printable characters, without the key."""
    if remote.api_key:
        text = text.replace(remote.api_key, "***")
    line = " ".join("".join(char if char.isprintable() else " " for char in replace_lone_surrogates(text)).split())
    return line if len(line) <= _MAX_LINE else line[: _MAX_LINE - 1] + "…"
