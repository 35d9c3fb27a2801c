"""From events to the socket: one write per flush, and patience within a bound for clients that read slowly."""

from __future__ import annotations

from enginebay.errors import EnginebayError, TimedOut
from enginebay.server.answers.answer import Answer
from enginebay.server.answers.event_lines import in_lines
from enginebay.server.http.exchange import Exchange
from enginebay.server.served import ServedModel


class Streaming(Answer):
    """Subclasses put the bytes of events into `_ready`, and say what comes first and last."""

    def __init__(self, exchange: Exchange, served: ServedModel) -> None:
        super().__init__(exchange, served)
        self._opened = False
        self._ready: list[bytes] = []  # events not yet written
        self._held = self._held_bytes = 0  # how many of them, and how large, wait for a slow client

    # What subclasses do

    def _shape_texts(self) -> None:
        """Make events of the tokens that are still plain texts."""
        raise NotImplementedError

    def _opening(self) -> bytes:
        raise NotImplementedError

    def _closing(self) -> bytes:
        raise NotImplementedError

    def _failure(self, error: EnginebayError) -> bytes:
        """The last event, when the answer has begun and cannot be finished."""
        raise NotImplementedError

    # To the socket

    @property
    def untouched(self) -> bool:
        return not self._opened

    def pump(self) -> None:
        self._shape_texts()
        if not self._ready:
            return
        if self.exchange.congested:
            self._hold_back()
            return
        self._start()
        self.exchange.write(in_lines(b"".join(self._ready)))
        self._ready = []
        self._held = self._held_bytes = 0

    def _hold_back(self) -> None:
        """The client reads slowly: what it has not taken waits here, up to a bound."""
        self._held_bytes += sum(map(len, self._ready[self._held :]))
        self._held = len(self._ready)
        if self._held_bytes > self.served.limits.stream_buffer_bytes:
            self._ready = []
            self._end(
                TimedOut("the client does not read its stream: over server.limits.stream_buffer_bytes wait for it")
            )
            self.exchange.abort()

    def _start(self) -> None:
        if self._opened:
            return
        self._opened = True
        if not self.exchange.started:  # it has, if the client was told of a wait
            self.exchange.start(200, "text/event-stream; charset=utf-8", {"cache-control": "no-cache"})
        self.exchange.write(in_lines(self._opening()))

    def complete(self) -> None:
        self._shape_texts()
        self._start()
        self.exchange.end(in_lines(b"".join((*self._ready, self._closing()))))
        self._ready = []

    def fail(self, error: EnginebayError) -> None:
        self._shape_texts()
        self.exchange.end(in_lines(b"".join((*self._ready, self._failure(error)))))
