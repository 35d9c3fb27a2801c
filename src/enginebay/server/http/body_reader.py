"""Reads request bodies within the limits of their routes: into memory, or as a form."""

from __future__ import annotations

from enginebay.server.http.body_encoding import decompress_body
from enginebay.server.http.client_budget import BudgetLease, ClientBudgets
from enginebay.server.http.exchange import Exchange
from enginebay.server.http.form_body import Form, FormSource
from enginebay.server.http.form_parser import is_form, read_boundary
from enginebay.server.http.http_settings import HttpApplication, HttpSettings
from enginebay.server.http.refusal import Refusal

_MAX_FRAMING_FACTOR = (
    8  # bytes on the wire, with chunk sizes, extensions and trailers, as a multiple of the body's limit
)
_UNAUTHENTICATED_BODY_BYTES = 64 << 10  # body size that is read before the key is checked


class BodyReader:
    """Reads the bodies of one connection, one at a time. Every method may raise `Refusal`."""

    __slots__ = ("_application", "_budgets", "_limit", "_max_bytes", "_parts", "_settings", "_size", "_wire_bytes")

    def __init__(self, settings: HttpSettings, application: HttpApplication, budgets: ClientBudgets) -> None:
        self._settings = settings
        self._application = application
        self._budgets = budgets
        self._parts: list[bytes] = []
        self._size = 0
        self._wire_bytes = 0
        self._max_bytes = 0
        self._limit = ""

    def begin(self, exchange: Exchange, source: FormSource) -> None:
        """Check what is known of a body before it arrives."""
        self._size = self._wire_bytes = 0
        rule = self._application.find_body_rule(exchange)
        if rule is None:
            self._max_bytes, self._limit = self._settings.max_body_bytes, "body_bytes"
        else:
            self._max_bytes, self._limit = rule.max_bytes, rule.limit
        headers = exchange.headers
        declared = headers.get("content-length", "")
        size = int(declared) if declared.isdigit() else _UNAUTHENTICATED_BODY_BYTES + 1  # or in chunks
        if declared and size > self._max_bytes:
            raise self._refuse_size()
        takes_form = rule is not None and rule.takes_form and is_form(headers.get("content-type", ""))
        if size > _UNAUTHENTICATED_BODY_BYTES or takes_form:
            refusal = self._application.check_before_body(exchange)
            if refusal is not None:
                raise Refusal(*refusal)
        if takes_form:
            boundary, lease = read_boundary(headers), BudgetLease(self._application.identify_client(exchange))
            exchange.form = Form(boundary, self._settings, self._budgets.forms, lease, source, exchange)

    def count_wire_bytes(self, size: int) -> None:
        """Count what arrives, framing included."""
        self._wire_bytes += size
        if self._wire_bytes > _MAX_FRAMING_FACTOR * self._max_bytes:
            raise self._refuse_size()

    def add(self, exchange: Exchange, data: bytes) -> None:
        self._size = held_bytes = self._size + len(data)
        if held_bytes > self._max_bytes:
            raise self._refuse_size()
        if exchange.form is None:
            self._parts.append(data)
        else:
            exchange.form.feed(data)
            held_bytes = exchange.form.field_bytes
        self.hold(exchange, held_bytes)

    def finish(self, exchange: Exchange) -> None:
        """Set the exchange's body, or complete its form."""
        parts, self._parts = self._parts, []
        if exchange.form is not None:
            exchange.form.finish()
            return
        exchange.body = parts[0] if len(parts) == 1 else b"".join(parts)
        if "content-encoding" not in exchange.headers:
            return
        encoding = exchange.headers["content-encoding"].strip().lower()
        if encoding not in ("identity", ""):
            exchange.body = decompress_body(exchange.body, encoding, self._max_bytes, self._limit)
            self.hold(exchange, len(exchange.body))

    def hold(self, exchange: Exchange, held_bytes: int) -> None:
        """Count a large body."""
        if held_bytes <= _UNAUTHENTICATED_BODY_BYTES:
            return
        if exchange.body_lease is None:
            exchange.body_lease = BudgetLease(self._application.identify_client(exchange))
        self._budgets.bodies.resize(exchange.body_lease, held_bytes)

    def drop(self) -> None:
        """Forget what was read of a body."""
        self._parts = []

    def release(self, exchange: Exchange | None) -> None:
        """Count a body no more: it is answered, refused, or nobody works on it any longer."""
        if exchange is None:
            return
        if exchange.body_lease is not None:
            self._budgets.bodies.release(exchange.body_lease)
        if exchange.form is not None:
            exchange.form.close()

    def _refuse_size(self) -> Refusal:
        return Refusal(413, f"the body exceeds {self._max_bytes} bytes", self._limit)
