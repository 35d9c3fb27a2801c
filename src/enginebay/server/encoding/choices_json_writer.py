"""Writes choices as one JSON body."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from enginebay.contract import Delta
from enginebay.contract.engine_messages import Energy, Usage
from enginebay.server.encoding.choice_state import ChoiceState
from enginebay.server.encoding.response_writer import ResponseWriter
from enginebay.server.http.exchange import Exchange
from enginebay.server.sessions.model_session import ModelSession

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
        self._restores_markers = choices[0].parser is not None and bool(session.markers)

    def on_token(self, text: str, token_id: int) -> None:
        self.token_ids.append(token_id)
        self._texts.append(self.session.restore_markers(text, (token_id,)) if self._restores_markers else text)

    def on_delta(self, delta: Delta) -> None:
        choice = self._choices[delta.choice]
        self._count_delta(delta)
        choice.texts.append(
            self.session.restore_markers(delta.text, delta.token_ids) if self._restores_markers else delta.text
        )
        choice.logprobs += delta.logprobs
        if delta.finish_reason is not None:
            choice.finish_reason = self.finish_reason = delta.finish_reason.value

    def write_completed(self) -> None:
        for choice in self._choices:
            if choice.parser is not None:
                self._parse_tool_calls(choice)
        self.exchange.respond(200, self._encode_body(self._choices, self.usage, self.energy))

    def _parse_tool_calls(self, choice: ChoiceState) -> None:
        assert choice.parser is not None
        text = choice.text
        choice.texts.clear()
        for event in (*choice.parser.feed(text), *choice.parser.end()):
            choice.append_event(event, self.session.next_call_id())
        if choice.calls and choice.finish_reason == "stop":
            choice.finish_reason = self.finish_reason = "tool_calls"
