"""Writes server-sent events: one write per flush, and a bounded buffer for slow clients."""

from __future__ import annotations

from enginebay.errors import EnginebayError, TimedOut
from enginebay.server.encoding.response_writer import ResponseWriter
from enginebay.server.encoding.sse_escape import escape_line_separators
from enginebay.server.http.exchange import Exchange
from enginebay.server.sessions.model_session import ModelSession


class SseWriter(ResponseWriter):
    """Subclasses append encoded events to `_events_ready`, and encode the opening and the closing."""

    content_type = "text/event-stream; charset=utf-8"

    def __init__(self, exchange: Exchange, session: ModelSession) -> None:
        super().__init__(exchange, session)
        self._started = False
        self._events_ready: list[bytes] = []  # not written yet
        self._held = bytearray()  # earlier ones, buffered for a slow client

    # For subclasses

    def _encode_texts(self) -> None:
        """Encode the pending texts as events."""
        raise NotImplementedError

    def _encode_opening(self) -> bytes:
        raise NotImplementedError

    def _encode_closing(self) -> bytes:
        raise NotImplementedError

    def _encode_failure(self, error: EnginebayError) -> bytes:
        """Return the last event of a stream that started and failed."""
        raise NotImplementedError

    @property
    def no_output_sent(self) -> bool:
        return not self._started

    def flush(self) -> None:
        self._encode_texts()
        if not self._events_ready and not self._held:
            return
        if self.exchange.congested:
            self._buffer_for_slow_client()
            return
        self._start_stream()
        self.exchange.write(escape_line_separators(b"".join(self._take_events())))

    def _take_events(self) -> list[bytes]:
        events, self._events_ready = self._events_ready, []
        if self._held:
            events.insert(0, bytes(self._held))
            self._held = bytearray()
            self.exchange.held_bytes = 0
        return events

    def _buffer_for_slow_client(self) -> None:
        """Hold the events back. Abort when they exceed `stream_buffer_bytes`."""
        self._held += b"".join(self._events_ready)  # one object: many small ones would leave their memory in pieces
        self._events_ready = []
        self.exchange.held_bytes = len(self._held)
        if len(self._held) > self.session.limits.stream_buffer_bytes:
            self._take_events()
            self._finish(TimedOut("the client does not read its stream: server.limits.stream_buffer_bytes exceeded"))
            self.exchange.abort()

    def _start_stream(self) -> None:
        if self._started:
            return
        self._started = True
        if not self.exchange.started:  # progress comments may have started it
            self.exchange.start(200, self.content_type, {"cache-control": "no-cache"})
        self.exchange.write(escape_line_separators(self._encode_opening()))

    def write_completed(self) -> None:
        self._encode_texts()
        self._start_stream()
        self.exchange.end(escape_line_separators(b"".join((*self._take_events(), self._encode_closing()))))

    def write_failure(self, error: EnginebayError) -> None:
        self._encode_texts()
        self.exchange.end(escape_line_separators(b"".join((*self._take_events(), self._encode_failure(error)))))
