"""The opening handshake of a WebSocket (RFC 6455, section 4.2). Pure."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping

from enginebay.server.http.refusal import Refusal

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


def is_websocket_request(method: bytes, version: str, headers: Mapping[str, str]) -> bool:
    """Return whether a request to upgrade asks for a WebSocket. Others are ordinary requests."""
    offered = (protocol.strip().lower() for protocol in headers.get("upgrade", "").split(","))
    return method == b"GET" and version == "1.1" and "websocket" in offered


def check_handshake(headers: Mapping[str, str]) -> None:
    """Raise `Refusal` for a WebSocket that cannot be opened."""
    if "," in headers.get("host", ","):  # missing, or sent twice
        raise Refusal(400, "a request needs exactly one Host header")
    if headers.get("sec-websocket-version", "").strip() != "13":
        raise Refusal(426, "only version 13 of the WebSocket protocol is supported")
    try:
        key = base64.b64decode(headers.get("sec-websocket-key", "").strip(), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != 16:
        raise Refusal(400, "sec-websocket-key must be 16 bytes in base64")
    if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
        raise Refusal(400, "a WebSocket request must not have a body")


def encode_acceptance(headers: Mapping[str, str]) -> bytes:
    """Return the headers that accept the handshake, and the end of the head. No extension, no subprotocol."""
    digest = hashlib.sha1(headers["sec-websocket-key"].strip().encode("latin-1") + _GUID, usedforsecurity=False)
    accept = base64.b64encode(digest.digest())
    return b"upgrade: websocket\r\nconnection: Upgrade\r\nsec-websocket-accept: %b\r\n\r\n" % accept
