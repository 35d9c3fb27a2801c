"""Parses multipart/form-data while it arrives, within limits. Fields stay in memory; files go to a sink."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from python_multipart.exceptions import FormParserError, MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header

from enginebay.server.http.refusal import Refusal

_MAX_HEADERS = 16  # of one part
_MAX_BOUNDARY_BYTES = 70  # RFC 2046
_MAX_FALSE_DELIMITERS = 256  # boundaries within data: each costs the parser as much as a part

logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # it logs what clients send


@dataclass(frozen=True, slots=True)
class FormLimits:
    max_parts: int = 128
    max_field_bytes: int = 1 << 20
    max_header_bytes: int = 8 << 10  # of one part
    max_name_chars: int = 255


@dataclass(slots=True)
class FormPart:
    """A field, or the place of a file in the spool."""

    name: str
    filename: str | None
    content_type: str
    value: bytearray  # empty for a file
    offset: int = 0
    size: int = 0


def is_form(content_type: str) -> bool:
    return content_type[:19].lower() == "multipart/form-data"


def read_boundary(headers: Mapping[str, str]) -> bytes:
    """Return the boundary of a multipart body. Raise `Refusal`."""
    if headers.get("content-encoding", "identity").strip().lower() not in ("identity", ""):
        raise Refusal(415, "a compressed form is not supported: send it without content-encoding")
    try:
        boundary = parse_options_header(headers["content-type"])[1].get(b"boundary", b"")
    except (ValueError, UnicodeError):
        boundary = b""
    if not 0 < len(boundary) <= _MAX_BOUNDARY_BYTES or b"\r" in boundary or b"\n" in boundary:
        raise Refusal(400, f"multipart/form-data needs a boundary of 1 to {_MAX_BOUNDARY_BYTES} characters")
    return boundary


class FormParser:
    """Feeds `write_file` with the bytes of files, in order. `parts` is complete after `finish`."""

    def __init__(self, boundary: bytes, limits: FormLimits, write_file: Callable[[bytes], None]) -> None:
        self._limits = limits
        self._write_file = write_file
        self._spooled_bytes = 0
        self._headers: dict[str, str] = {}
        self._header_name = bytearray()
        self._header_value = bytearray()
        self._header_bytes = 0
        self._part: FormPart | None = None
        self._ended = False
        self._delimiters = 0
        self.parts: list[FormPart] = []
        self.field_bytes = 0
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin_part,
                "on_header_field": self._extend_header_name,
                "on_header_value": self._extend_header_value,
                "on_header_end": self._end_header,
                "on_headers_finished": self._end_headers,
                "on_part_data": self._add_data,
                "on_end": self._end,
            },
            max_header_count=_MAX_HEADERS,
            max_header_size=limits.max_header_bytes,
        )

    def feed(self, data: bytes) -> None:
        """Parse the next bytes. Raise `Refusal`."""
        if self._ended:
            return  # the epilogue has no meaning
        self._delimiters += data.count(self._parser.boundary)
        if self._delimiters > self._limits.max_parts + _MAX_FALSE_DELIMITERS:
            raise self._refuse_parts()
        try:
            self._parser.write(data)
        except MultipartParseError as error:
            if str(error).startswith("Maximum header"):
                raise self._refuse_headers() from None
            raise Refusal(400, "the body is not valid multipart/form-data") from None
        except FormParserError:
            raise Refusal(400, "the body is not valid multipart/form-data") from None

    def finish(self) -> None:
        """Check that the form is complete. Raise `Refusal`."""
        if not self._ended:
            raise Refusal(400, "the multipart body is incomplete: its closing boundary is missing")

    def release(self) -> None:
        """Break the reference cycle, so that memory is freed without the garbage collector."""
        self._parser.callbacks = {}

    # Callbacks of the parser

    def _begin_part(self) -> None:
        if len(self.parts) >= self._limits.max_parts:
            raise self._refuse_parts()
        self._headers = {}
        self._header_bytes = 0
        self._part = None

    def _refuse_parts(self) -> Refusal:
        return Refusal(413, f"the form has more than {self._limits.max_parts} parts", "form_parts")

    def _extend_header_name(self, data: bytes, start: int, end: int) -> None:
        self._count_header(end - start)
        self._header_name += data[start:end]

    def _extend_header_value(self, data: bytes, start: int, end: int) -> None:
        self._count_header(end - start)
        self._header_value += data[start:end]

    def _count_header(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > self._limits.max_header_bytes:
            raise self._refuse_headers()

    def _refuse_headers(self) -> Refusal:
        message = f"the headers of a part exceed {_MAX_HEADERS} lines or {self._limits.max_header_bytes} bytes"
        return Refusal(431, message, "form_header_bytes")

    def _end_header(self) -> None:
        name = self._header_name.decode("latin-1").lower()
        self._headers[name] = self._header_value.decode("utf-8", "replace")
        self._header_name.clear()
        self._header_value.clear()

    def _end_headers(self) -> None:
        encoding = self._headers.get("content-transfer-encoding", "binary").strip().lower()
        if encoding not in ("7bit", "8bit", "binary"):
            raise Refusal(
                400, f"content-transfer-encoding {encoding[:40]!r} is not supported: send the bytes as they are"
            )
        kind, options = _parse_disposition(self._headers.get("content-disposition", ""))
        if kind != "form-data" or "name" not in options:
            raise Refusal(400, 'each part needs `content-disposition: form-data; name="…"`')
        for text in options.values():
            if len(text) > self._limits.max_name_chars:
                message = f"the name of a field or a file exceeds {self._limits.max_name_chars} characters"
                raise Refusal(400, message, "form_name_chars")
        filename = options.get("filename")
        content_type = self._headers.get(
            "content-type", "application/octet-stream" if filename is not None else "text/plain"
        )
        self._part = FormPart(options["name"], filename, content_type, bytearray(), self._spooled_bytes)
        self.parts.append(self._part)

    def _add_data(self, data: bytes, start: int, end: int) -> None:
        part = self._part
        assert part is not None
        part.size += end - start
        if part.filename is not None:
            self._spooled_bytes += end - start
            self._write_file(data[start:end])
            return
        if part.size > self._limits.max_field_bytes:
            raise Refusal(413, f"a form field exceeds {self._limits.max_field_bytes} bytes", "form_field_bytes")
        self.field_bytes += end - start
        part.value += data[start:end]

    def _end(self) -> None:
        self._ended = True


def _parse_disposition(header: str) -> tuple[str, dict[str, str]]:
    """Return the disposition, and its name and filename. Clients send names as UTF-8."""
    kind, options = parse_options_header(header.encode("utf-8").decode("latin-1"))
    names = {key.decode("latin-1"): value.decode("utf-8", "replace") for key, value in options.items()}
    return kind.decode("latin-1"), {key: names[key] for key in ("name", "filename") if key in names}
