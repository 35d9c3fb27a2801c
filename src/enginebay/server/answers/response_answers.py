"""A response on its way from the engine to the client, in one piece or as events."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from enginebay.contract import Delta, TokenLogprobs
from enginebay.errors import EnginebayError
from enginebay.server.answers.answer import Answer
from enginebay.server.answers.output import Output, Reader
from enginebay.server.answers.response import ResponseEvents, ResponseForm
from enginebay.server.answers.streaming import Streaming
from enginebay.server.http.exchange import Exchange
from enginebay.server.served import ServedModel

_encode = msgspec.json.Encoder().encode


class WholeResponse(Answer):
    def __init__(
        self, exchange: Exchange, served: ServedModel, form: ResponseForm, output: Output, reader: Reader
    ) -> None:
        super().__init__(exchange, served)
        self._form = form
        self._output = output
        self._reader = reader
        self._reason: str | None = None

    def token(self, text: str, token_id: int) -> None:
        self._fresh += 1
        self._take(text, (token_id,), ())

    def delta(self, delta: Delta) -> None:
        self._count(delta)
        self._take(delta.text, delta.token_ids, delta.logprobs)
        if delta.finish_reason is not None:
            self._reason = self.finish_reason = delta.finish_reason.value

    def _take(self, text: str, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> None:
        for event, known in self._reader.read(text, token_ids, logprobs):
            self._output.take(event, known)

    def complete(self) -> None:
        for event, known in self._reader.end():
            self._output.take(event, known)
        whole = self._form.finished(self._output, self.usage, self._reason, self.energy)
        self.exchange.respond(200, _encode(whole))


class StreamedResponse(Streaming):
    def __init__(
        self, exchange: Exchange, served: ServedModel, events: ResponseEvents, reader: Reader, *, with_logprobs: bool
    ) -> None:
        super().__init__(exchange, served)
        self._events = events
        self._reader = reader
        self._texts: list[str] = []  # not yet made into events
        self._plain = reader.plain and not with_logprobs
        self._reason: str | None = None

    def token(self, text: str, token_id: int) -> None:
        self._fresh += 1
        if self._plain:
            self._texts.append(text)
        else:
            self._piece(text, (token_id,), ())

    def delta(self, delta: Delta) -> None:
        self._count(delta)
        if delta.text or delta.token_ids:
            if self._plain:
                self._texts.append(delta.text)
            else:
                self._piece(delta.text, delta.token_ids, delta.logprobs)
        if delta.finish_reason is not None:
            self._reason = self.finish_reason = delta.finish_reason.value

    def _piece(self, text: str, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> None:
        self._ready += [self._events.event(*found) for found in self._reader.read(text, token_ids, logprobs)]

    def _shape_texts(self) -> None:
        if self._texts:
            self._ready.append(self._events.texts(self._texts))
            self._texts = []

    def _opening(self) -> bytes:
        return self._events.opening()

    def _closing(self) -> bytes:
        held_back = b"".join(self._events.event(*found) for found in self._reader.end())
        return held_back + self._events.closing(self.usage, self._reason, self.energy)

    def _failure(self, error: EnginebayError) -> bytes:
        return self._events.failure(error)
