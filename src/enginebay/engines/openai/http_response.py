"""Incremental HTTP/1.1 response parser: httptools, and a bound on every size. Does no I/O."""

from __future__ import annotations

import httptools

_MAX_FRAMING_BYTES = 1 << 16  # of a head, or between two parts of a body
_MAX_BODY_BYTES = 1 << 30
_NO_BODY = (204, 304)


class MalformedResponse(Exception):
    """The server sent an invalid response. The message is a noun phrase: "<server> sent <message>"."""


class HttpResponseParser:
    """Accepts the bytes of one response in any pieces and returns those of its body."""

    def __init__(self) -> None:
        self.status = 0  # 0: the head is incomplete
        self.headers: dict[str, str] = {}
        self.is_complete = False
        self.keep_alive = False  # the connection is reusable once the response is complete
        self._parser = httptools.HttpResponseParser(self)
        self._body = bytearray()
        self._total = 0
        self._framing_bytes = 0  # since the last part of the body
        self._ends_with_connection = False

    def feed(self, data: bytes) -> bytes:
        """Return the part of the body in the data. Raises `MalformedResponse`."""
        self._framing_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if isinstance(error.__context__, MalformedResponse):
                raise error.__context__ from None
            if not self.is_complete:
                raise MalformedResponse("an invalid chunk" if self.status else "something that is not HTTP") from None
            self.keep_alive = False  # unexpected extra bytes
        body, self._body = bytes(self._body), bytearray()
        self._total += len(body)
        if self._total > _MAX_BODY_BYTES:
            raise MalformedResponse(f"a response of more than {_MAX_BODY_BYTES >> 20} MiB")
        if self._framing_bytes > _MAX_FRAMING_BYTES and not self.is_complete:
            raise MalformedResponse(f"a head or trailer of more than {_MAX_FRAMING_BYTES >> 10} KiB")
        return body

    def end(self) -> None:
        """Handle a closed connection. Raises `MalformedResponse` if the response is incomplete."""
        self.is_complete |= self._ends_with_connection
        if not self.is_complete:
            raise MalformedResponse("a truncated response")

    # httptools callbacks

    def on_message_begin(self) -> None:
        self.keep_alive &= not self.is_complete  # a second response is not ours

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.status:
            return  # trailers
        key, text = name.decode("ascii").lower(), value.decode("latin-1")
        if key in ("content-length", "transfer-encoding") and self.headers.get(key, text) != text:
            raise MalformedResponse(f"two different {key} headers")
        self.headers[key] = text

    def on_headers_complete(self) -> None:
        status, version = self._parser.get_status_code(), self._parser.get_http_version()
        if self.status or status < 200:  # early hints, or "continue"
            self.headers = self.headers if self.status else {}
            return
        coding = self.headers.get("transfer-encoding", "").strip().lower()
        if version not in ("1.0", "1.1"):
            raise MalformedResponse("something that is not HTTP")
        if coding not in ("", "chunked"):
            raise MalformedResponse("a response with an unknown transfer encoding")
        self.status = status
        self.keep_alive = version == "1.1" and self._parser.should_keep_alive()
        self._ends_with_connection = not coding and "content-length" not in self.headers and status not in _NO_BODY

    def on_body(self, data: bytes) -> None:
        self._framing_bytes = 0
        if not self.is_complete:
            self._body += data

    def on_message_complete(self) -> None:
        self.is_complete = self.status > 0
