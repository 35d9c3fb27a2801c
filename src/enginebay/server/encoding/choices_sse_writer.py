"""Writes choices as server-sent events: one event per token, one write per flush.

The bytes around a token's text are encoded once per response. A token then costs one JSON string and its share of a join.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from enginebay.contract import Delta, TokenLogprobs
from enginebay.contract.engine_messages import Energy, Usage
from enginebay.errors import EnginebayError
from enginebay.server.encoding.choice_state import ChoiceState, ResponseTiming, count_reasoning_tokens
from enginebay.server.encoding.error_responses import encode_error_body
from enginebay.server.encoding.sse_writer import SseWriter
from enginebay.server.http.exchange import Exchange
from enginebay.server.sessions.model_session import ModelSession


class ChoiceEventEncoder(Protocol):
    """Encodes the server-sent events of one response."""

    with_logprobs: bool

    def encode_opening(self) -> bytes:
        """Return the events before the first token."""

    def build_text_envelope(self, index: int) -> tuple[bytes, bytes]:
        """Return the bytes before and after the JSON string of a text."""

    def encode_text(self, index: int, text: str, logprobs: Sequence[TokenLogprobs]) -> bytes: ...

    def encode_tool_event(self, choice: ChoiceState, event: Any, next_call_id: Callable[[], str]) -> bytes: ...

    def encode_finish(self, index: int, reason: str) -> bytes: ...

    def encode_closing(
        self,
        usage: Usage,
        timing: ResponseTiming,
        energy: Energy | None = None,
        reasoning_tokens: int | None = None,
    ) -> bytes:
        """Return the events after the last one of every choice."""


_encode = msgspec.json.Encoder().encode


class ChoicesSseWriter(SseWriter):
    def __init__(
        self, exchange: Exchange, session: ModelSession, choices: Sequence[ChoiceState], encoder: ChoiceEventEncoder
    ) -> None:
        super().__init__(exchange, session)
        self._choices = choices
        self._encoder = encoder
        self._text_prefix, self._text_suffix = encoder.build_text_envelope(0)
        self._text_separator = self._text_suffix + self._text_prefix
        self._texts: list[str] = []  # of choice 0, not encoded yet
        self._has_details = encoder.with_logprobs or choices[0].token_ids is not None
        self._is_plain_text = choices[0].parser is None and not self._has_details

    def on_token(self, text: str, token_id: int) -> None:
        self.token_ids.append(token_id)
        if self._is_plain_text:
            self._texts.append(text)
        else:
            self._encode_piece(0, text, (token_id,), ())

    def on_delta(self, delta: Delta) -> None:
        self._count_delta(delta)
        self._encode_texts()
        if delta.text or delta.token_ids:
            if self._is_plain_text:
                before, after = self._encoder.build_text_envelope(delta.choice)
                self._events_ready.append(before + _encode(delta.text) + after)
            else:
                self._encode_piece(delta.choice, delta.text, delta.token_ids, delta.logprobs)
        if delta.finish_reason is not None:
            self._finish_choice(self._choices[delta.choice], delta.finish_reason.value)

    def _encode_piece(self, index: int, text: str, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> None:
        choice = self._choices[index]
        if choice.token_ids is not None:
            choice.token_ids.extend(token_ids)
        if choice.parser is None:
            self._events_ready.append(self._encoder.encode_text(index, text, logprobs))
            return
        events = choice.parse(self.session.restore_markers(text, token_ids), token_ids)
        self._encode_events(choice, events, logprobs)
        if choice.is_plain_answer and len(self._choices) == 1 and not self._has_details:
            self._is_plain_text = True  # the thought is over

    def _encode_events(self, choice: ChoiceState, events: Sequence[object], logprobs: Sequence[TokenLogprobs]) -> None:
        if logprobs:
            self._events_ready.append(self._encoder.encode_text(choice.index, "", logprobs))
        for event in events:
            self._events_ready.append(self._encoder.encode_tool_event(choice, event, self.session.next_call_id))

    def _finish_choice(self, choice: ChoiceState, reason: str) -> None:
        if choice.parser is not None:
            self._encode_events(choice, choice.parser.end(), ())
        self.finish_reason = "tool_calls" if choice.calls and reason == "stop" else reason
        self._events_ready.append(self._encoder.encode_finish(choice.index, self.finish_reason))

    def _encode_texts(self) -> None:
        if self._texts:
            self._events_ready.append(
                self._text_prefix + self._text_separator.join(map(_encode, self._texts)) + self._text_suffix
            )
            self._texts = []

    def _encode_opening(self) -> bytes:
        return self._encoder.encode_opening()

    def _encode_closing(self) -> bytes:
        reasoning_tokens = count_reasoning_tokens(self._choices, self.usage)
        return self._encoder.encode_closing(self.usage, self.timing, self.energy, reasoning_tokens)

    def _encode_failure(self, error: EnginebayError) -> bytes:
        return b"data: %b\n\n" % encode_error_body(error)
