"""Writes choices as one JSON body."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from enginebay.contract import Delta
from enginebay.contract.engine_messages import Energy, Usage
from enginebay.server.encoding.choice_state import ChoiceState
from enginebay.server.encoding.response_writer import ResponseWriter
from enginebay.server.http.exchange import Exchange
from enginebay.server.sessions.model_session import ModelSession
from enginebay.text.output_events import OutputEvent, OutputEventParser, ToolCallStart

EncodeBody = Callable[[Sequence[ChoiceState], Usage, Energy | None], bytes]


class ChoicesJsonWriter(ResponseWriter):
    """Collects the choices and responds once."""

    def __init__(
        self, exchange: Exchange, session: ModelSession, choices: Sequence[ChoiceState], encode_body: EncodeBody
    ) -> None:
        super().__init__(exchange, session)
        self._choices = choices
        self._encode_body = encode_body
        self._texts = choices[0].texts
        self._is_plain_text = choices[0].parser is None and choices[0].token_ids is None

    def on_token(self, text: str, token_id: int) -> None:
        self.token_ids.append(token_id)
        if self._is_plain_text:
            self._texts.append(text)
        else:
            self._add_piece(self._choices[0], text, (token_id,))

    def on_delta(self, delta: Delta) -> None:
        choice = self._choices[delta.choice]
        self._count_delta(delta)
        if self._is_plain_text:
            choice.texts.append(delta.text)
        elif delta.text or delta.token_ids:
            self._add_piece(choice, delta.text, delta.token_ids)
        choice.logprobs += delta.logprobs
        if delta.finish_reason is not None:
            choice.finish_reason = self.finish_reason = delta.finish_reason.value

    def write_completed(self) -> None:
        for choice in self._choices:
            if choice.parser is not None:
                self._finish_parsing(choice, choice.parser)
        self.exchange.respond(200, self._encode_body(self._choices, self.usage, self.energy))

    def _add_piece(self, choice: ChoiceState, text: str, token_ids: Sequence[int]) -> None:
        if choice.token_ids is not None:
            choice.token_ids.extend(token_ids)
        if choice.parser is None:
            choice.texts.append(text)
            return
        self._append(choice, choice.parse(self.session.restore_markers(text, token_ids), token_ids))

    def _append(self, choice: ChoiceState, events: Sequence[OutputEvent]) -> None:
        for event in events:
            choice.append_event(event, self.session.next_call_id() if isinstance(event, ToolCallStart) else "")

    def _finish_parsing(self, choice: ChoiceState, parser: OutputEventParser) -> None:
        self._append(choice, parser.end())
        if choice.calls and choice.finish_reason == "stop":
            choice.finish_reason = self.finish_reason = "tool_calls"
