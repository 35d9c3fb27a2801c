"""Errors as clients see them: every kind has a row, and details of the host are not sent."""

from __future__ import annotations

import json

import pytest

from enginebay import errors
from enginebay.errors import (
    ERRORS_BY_KIND,
    EnginebayError,
    MethodNotAllowed,
    NotFound,
    Overloaded,
    RateLimited,
    Unauthorized,
)
from enginebay.server.api.request_dialect import encode_http_refusal
from enginebay.server.encoding.error_responses import (
    ERROR_TABLE,
    build_error_headers,
    encode_error,
    encode_error_body,
    get_error_row,
)
from enginebay.server.http.exchange import REASON_PHRASES

SECRET = "cannot open /home/somebody/models/x.gguf at 0x7f0012345678: [Errno 2]"
# Kinds whose message is about the request, and sent to the client.
FOR_CLIENTS = {
    "usage", "unknown_model", "request", "invalid_request", "unsupported", "context_overflow", "poison_request", "not_found",
    "method_not_allowed", "response_not_found", "previous_response_not_found",
    "unauthorized", "forbidden", "overloaded", "rate_limited", "timed_out", "does_not_fit",
}  # fmt: skip


def test_every_kind_has_a_row_and_every_row_a_kind() -> None:
    assert set(ERROR_TABLE) == set(ERRORS_BY_KIND)


@pytest.mark.parametrize("kind", sorted(ERROR_TABLE))
def test_rows_have_a_known_status_and_type(kind: str) -> None:
    row = ERROR_TABLE[kind]
    assert row.status in REASON_PHRASES and row.status >= 400
    assert (row.type == "server_error") == (row.status >= 500)
    assert row.public_message == "" or not row.public_message.endswith(".")


@pytest.mark.parametrize("kind", sorted(ERROR_TABLE))
def test_messages_about_the_host_are_not_sent(kind: str) -> None:
    error = ERRORS_BY_KIND[kind](SECRET, f"look at {SECRET}", param="model")
    found = json.loads(encode_error_body(error))["error"]
    assert set(found) == {"message", "type", "param", "code"} and found["param"] == "model"
    assert (SECRET in found["message"]) == (kind in FOR_CLIENTS), found


def test_an_unknown_kind_is_a_500_without_details() -> None:
    class Odd(EnginebayError):
        kind = "odd"

    assert get_error_row(Odd(SECRET)).status == 500 and SECRET not in encode_error(Odd(SECRET)).message


TRANSIENT = {
    "error", "load_failed", "out_of_memory", "worker_died", "draining", "engine_failed", "unreachable", "cancelled",
    "state_unavailable",
}  # fmt: skip


@pytest.mark.parametrize("kind", sorted(set(ERROR_TABLE) - FOR_CLIENTS))
def test_only_transient_errors_suggest_a_retry(kind: str) -> None:
    message = str(encode_error(ERRORS_BY_KIND[kind](SECRET)).message)
    assert ("Retry the request" in message) == (kind in TRANSIENT), message
    assert kind in TRANSIENT or "operator" in message, "the hint names the operator's command"
    assert message.endswith("the server log has the details under this request id.")


def test_message_and_hint_are_joined_as_sentences() -> None:
    assert encode_error(errors.InvalidRequest("n is 0", "use at least 1")).message == "n is 0. Use at least 1."
    assert encode_error(errors.InvalidRequest("n is 0")).message == "n is 0"


def test_a_long_message_is_truncated() -> None:
    """It may quote what the client sent."""
    body = encode_error_body(errors.InvalidRequest("x" * 10**6, "use less"))
    assert len(body) < 2000 and b"Use less." in body


def test_retry_after() -> None:
    assert build_error_headers(Overloaded("later", retry_after_s=2.1)) == [("retry-after", "3")]
    assert build_error_headers(RateLimited("later", retry_after_s=0.01)) == [("retry-after", "1")]
    assert build_error_headers(errors.WorkerDied("gone")) == [("retry-after", "1")]
    assert build_error_headers(errors.EngineMissing("gone")) == [], "a retry does not help"
    assert build_error_headers(errors.DoesNotFit("too large")) == [], "a retry does not help"
    assert build_error_headers(errors.InvalidRequest("wrong")) == []


def test_headers_of_401_and_405() -> None:
    assert build_error_headers(Unauthorized("no key")) == [("www-authenticate", "Bearer")]
    assert build_error_headers(MethodNotAllowed("not so", "use POST", allowed="POST")) == [("allow", "POST")]
    assert build_error_headers(NotFound("not found: '/x'", "see /docs for all endpoints")) == []


def test_a_refusal_has_the_same_format() -> None:
    found = json.loads(encode_http_refusal(431, "too long"))["error"]
    assert found["message"] == "too long" and found["type"] == "invalid_request_error"
