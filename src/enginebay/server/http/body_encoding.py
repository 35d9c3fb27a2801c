"""Decompresses request bodies. Pure."""

from __future__ import annotations

import zlib

from enginebay.server.http.refusal import Refusal


def decompress_body(body: bytes, encoding: str, max_bytes: int, limit: str) -> bytes:
    """Return the decompressed body, at most `max_bytes`. Raise `Refusal`."""
    if encoding not in ("gzip", "deflate"):
        raise Refusal(415, f"content-encoding {encoding[:40]!r} is not supported: use gzip, deflate or none")
    inflater = zlib.decompressobj(47)  # both gzip and zlib wrappers
    try:
        decompressed = inflater.decompress(body, max_bytes)
    except zlib.error:
        raise Refusal(400, f"the body is not valid {encoding}") from None
    if inflater.eof and not inflater.unused_data:
        return decompressed
    if inflater.unconsumed_tail or len(decompressed) >= max_bytes:
        raise Refusal(413, f"the decompressed body exceeds {max_bytes} bytes", limit)
    raise Refusal(400, f"the body is not a complete {encoding} stream")
