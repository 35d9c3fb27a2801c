"""Errors as clients see them: a status and OpenAI's error object. Never a path, an address or a stack trace."""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec

from enginebay import errors
from enginebay.errors import EnginebayError, InvalidRequest, Overloaded
from enginebay.util.limit_errors import format_limit_hint

_encode = msgspec.json.Encoder().encode


class ErrorRow(NamedTuple):
    """How one kind of error is shown. Without `said`, the error's own message and hint are."""

    status: int
    type: str
    code: str | None
    public_message: str = ""


_MAX_MESSAGE_CHARS = 1000  # characters of a message: what a client has sent may be in it
_LOG_HINT = "the server's log has the details under this request's id"

# One row for each error kind; a test proves that none is missing. Messages about the host itself stay in the log.
ERROR_TABLE: dict[str, ErrorRow] = {
    "error": ErrorRow(500, "server_error", None, "the server failed on this request"),
    "usage": ErrorRow(400, "invalid_request_error", None),
    "config": ErrorRow(500, "server_error", "misconfigured", "the server's configuration is wrong"),
    "unknown_model": ErrorRow(404, "invalid_request_error", "model_not_found"),
    "unknown_engine": ErrorRow(500, "server_error", "misconfigured", "the server's configuration is wrong"),
    "request": ErrorRow(400, "invalid_request_error", None),
    "invalid_request": ErrorRow(400, "invalid_request_error", "invalid_value"),
    "unsupported": ErrorRow(400, "invalid_request_error", "unsupported_parameter"),
    "context_overflow": ErrorRow(400, "invalid_request_error", "context_length_exceeded"),
    "no_such_place": ErrorRow(404, "invalid_request_error", "unknown_url"),
    "wrong_method": ErrorRow(405, "invalid_request_error", "method_not_allowed"),
    "unauthorized": ErrorRow(401, "authentication_error", "invalid_api_key"),
    "forbidden": ErrorRow(403, "permission_error", "insufficient_scope"),
    "overloaded": ErrorRow(503, "server_error", "overloaded"),
    "rate_limited": ErrorRow(429, "rate_limit_error", "rate_limit_exceeded"),
    "timed_out": ErrorRow(504, "server_error", "timeout"),
    "engine_missing": ErrorRow(503, "server_error", "engine_unavailable", "the model's engine is not available"),
    "load_failed": ErrorRow(503, "server_error", "engine_unavailable", "the model could not be loaded"),
    "out_of_memory": ErrorRow(503, "server_error", "engine_unavailable", "the model does not fit into memory now"),
    "worker_died": ErrorRow(
        503, "server_error", "engine_unavailable", "the model's worker ended while it was answering"
    ),
    "unknown_architecture": ErrorRow(503, "server_error", "engine_unavailable", "the engine does not know this model"),
    "crash_loop": ErrorRow(503, "server_error", "engine_unavailable", "the model's worker does not stay alive"),
    "draining": ErrorRow(503, "server_error", "engine_unavailable", "the model is being replaced"),
    "engine_failed": ErrorRow(500, "server_error", "engine_failed", "the engine failed on this request"),
    "unreachable": ErrorRow(
        502, "server_error", "engine_unavailable", "the server that runs the model does not answer"
    ),
    "model_invalid": ErrorRow(500, "server_error", "model_invalid", "the model's files are not usable"),
    "fetch_failed": ErrorRow(503, "server_error", "fetch_failed", "the model could not be fetched"),
    "offline": ErrorRow(503, "server_error", "offline", "the model is not on this host, and the server is offline"),
    "cancelled": ErrorRow(503, "server_error", "cancelled", "the request was cancelled, for the server is stopping"),
}

# What helps where a repeat does not, since it fails in the same way until somebody has seen to it.
# A model that could not be planned, as its engine or its files are missing, is not tried again before a reload.
_OPERATOR_HINTS = {
    "config": "the operator has to correct it",
    "unknown_engine": "the operator has to correct it",
    "engine_missing": "the operator has to install it with `bay engines install`, then run `bay reload`",
    "unknown_architecture": "the operator sees with `bay engines why` which engine does",
    "crash_loop": "it is started again after a while, or when the operator runs `bay load`",
    "model_invalid": "the operator has to fetch them again or replace them, then run `bay reload`",
    "fetch_failed": "the operator has to correct its source, or fetch it with `bay models pull`, then run `bay reload`",
    "offline": "the operator has to fetch it with `bay models pull`, then run `bay reload`",
}


def get_error_row(error: EnginebayError) -> ErrorRow:
    return ERROR_TABLE.get(error.kind, ERROR_TABLE["error"])


def encode_error(error: EnginebayError) -> dict[str, object]:
    row = get_error_row(error)
    message = row.public_message or truncate_message(error.message)
    hint = _format_hint(error.kind) if row.public_message else error.hint
    return {
        "message": f"{message}. {hint[:1].upper()}{hint[1:]}{'' if hint.endswith('?') else '.'}" if hint else message,
        "type": row.type,
        "param": error.param,
        "code": row.code,
    }


def _format_hint(kind: str) -> str:
    instead = _OPERATOR_HINTS.get(kind)
    return f"{instead}; {_LOG_HINT}" if instead else f"send the request again; if it persists, {_LOG_HINT}"


def truncate_message(message: str) -> str:
    return message if len(message) <= _MAX_MESSAGE_CHARS else f"{message[:_MAX_MESSAGE_CHARS]}…"


def encode_error_body(error: EnginebayError) -> bytes:
    return _encode({"error": encode_error(error)})


def build_error_headers(error: EnginebayError) -> list[tuple[str, str]]:
    if isinstance(error, (Overloaded, errors.CrashLoop)):
        return [("retry-after", str(max(1, math.ceil(error.retry_after_s))))]
    if isinstance(error, errors.Unauthorized):
        return [("www-authenticate", "Bearer")]
    if isinstance(error, errors.MethodNotAllowed):
        return [("allow", error.allowed)]
    return [("retry-after", "1")] if get_error_row(error).status == 503 and error.kind not in _OPERATOR_HINTS else []


def encode_refusal(status: int, message: str, limit: str = "") -> bytes:
    """For what is turned away before it is a whole request. `limit`: the setting that it is over, if that is why."""
    kind = errors.Unauthorized if status == 401 else InvalidRequest
    return encode_error_body(kind(message, format_limit_hint(limit) if limit else ""))
