"""Errors as clients see them: a status and OpenAI's error object. Never a path, an address or a stack trace."""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec

from enginebay import errors
from enginebay.errors import EnginebayError, InvalidRequest, Overloaded
from enginebay.server.limit_words import limit_hint

_encode = msgspec.json.Encoder().encode


class Shown(NamedTuple):
    """How one kind of error is shown. Without `said`, the error's own message and hint are."""

    status: int
    type: str
    code: str | None
    said: str = ""


_LONGEST = 1000  # characters of a message: what a client has sent may be in it
_IN_LOG = "the server's log has the details under this request's id"

# One row for each error kind; a test proves that none is missing. Messages about the host itself stay in the log.
TABLE: dict[str, Shown] = {
    "error": Shown(500, "server_error", None, "the server failed on this request"),
    "usage": Shown(400, "invalid_request_error", None),
    "config": Shown(500, "server_error", "misconfigured", "the server's configuration is wrong"),
    "unknown_model": Shown(404, "invalid_request_error", "model_not_found"),
    "unknown_engine": Shown(500, "server_error", "misconfigured", "the server's configuration is wrong"),
    "request": Shown(400, "invalid_request_error", None),
    "invalid_request": Shown(400, "invalid_request_error", "invalid_value"),
    "unsupported": Shown(400, "invalid_request_error", "unsupported_parameter"),
    "context_overflow": Shown(400, "invalid_request_error", "context_length_exceeded"),
    "no_such_place": Shown(404, "invalid_request_error", "unknown_url"),
    "wrong_method": Shown(405, "invalid_request_error", "method_not_allowed"),
    "unauthorized": Shown(401, "authentication_error", "invalid_api_key"),
    "forbidden": Shown(403, "permission_error", "insufficient_scope"),
    "overloaded": Shown(503, "server_error", "overloaded"),
    "rate_limited": Shown(429, "rate_limit_error", "rate_limit_exceeded"),
    "timed_out": Shown(504, "server_error", "timeout"),
    "engine_missing": Shown(503, "server_error", "engine_unavailable", "the model's engine is not available"),
    "load_failed": Shown(503, "server_error", "engine_unavailable", "the model could not be loaded"),
    "out_of_memory": Shown(503, "server_error", "engine_unavailable", "the model does not fit into memory now"),
    "worker_died": Shown(503, "server_error", "engine_unavailable", "the model's worker ended while it was answering"),
    "unknown_architecture": Shown(503, "server_error", "engine_unavailable", "the engine does not know this model"),
    "crash_loop": Shown(503, "server_error", "engine_unavailable", "the model's worker does not stay alive"),
    "draining": Shown(503, "server_error", "engine_unavailable", "the model is being replaced"),
    "engine_failed": Shown(500, "server_error", "engine_failed", "the engine failed on this request"),
    "unreachable": Shown(502, "server_error", "engine_unavailable", "the server that runs the model does not answer"),
    "model_invalid": Shown(500, "server_error", "model_invalid", "the model's files are not usable"),
    "fetch_failed": Shown(503, "server_error", "fetch_failed", "the model could not be fetched"),
    "offline": Shown(503, "server_error", "offline", "the model is not on this host, and the server is offline"),
    "cancelled": Shown(503, "server_error", "cancelled", "the request was cancelled, for the server is stopping"),
}

# What helps where a repeat does not, since it fails in the same way until somebody has seen to it.
# A model that could not be planned, as its engine or its files are missing, is not tried again before a reload.
_HELPS = {
    "config": "the operator has to correct it",
    "unknown_engine": "the operator has to correct it",
    "engine_missing": "the operator has to install it with `bay engines install`, then run `bay reload`",
    "unknown_architecture": "the operator sees with `bay engines why` which engine does",
    "crash_loop": "it is started again after a while, or when the operator runs `bay load`",
    "model_invalid": "the operator has to fetch them again or replace them, then run `bay reload`",
    "fetch_failed": "the operator has to correct its source, or fetch it with `bay models pull`, then run `bay reload`",
    "offline": "the operator has to fetch it with `bay models pull`, then run `bay reload`",
}


def shown(error: EnginebayError) -> Shown:
    return TABLE.get(error.kind, TABLE["error"])


def error_object(error: EnginebayError) -> dict[str, object]:
    row = shown(error)
    message = row.said or shortened(error.message)
    hint = _hint(error.kind) if row.said else error.hint
    return {
        "message": f"{message}. {hint[:1].upper()}{hint[1:]}{'' if hint.endswith('?') else '.'}" if hint else message,
        "type": row.type,
        "param": error.param,
        "code": row.code,
    }


def _hint(kind: str) -> str:
    instead = _HELPS.get(kind)
    return f"{instead}; {_IN_LOG}" if instead else f"send the request again; if it persists, {_IN_LOG}"


def shortened(message: str) -> str:
    return message if len(message) <= _LONGEST else f"{message[:_LONGEST]}…"


def error_body(error: EnginebayError) -> bytes:
    return _encode({"error": error_object(error)})


def error_headers(error: EnginebayError) -> list[tuple[str, str]]:
    if isinstance(error, (Overloaded, errors.CrashLoop)):
        return [("retry-after", str(max(1, math.ceil(error.retry_after_s))))]
    if isinstance(error, errors.Unauthorized):
        return [("www-authenticate", "Bearer")]
    if isinstance(error, errors.WrongMethod):
        return [("allow", error.allowed)]
    return [("retry-after", "1")] if shown(error).status == 503 and error.kind not in _HELPS else []


def refusal(status: int, message: str, limit: str = "") -> bytes:
    """For what is turned away before it is a whole request. `limit`: the setting that it is over, if that is why."""
    kind = errors.Unauthorized if status == 401 else InvalidRequest
    return error_body(kind(message, limit_hint(limit) if limit else ""))
