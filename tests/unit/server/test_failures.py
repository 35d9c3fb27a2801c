"""Errors as clients see them: every kind has its row, and what concerns the host alone stays there."""

from __future__ import annotations

import json

import pytest

from enginebay import errors
from enginebay.errors import BY_KIND, EnginebayError, NoSuchPlace, Overloaded, RateLimited, Unauthorized, WrongMethod
from enginebay.server.failures import TABLE, error_body, error_headers, error_object, refusal, shown
from enginebay.server.http.exchange import REASONS

SECRET = "cannot open /home/somebody/models/x.gguf at 0x7f0012345678: [Errno 2]"
# Kinds whose message is about the request, and made to be read by whoever sent it.
FOR_CLIENTS = {
    "usage", "unknown_model", "request", "invalid_request", "unsupported", "context_overflow", "no_such_place", "wrong_method",
    "unauthorized", "forbidden", "overloaded", "rate_limited", "timed_out",
}  # fmt: skip


def test_every_kind_has_a_row_and_every_row_a_kind() -> None:
    assert set(TABLE) == set(BY_KIND)


@pytest.mark.parametrize("kind", sorted(TABLE))
def test_rows_are_of_the_form_clients_know(kind: str) -> None:
    row = TABLE[kind]
    assert row.status in REASONS and row.status >= 400
    assert (row.type == "server_error") == (row.status >= 500)
    assert row.said == "" or not row.said.endswith(".")


@pytest.mark.parametrize("kind", sorted(TABLE))
def test_messages_about_the_host_stay_there(kind: str) -> None:
    error = BY_KIND[kind](SECRET, f"look at {SECRET}", param="model")
    found = json.loads(error_body(error))["error"]
    assert set(found) == {"message", "type", "param", "code"} and found["param"] == "model"
    assert (SECRET in found["message"]) == (kind in FOR_CLIENTS), found


def test_a_kind_that_nobody_knows_tells_nothing() -> None:
    class Odd(EnginebayError):
        kind = "odd"

    assert shown(Odd(SECRET)).status == 500 and SECRET not in json.dumps(error_object(Odd(SECRET)))


MAY_PASS = {
    "error", "load_failed", "out_of_memory", "worker_died", "draining", "engine_failed", "unreachable", "cancelled"
}  # fmt: skip


@pytest.mark.parametrize("kind", sorted(set(TABLE) - FOR_CLIENTS))
def test_only_what_may_pass_is_to_be_sent_again(kind: str) -> None:
    message = str(error_object(BY_KIND[kind](SECRET))["message"])
    assert ("Send the request again" in message) == (kind in MAY_PASS), message
    assert kind in MAY_PASS or "operator" in message, "or else nobody knows what would help"
    assert message.endswith("the server's log has the details under this request's id.")


def test_message_and_hint_are_sentences() -> None:
    assert error_object(errors.InvalidRequest("n is 0", "use at least 1"))["message"] == "n is 0. Use at least 1."
    assert error_object(errors.InvalidRequest("n is 0"))["message"] == "n is 0"


def test_a_long_message_is_cut() -> None:
    """It may hold what the client has sent, which may be megabytes."""
    body = error_body(errors.InvalidRequest("x" * 10**6, "use less"))
    assert len(body) < 2000 and b"Use less." in body


def test_when_to_come_back() -> None:
    assert error_headers(Overloaded("later", retry_after_s=2.1)) == [("retry-after", "3")]
    assert error_headers(RateLimited("later", retry_after_s=0.01)) == [("retry-after", "1")]
    assert error_headers(errors.WorkerDied("gone")) == [("retry-after", "1")]
    assert error_headers(errors.EngineMissing("gone")) == [], "a repeat does not help"
    assert error_headers(errors.InvalidRequest("wrong")) == []


def test_how_to_ask_properly() -> None:
    assert error_headers(Unauthorized("no key")) == [("www-authenticate", "Bearer")]
    assert error_headers(WrongMethod("not so", "use POST", allowed="POST")) == [("allow", "POST")]
    assert error_headers(NoSuchPlace("nothing here", "/docs lists every endpoint")) == []


def test_a_refusal_looks_like_any_other_error() -> None:
    found = json.loads(refusal(431, "too long"))["error"]
    assert found["message"] == "too long" and found["type"] == "invalid_request_error"
