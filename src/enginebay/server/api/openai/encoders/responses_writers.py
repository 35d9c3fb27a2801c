"""Writes the responses of /v1/responses, as JSON or as events."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from enginebay.contract import Delta, TokenLogprobs
from enginebay.errors import EnginebayError
from enginebay.server.api.openai.encoders.responses_encoder import ResponseEncoder, ResponseEventEncoder
from enginebay.server.api.openai.encoders.responses_output import OutputParser, ResponseOutput
from enginebay.server.api.openai.response_objects import ResponseObject
from enginebay.server.encoding.response_writer import ResponseWriter
from enginebay.server.encoding.sse_writer import SseWriter
from enginebay.server.http.exchange import Exchange
from enginebay.server.sessions.model_session import ModelSession

_encode = msgspec.json.Encoder().encode


class ResponsesJsonWriter(ResponseWriter):
    def __init__(
        self,
        exchange: Exchange,
        session: ModelSession,
        encoder: ResponseEncoder,
        output: ResponseOutput,
        parser: OutputParser,
    ) -> None:
        super().__init__(exchange, session)
        self._encoder = encoder
        self._output = output
        self._parser = parser
        self._engine_finish_reason: str | None = None
        self.defers_end = False  # the caller stores the response, then calls `write_end`
        self.response: ResponseObject | None = None  # once it is finished

    def on_token(self, text: str, token_id: int) -> None:
        self.token_ids.append(token_id)
        self._append(text, (token_id,), ())

    def on_delta(self, delta: Delta) -> None:
        self._count_delta(delta)
        self._append(delta.text, delta.token_ids, delta.logprobs)
        if delta.finish_reason is not None:
            self._engine_finish_reason = self.finish_reason = delta.finish_reason.value

    def _append(self, text: str, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> None:
        for event, event_logprobs in self._parser.feed(text, token_ids, logprobs):
            self._output.append_event(event, event_logprobs)

    def write_completed(self) -> None:
        for event, event_logprobs in self._parser.end():
            self._output.append_event(event, event_logprobs)
        self.response = self._encoder.encode_finished(
            self._output, self.usage, self._engine_finish_reason, self.energy, self._parser.reasoning_tokens
        )
        if not self.defers_end:
            self.write_end()

    def write_end(self) -> None:
        self.exchange.respond(200, _encode(self.response))


class ResponsesSseWriter(SseWriter):
    def __init__(
        self,
        exchange: Exchange,
        session: ModelSession,
        encoder: ResponseEventEncoder,
        parser: OutputParser,
        *,
        with_logprobs: bool,
    ) -> None:
        super().__init__(exchange, session)
        self._encoder = encoder
        self._parser = parser
        self._texts: list[str] = []  # not encoded yet
        self._with_logprobs = with_logprobs
        self._is_plain_text = parser.is_plain_text and not with_logprobs
        self._engine_finish_reason: str | None = None
        self.defers_end = False  # the caller stores the response, then calls `write_end`
        self.response: ResponseObject | None = None  # once it is finished

    def on_token(self, text: str, token_id: int) -> None:
        self.token_ids.append(token_id)
        if self._is_plain_text:
            self._texts.append(text)
        else:
            self._encode_piece(text, (token_id,), ())

    def on_delta(self, delta: Delta) -> None:
        self._count_delta(delta)
        if delta.text or delta.token_ids:
            if self._is_plain_text:
                self._texts.append(delta.text)
            else:
                self._encode_piece(delta.text, delta.token_ids, delta.logprobs)
        if delta.finish_reason is not None:
            self._engine_finish_reason = self.finish_reason = delta.finish_reason.value

    def _encode_piece(self, text: str, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> None:
        self._events_ready += [
            self._encoder.encode_event(*pair) for pair in self._parser.feed(text, token_ids, logprobs)
        ]
        self._is_plain_text = self._parser.is_plain_text and not self._with_logprobs  # once the thought is over

    def _encode_texts(self) -> None:
        if self._texts:
            self._events_ready.append(self._encoder.encode_texts(self._texts))
            self._texts = []

    def _encode_opening(self) -> bytes:
        return self._encoder.encode_opening()

    def write_completed(self) -> None:
        self._encode_texts()
        self._events_ready += [self._encoder.encode_event(*pair) for pair in self._parser.end()]
        self.response = self._encoder.build_finished(
            self.usage, self._engine_finish_reason, self.energy, self._parser.reasoning_tokens
        )
        if self.defers_end:
            self.flush()
        else:
            self.write_end()

    def write_end(self) -> None:
        super().write_completed()

    def _encode_closing(self) -> bytes:
        assert self.response is not None
        return self._encoder.encode_end(self.response)

    def _encode_failure(self, error: EnginebayError) -> bytes:
        return self._encoder.encode_failure(error)
