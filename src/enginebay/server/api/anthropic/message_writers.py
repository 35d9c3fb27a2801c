"""Writes the responses of /v1/messages, as JSON or as events."""

from __future__ import annotations

from collections.abc import Sequence

from enginebay.contract import Delta
from enginebay.errors import EnginebayError
from enginebay.server.api.anthropic.message_encoder import (
    BlockSequence,
    MessageEncoder,
    MessageEnd,
    MessageEventEncoder,
    collect_blocks,
    find_end,
)
from enginebay.server.encoding.response_writer import ResponseWriter
from enginebay.server.encoding.sse_writer import SseWriter
from enginebay.server.http.exchange import Exchange
from enginebay.server.sessions.model_session import ModelSession
from enginebay.text.output_events import AnswerText, OutputEvent, OutputEventParser


class MessageJsonWriter(ResponseWriter):
    def __init__(
        self,
        exchange: Exchange,
        session: ModelSession,
        encoder: MessageEncoder,
        parser: OutputEventParser | None,
        stop_sequences: Sequence[str],
    ) -> None:
        super().__init__(exchange, session)
        self._encoder = encoder
        self._parser = parser
        self._blocks = BlockSequence(session.next_call_id)
        self._stop_sequences = stop_sequences
        self._matched_stop: str | int | None = None
        self._texts: list[str] = []  # of a plain text
        self._events: list[OutputEvent] = []

    def on_token(self, text: str, token_id: int) -> None:
        self.token_ids.append(token_id)
        self._append(text, (token_id,))

    def on_delta(self, delta: Delta) -> None:
        self._count_delta(delta)
        self._append(delta.text, delta.token_ids)
        if delta.finish_reason is not None:
            self.finish_reason, self._matched_stop = delta.finish_reason.value, delta.stop_reason

    def _append(self, text: str, token_ids: Sequence[int]) -> None:
        if self._parser is None:
            self._texts.append(text)
        elif text or token_ids:
            self._events += self._parser.feed(self.session.restore_markers(text, token_ids))

    def write_completed(self) -> None:
        events = [AnswerText("".join(self._texts))] if self._parser is None else [*self._events, *self._parser.end()]
        content = collect_blocks(events, self._blocks)
        end = find_end(self.finish_reason, self._matched_stop, self._stop_sequences, self._blocks.has_calls)
        self.finish_reason = _name_finish(self.finish_reason, end)
        self.exchange.respond(200, self._encoder.encode_message(content, self.usage, end))


class MessageSseWriter(SseWriter):
    def __init__(
        self,
        exchange: Exchange,
        session: ModelSession,
        encoder: MessageEncoder,
        parser: OutputEventParser | None,
        stop_sequences: Sequence[str],
        prompt_tokens: int,
    ) -> None:
        super().__init__(exchange, session)
        self._blocks = BlockSequence(session.next_call_id)
        self._encoder = MessageEventEncoder(encoder, self._blocks, prompt_tokens)
        self._parser = parser
        self._stop_sequences = stop_sequences
        self._matched_stop: str | int | None = None
        self._texts: list[str] = []  # not encoded yet

    def on_token(self, text: str, token_id: int) -> None:
        self.token_ids.append(token_id)
        if self._parser is not None:
            self._encode_events(self._parser.feed(self.session.restore_markers(text, (token_id,))))
        elif text:
            self._texts.append(text)

    def on_delta(self, delta: Delta) -> None:
        self._count_delta(delta)
        if self._parser is not None:
            if delta.text or delta.token_ids:
                self._encode_events(self._parser.feed(self.session.restore_markers(delta.text, delta.token_ids)))
        elif delta.text:
            self._texts.append(delta.text)
        if delta.finish_reason is not None:
            self.finish_reason, self._matched_stop = delta.finish_reason.value, delta.stop_reason

    def _encode_events(self, events: Sequence[OutputEvent]) -> None:
        self._events_ready += [encoded for event in events if (encoded := self._encoder.encode_event(event))]

    def _encode_texts(self) -> None:
        if self._texts:
            if encoded := self._encoder.encode_texts(self._texts):
                self._events_ready.append(encoded)
            self._texts = []

    def _encode_opening(self) -> bytes:
        return self._encoder.encode_opening()

    def _encode_closing(self) -> bytes:
        held_back = [] if self._parser is None else self._parser.end()
        last = b"".join([self._encoder.encode_event(event) for event in held_back])
        end = find_end(self.finish_reason, self._matched_stop, self._stop_sequences, self._blocks.has_calls)
        self.finish_reason = _name_finish(self.finish_reason, end)
        return last + self._encoder.encode_closing(self.usage, end)

    def _encode_failure(self, error: EnginebayError) -> bytes:
        return self.error_form.encode_event(error)


def _name_finish(finish_reason: str, end: MessageEnd) -> str:
    """Return the finish reason for log and traces, by the names that all endpoints use."""
    return "tool_calls" if end.reason == "tool_use" else finish_reason
