"""Errors in Anthropic's form, and which requests get them."""

from __future__ import annotations

import json
from typing import Any, cast

import msgspec
import pytest
from anthropic.types import ErrorResponse

from enginebay import errors
from enginebay.errors import ERRORS_BY_KIND, ContextOverflow, EnginebayError, InvalidRequest
from enginebay.server.api.anthropic.anthropic_errors import AnthropicErrorForm
from enginebay.server.api.anthropic.message_objects import AnthropicErrorObject
from enginebay.server.api.request_dialect import apply_dialect, encode_http_refusal, speaks_anthropic
from enginebay.server.encoding.error_responses import OPENAI_ERRORS, get_error_row
from enginebay.server.http.exchange import REASON_PHRASES, Exchange
from enginebay.server.requests.request_context import RequestContext

FORM = AnthropicErrorForm("req_1")


def make_exchange(path: str, **headers: str) -> Exchange:
    return Exchange(cast("Any", None), "POST", path, {name.replace("_", "-"): value for name, value in headers.items()})


def encode(error: EnginebayError) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FORM.encode_body(error))
    assert msgspec.to_builtins(msgspec.convert(found, AnthropicErrorObject)) == found
    return found


@pytest.mark.parametrize("kind", sorted(ERRORS_BY_KIND))
def test_every_error_has_a_type_and_a_status(kind: str) -> None:
    error = ERRORS_BY_KIND[kind]("something is wrong", "do this")
    found = encode(error)
    ErrorResponse.model_validate(found)
    assert found["type"] == "error" and found["request_id"] == "req_1" and found["error"]["message"]
    assert FORM.get_status(error) in REASON_PHRASES
    assert FORM.get_status(error) in (get_error_row(error).status, 529)


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (errors.InvalidRequest("x"), 400, "invalid_request_error"),
        (errors.Unsupported("x"), 400, "invalid_request_error"),
        (errors.Unauthorized("x"), 401, "authentication_error"),
        (errors.Forbidden("x"), 403, "permission_error"),
        (errors.UnknownModel("x"), 404, "not_found_error"),
        (errors.RateLimited("x"), 429, "rate_limit_error"),
        (errors.Overloaded("x"), 529, "overloaded_error"),
        (errors.EngineFailed("x"), 500, "api_error"),
        (errors.WorkerDied("x"), 503, "api_error"),
        (errors.TimedOut("x"), 504, "timeout_error"),
    ],
)
def test_types(error: EnginebayError, status: int, kind: str) -> None:
    assert FORM.get_status(error) == status
    assert encode(error)["error"]["type"] == kind


def test_a_prompt_that_is_too_long_says_so_in_the_words_that_clients_know() -> None:
    error = ContextOverflow("the prompt (9000 tokens) plus output exceeds the model's context length of 4096 tokens")
    assert encode(error)["error"]["message"].startswith("prompt is too long: 9000 tokens > 4096 maximum")
    other = ContextOverflow(
        "This model's maximum context length is 4096 tokens. However, your messages resulted in at least 9000 tokens"
    )
    assert encode(other)["error"]["message"].startswith("prompt is too long: 9000 tokens > 4096 maximum")
    assert encode(ContextOverflow("it is long"))["error"]["message"].startswith("prompt is too long: it is long")


def test_the_field_is_named() -> None:
    assert encode(InvalidRequest("x", param="system"))["error"]["param"] == "system"


def test_an_event() -> None:
    event = FORM.encode_event(InvalidRequest("a\u2028b"))
    assert event.startswith(b"event: error\ndata: {") and event.endswith(b"}\n\n") and event.isascii()


def test_which_requests_get_this_form() -> None:
    assert speaks_anthropic(make_exchange("/v1/messages"))
    assert speaks_anthropic(make_exchange("/v1/messages/count_tokens"))
    assert speaks_anthropic(make_exchange("/v1/models", anthropic_version="2023-06-01"))
    assert not speaks_anthropic(make_exchange("/v1/models"))
    assert not speaks_anthropic(make_exchange("/v1/chat/completions"))


def test_the_dialect_of_a_request() -> None:
    chat = RequestContext(make_exchange("/v1/chat/completions"), "chat", "req_1")
    apply_dialect(chat)
    assert chat.error_form is OPENAI_ERRORS and b"\r\nrequest-id" not in chat.exchange.added_headers
    message = RequestContext(make_exchange("/v1/messages"), "messages", "req_1")
    apply_dialect(message)
    assert isinstance(message.error_form, AnthropicErrorForm)
    assert b"\r\nrequest-id: req_1" in message.exchange.added_headers


def test_refusals_of_the_http_layer() -> None:
    found = json.loads(
        encode_http_refusal(413, "the body exceeds 9 bytes", "body_bytes", make_exchange("/v1/messages"))
    )
    assert found["error"]["type"] == "request_too_large" and "body_bytes" in found["error"]["message"]
    for exchange in (None, make_exchange("/v1/chat/completions")):
        assert "code" in json.loads(encode_http_refusal(413, "x", "", exchange))["error"]
