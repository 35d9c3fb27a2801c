"""Recognizes the dialect of a request, which decides the form of its errors."""

from __future__ import annotations

from enginebay.server.api.anthropic.anthropic_errors import AnthropicErrorForm
from enginebay.server.api.ollama.ollama_encoder import OLLAMA_ERRORS
from enginebay.server.encoding.error_responses import OPENAI_ERRORS, ErrorForm, make_refusal
from enginebay.server.http.exchange import Exchange
from enginebay.server.requests.request_context import RequestContext

_MESSAGES_PATH, _OLLAMA_PATH = "/v1/messages", "/api/"
_ANTHROPIC_VERSION = "anthropic-version"  # a header of every Anthropic client


def speaks_anthropic(exchange: Exchange) -> bool:
    return _ANTHROPIC_VERSION in exchange.headers or exchange.path.startswith(_MESSAGES_PATH)


def apply_dialect(request_context: RequestContext) -> None:
    """Set the form of the request's errors, and the header in which the dialect's clients expect its id."""
    if speaks_anthropic(request_context.exchange):
        request_context.error_form = AnthropicErrorForm(request_context.id)
        request_context.exchange.add_header("request-id", request_context.id)
    elif request_context.exchange.path.startswith(_OLLAMA_PATH):
        request_context.error_form = OLLAMA_ERRORS


def encode_http_refusal(status: int, message: str, limit: str = "", exchange: Exchange | None = None) -> bytes:
    """Encode a refusal by the HTTP layer. `limit`: the exceeded setting, if any."""
    form: ErrorForm = OPENAI_ERRORS
    if exchange is not None and speaks_anthropic(exchange):
        form = AnthropicErrorForm(None)
    elif exchange is not None and exchange.path.startswith(_OLLAMA_PATH):
        form = OLLAMA_ERRORS
    return form.encode_refusal(make_refusal(status, message, limit), status)
