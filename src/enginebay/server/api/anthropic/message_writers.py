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
    encode_message_usage,
    find_end,
)
from enginebay.server.api.anthropic.message_objects import MessageUsageObject
from enginebay.server.encoding.choice_state import ChoiceState, count_reasoning_tokens
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
        self._choice = ChoiceState(0, parser)
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
        if self._choice.parser is None:
            self._texts.append(text)
        elif text or token_ids:
            self._events += self._choice.parse(self.session.restore_markers(text, token_ids), token_ids)

    def write_completed(self) -> None:
        parser = self._choice.parser
        events = [AnswerText("".join(self._texts))] if parser is None else [*self._events, *parser.end()]
        content = collect_blocks(events, self._blocks)
        end = find_end(self.finish_reason, self._matched_stop, self._stop_sequences, self._blocks.has_calls)
        self.finish_reason = _name_finish(self.finish_reason, end)
        self.exchange.respond(200, self._encoder.encode_message(content, self._encode_usage(), end))

    def _encode_usage(self) -> MessageUsageObject:
        return encode_message_usage(self.usage, count_reasoning_tokens([self._choice], self.usage))


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
        self._choice = ChoiceState(0, parser)
        self._is_plain_text = parser is None
        self._stop_sequences = stop_sequences
        self._matched_stop: str | int | None = None
        self._texts: list[str] = []  # not encoded yet

    def on_token(self, text: str, token_id: int) -> None:
        self.token_ids.append(token_id)
        if not self._is_plain_text:
            self._encode_piece(text, (token_id,))
        elif text:
            self._texts.append(text)

    def on_delta(self, delta: Delta) -> None:
        self._count_delta(delta)
        if not self._is_plain_text:
            if delta.text or delta.token_ids:
                self._encode_piece(delta.text, delta.token_ids)
        elif delta.text:
            self._texts.append(delta.text)
        if delta.finish_reason is not None:
            self.finish_reason, self._matched_stop = delta.finish_reason.value, delta.stop_reason

    def _encode_piece(self, text: str, token_ids: Sequence[int]) -> None:
        self._encode_events(self._choice.parse(self.session.restore_markers(text, token_ids), token_ids))
        self._is_plain_text = self._choice.is_plain_answer  # the thought is over

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
        held_back = [] if self._choice.parser is None else self._choice.parser.end()
        last = b"".join([self._encoder.encode_event(event) for event in held_back])
        end = find_end(self.finish_reason, self._matched_stop, self._stop_sequences, self._blocks.has_calls)
        self.finish_reason = _name_finish(self.finish_reason, end)
        usage = encode_message_usage(self.usage, count_reasoning_tokens([self._choice], self.usage))
        return last + self._encoder.encode_closing(usage, end)

    def _encode_failure(self, error: EnginebayError) -> bytes:
        return self.error_form.encode_event(error)


def _name_finish(finish_reason: str, end: MessageEnd) -> str:
    """Return the finish reason for log and traces, by the names that all endpoints use."""
    return "tool_calls" if end.reason == "tool_use" else finish_reason
