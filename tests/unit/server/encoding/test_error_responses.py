"""Errors as clients see them: every kind has its row, and what concerns the host alone stays there."""

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
from enginebay.server.encoding.error_responses import (
    ERROR_TABLE,
    build_error_headers,
    encode_error,
    encode_error_body,
    encode_refusal,
    get_error_row,
)
from enginebay.server.http.exchange import REASON_PHRASES

SECRET = "cannot open /home/somebody/models/x.gguf at 0x7f0012345678: [Errno 2]"
# Kinds whose message is about the request, and made to be read by whoever sent it.
FOR_CLIENTS = {
    "usage", "unknown_model", "request", "invalid_request", "unsupported", "context_overflow", "no_such_place", "wrong_method",
    "unauthorized", "forbidden", "overloaded", "rate_limited", "timed_out",
}  # fmt: skip


def test_every_kind_has_a_row_and_every_row_a_kind() -> None:
    assert set(ERROR_TABLE) == set(ERRORS_BY_KIND)


@pytest.mark.parametrize("kind", sorted(ERROR_TABLE))
def test_rows_are_of_the_form_clients_know(kind: str) -> None:
    row = ERROR_TABLE[kind]
    assert row.status in REASON_PHRASES and row.status >= 400
    assert (row.type == "server_error") == (row.status >= 500)
    assert row.public_message == "" or not row.public_message.endswith(".")


@pytest.mark.parametrize("kind", sorted(ERROR_TABLE))
def test_messages_about_the_host_stay_there(kind: str) -> None:
    error = ERRORS_BY_KIND[kind](SECRET, f"look at {SECRET}", param="model")
    found = json.loads(encode_error_body(error))["error"]
    assert set(found) == {"message", "type", "param", "code"} and found["param"] == "model"
    assert (SECRET in found["message"]) == (kind in FOR_CLIENTS), found


def test_a_kind_that_nobody_knows_tells_nothing() -> None:
    class Odd(EnginebayError):
        kind = "odd"

    assert get_error_row(Odd(SECRET)).status == 500 and SECRET not in json.dumps(encode_error(Odd(SECRET)))


MAY_PASS = {
    "error", "load_failed", "out_of_memory", "worker_died", "draining", "engine_failed", "unreachable", "cancelled"
}  # fmt: skip


@pytest.mark.parametrize("kind", sorted(set(ERROR_TABLE) - FOR_CLIENTS))
def test_only_what_may_pass_is_to_be_sent_again(kind: str) -> None:
    message = str(encode_error(ERRORS_BY_KIND[kind](SECRET))["message"])
    assert ("Send the request again" in message) == (kind in MAY_PASS), message
    assert kind in MAY_PASS or "operator" in message, "or else nobody knows what would help"
    assert message.endswith("the server's log has the details under this request's id.")


def test_message_and_hint_are_sentences() -> None:
    assert encode_error(errors.InvalidRequest("n is 0", "use at least 1"))["message"] == "n is 0. Use at least 1."
    assert encode_error(errors.InvalidRequest("n is 0"))["message"] == "n is 0"


def test_a_long_message_is_cut() -> None:
    """It may hold what the client has sent, which may be megabytes."""
    body = encode_error_body(errors.InvalidRequest("x" * 10**6, "use less"))
    assert len(body) < 2000 and b"Use less." in body


def test_when_to_come_back() -> None:
    assert build_error_headers(Overloaded("later", retry_after_s=2.1)) == [("retry-after", "3")]
    assert build_error_headers(RateLimited("later", retry_after_s=0.01)) == [("retry-after", "1")]
    assert build_error_headers(errors.WorkerDied("gone")) == [("retry-after", "1")]
    assert build_error_headers(errors.EngineMissing("gone")) == [], "a repeat does not help"
    assert build_error_headers(errors.InvalidRequest("wrong")) == []


def test_how_to_ask_properly() -> None:
    assert build_error_headers(Unauthorized("no key")) == [("www-authenticate", "Bearer")]
    assert build_error_headers(MethodNotAllowed("not so", "use POST", allowed="POST")) == [("allow", "POST")]
    assert build_error_headers(NotFound("nothing here", "/docs lists every endpoint")) == []


def test_a_refusal_looks_like_any_other_error() -> None:
    found = json.loads(encode_refusal(431, "too long"))["error"]
    assert found["message"] == "too long" and found["type"] == "invalid_request_error"
