"""Encodes errors for clients: a status and OpenAI's error object; and the interface of other dialects' forms. Never a path, an address or a stack trace."""

from __future__ import annotations

import math
from typing import Annotated, NamedTuple, Protocol

import msgspec
from msgspec import Struct

from enginebay import errors
from enginebay.errors import EnginebayError, InvalidRequest, Overloaded
from enginebay.server.encoding.choice_state import about
from enginebay.server.encoding.sse_escape import escape_line_separators
from enginebay.util.limit_errors import format_limit_hint

_encode = msgspec.json.Encoder().encode


class ErrorRow(NamedTuple):
    """How clients see one kind of error. Without `public_message` they get the error's own message and hint."""

    status: int
    type: str
    code: str | None
    public_message: str = ""


class ErrorDetailObject(Struct):
    message: Annotated[str, about("What is wrong, and what to do.")]
    type: str
    param: Annotated[str | None, about("The field that the error is about.")]
    code: str | None


class ErrorObject(Struct):
    error: ErrorDetailObject


_MAX_MESSAGE_CHARS = 1000  # a message may quote what the client sent
_LOG_HINT = "the server log has the details under this request id"

# One row for each error kind; a test checks that none is missing. Messages about the host stay in the log.
ERROR_TABLE: dict[str, ErrorRow] = {
    "error": ErrorRow(500, "server_error", None, "the server failed on this request"),
    "usage": ErrorRow(400, "invalid_request_error", None),
    "config": ErrorRow(500, "server_error", "misconfigured", "the server is misconfigured"),
    "unknown_model": ErrorRow(404, "invalid_request_error", "model_not_found"),
    "unknown_engine": ErrorRow(500, "server_error", "misconfigured", "the server is misconfigured"),
    "request": ErrorRow(400, "invalid_request_error", None),
    "invalid_request": ErrorRow(400, "invalid_request_error", "invalid_value"),
    "unsupported": ErrorRow(400, "invalid_request_error", "unsupported_parameter"),
    "context_overflow": ErrorRow(400, "invalid_request_error", "context_length_exceeded"),
    "poison_request": ErrorRow(422, "invalid_request_error", "poison_request"),
    "not_found": ErrorRow(404, "invalid_request_error", "unknown_url"),
    "response_not_found": ErrorRow(404, "invalid_request_error", "not_found"),
    "previous_response_not_found": ErrorRow(400, "invalid_request_error", "previous_response_not_found"),
    "state_unavailable": ErrorRow(
        503, "server_error", "state_unavailable", "stored responses are not available right now"
    ),
    "method_not_allowed": ErrorRow(405, "invalid_request_error", "method_not_allowed"),
    "unauthorized": ErrorRow(401, "authentication_error", "invalid_api_key"),
    "forbidden": ErrorRow(403, "permission_error", "insufficient_scope"),
    "overloaded": ErrorRow(503, "server_error", "overloaded"),
    "rate_limited": ErrorRow(429, "rate_limit_error", "rate_limit_exceeded"),
    "timed_out": ErrorRow(504, "server_error", "timeout"),
    "engine_missing": ErrorRow(503, "server_error", "engine_unavailable", "the model's engine is not available"),
    "load_failed": ErrorRow(503, "server_error", "engine_unavailable", "the model could not be loaded"),
    "out_of_memory": ErrorRow(
        503, "server_error", "engine_unavailable", "the model does not fit into memory right now"
    ),
    "does_not_fit": ErrorRow(503, "server_error", "model_too_large"),
    "worker_died": ErrorRow(503, "server_error", "engine_unavailable", "the model's worker died during the request"),
    "unknown_architecture": ErrorRow(
        503, "server_error", "engine_unavailable", "the engine does not support this model"
    ),
    "crash_loop": ErrorRow(503, "server_error", "engine_unavailable", "the model's worker keeps crashing"),
    "draining": ErrorRow(503, "server_error", "engine_unavailable", "the model is being replaced"),
    "engine_failed": ErrorRow(500, "server_error", "engine_failed", "the engine failed on this request"),
    "unreachable": ErrorRow(
        502, "server_error", "engine_unavailable", "the remote server of this model does not respond"
    ),
    "model_invalid": ErrorRow(500, "server_error", "model_invalid", "the model's files are invalid"),
    "fetch_failed": ErrorRow(503, "server_error", "fetch_failed", "the model could not be fetched"),
    "offline": ErrorRow(503, "server_error", "offline", "the model is not on this host, and the server is offline"),
    "cancelled": ErrorRow(503, "server_error", "cancelled", "the request was cancelled: the server is stopping"),
}

# For errors that a retry does not fix.
# A model whose engine or files are missing is not planned again before a reload.
_OPERATOR_HINTS = {
    "config": "the operator must fix it",
    "unknown_engine": "the operator must fix it",
    "engine_missing": "the operator must install it with `bay engines install`, then run `bay reload`",
    "unknown_architecture": "the operator can find one that does with `bay engines why`",
    "crash_loop": "it restarts after a backoff, or when the operator runs `bay load`",
    "model_invalid": "the operator must fetch them again or replace them, then run `bay reload`",
    "fetch_failed": "the operator must fix its source or fetch it with `bay models pull`, then run `bay reload`",
    "offline": "the operator must fetch it with `bay models pull`, then run `bay reload`",
}


def get_error_row(error: EnginebayError) -> ErrorRow:
    return ERROR_TABLE.get(error.kind, ERROR_TABLE["error"])


def encode_error(error: EnginebayError) -> ErrorDetailObject:
    row = get_error_row(error)
    message = row.public_message or truncate_message(error.message)
    hint = _format_hint(error.kind) if row.public_message else error.hint
    ending = f". {hint[:1].upper()}{hint[1:]}{'' if hint.endswith('?') else '.'}" if hint else ""
    return ErrorDetailObject(message + ending, row.type, error.param, row.code)


def _format_hint(kind: str) -> str:
    operator_hint = _OPERATOR_HINTS.get(kind)
    return f"{operator_hint}; {_LOG_HINT}" if operator_hint else f"retry the request; if it keeps failing, {_LOG_HINT}"


def truncate_message(message: str) -> str:
    return message if len(message) <= _MAX_MESSAGE_CHARS else f"{message[:_MAX_MESSAGE_CHARS]}…"


def encode_error_body(error: EnginebayError) -> bytes:
    return _encode(ErrorObject(encode_error(error)))


def build_error_headers(error: EnginebayError) -> list[tuple[str, str]]:
    if isinstance(error, (Overloaded, errors.CrashLoop)):
        return [("retry-after", str(max(1, math.ceil(error.retry_after_s))))]
    if isinstance(error, errors.Unauthorized):
        return [("www-authenticate", "Bearer")]
    if isinstance(error, errors.MethodNotAllowed):
        return [("allow", error.allowed)]
    if isinstance(error, errors.DoesNotFit):
        return []
    return [("retry-after", "1")] if get_error_row(error).status == 503 and error.kind not in _OPERATOR_HINTS else []


_REFUSALS = {401: errors.Unauthorized, 429: errors.RateLimited, 503: Overloaded}


def make_refusal(status: int, message: str, limit: str = "") -> EnginebayError:
    """Return the error of a refusal by the HTTP layer. `limit`: the exceeded setting, if any."""
    kind: type[EnginebayError] = _REFUSALS.get(status, InvalidRequest)
    return kind(message, format_limit_hint(limit) if limit else "")


class ErrorForm(Protocol):
    """How a dialect encodes errors."""

    def get_status(self, error: EnginebayError) -> int: ...

    def encode_body(self, error: EnginebayError) -> bytes: ...

    def encode_refusal(self, error: EnginebayError, status: int) -> bytes:
        """Encode an error to which the HTTP layer gives this status."""

    def encode_event(self, error: EnginebayError) -> bytes:
        """Encode the last event of a stream that has sent no output."""


class OpenAIErrorForm:
    """OpenAI's form. Implements `ErrorForm`."""

    def get_status(self, error: EnginebayError) -> int:
        return get_error_row(error).status

    def encode_body(self, error: EnginebayError) -> bytes:
        return encode_error_body(error)

    def encode_refusal(self, error: EnginebayError, status: int) -> bytes:
        return encode_error_body(error)

    def encode_event(self, error: EnginebayError) -> bytes:
        return escape_line_separators(b"data: %b\n\n" % encode_error_body(error))


OPENAI_ERRORS: ErrorForm = OpenAIErrorForm()
