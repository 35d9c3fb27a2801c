"""Selects the form of an error by the dialect that the client speaks."""

from __future__ import annotations

from collections.abc import Callable

from enginebay.errors import EnginebayError
from enginebay.server.api.ollama.ollama_encoder import encode_ollama_error
from enginebay.server.encoding.error_responses import encode_error_body

ErrorEncoder = Callable[[EnginebayError], bytes]


def get_error_encoder(path: str) -> ErrorEncoder:
    """Return the encoder for a request to this path, which may lead nowhere."""
    return encode_ollama_error if path.startswith("/api/") else encode_error_body
