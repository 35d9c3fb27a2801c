"""Encodes errors in Anthropic's form."""

from __future__ import annotations

import re

import msgspec

from enginebay.errors import ContextOverflow, EnginebayError
from enginebay.server.api.anthropic.message_objects import (
    AnthropicErrorDetailObject,
    AnthropicErrorObject,
    ErrorType,
)
from enginebay.server.encoding.error_responses import encode_error, get_error_row
from enginebay.server.encoding.sse_escape import escape_line_separators

_encode = msgspec.json.Encoder().encode

OVERLOADED_STATUS = 529
_TYPES: dict[int, ErrorType] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    502: "api_error",
    503: "api_error",
    504: "timeout_error",
    OVERLOADED_STATUS: "overloaded_error",
}
_COUNTS = re.compile(r"\d+(?= tokens)")


class AnthropicErrorForm:
    """The errors of one request. Implements `ErrorForm`."""

    def __init__(self, request_id: str | None) -> None:
        self._request_id = request_id

    def get_status(self, error: EnginebayError) -> int:
        return OVERLOADED_STATUS if error.kind == "overloaded" else get_error_row(error).status

    def encode_body(self, error: EnginebayError) -> bytes:
        return self.encode_refusal(error, self.get_status(error))

    def encode_refusal(self, error: EnginebayError, status: int) -> bytes:
        """Encode an error whose status is not its usual one."""
        kind = _TYPES.get(status, "invalid_request_error")
        detail = AnthropicErrorDetailObject(kind, _format_message(error), error.param)
        return _encode(AnthropicErrorObject(error=detail, request_id=self._request_id))

    def encode_event(self, error: EnginebayError) -> bytes:
        return escape_line_separators(b"event: error\ndata: %b\n\n" % self.encode_body(error))


def _format_message(error: EnginebayError) -> str:
    """Return the message. Clients find a prompt that is too long by Anthropic's words, and then compact it."""
    message = encode_error(error).message
    if not isinstance(error, ContextOverflow):
        return message
    counts = sorted(map(int, _COUNTS.findall(error.message)))
    if len(counts) < 2:
        return f"prompt is too long: {message}"
    return f"prompt is too long: {counts[-1]} tokens > {counts[0]} maximum. {message}"
