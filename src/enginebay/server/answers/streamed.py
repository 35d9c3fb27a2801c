"""An answer streamed as server-sent events: one event per token, one write per flush.

The bytes around a token's text are made once per answer; a token then costs one JSON string and its share of a join.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from enginebay.contract import Delta, TokenLogprobs
from enginebay.errors import EnginebayError
from enginebay.server.answers.choice import Choice
from enginebay.server.answers.events import Events
from enginebay.server.answers.streaming import Streaming
from enginebay.server.failures import error_body
from enginebay.server.http.exchange import Exchange
from enginebay.server.served import ServedModel

_encode = msgspec.json.Encoder().encode


class Streamed(Streaming):
    def __init__(self, exchange: Exchange, served: ServedModel, choices: Sequence[Choice], events: Events) -> None:
        super().__init__(exchange, served)
        self._choices = choices
        self._events = events
        self._before, self._after = events.around(0)
        self._between = self._after + self._before
        self._texts: list[str] = []  # of choice 0, not yet made into events
        self._plain = choices[0].parser is None and not events.with_logprobs

    # Tokens to events

    def token(self, text: str, token_id: int) -> None:
        self._fresh += 1
        if self._plain:
            self._texts.append(text)
        else:
            self._piece(0, text, (token_id,), ())

    def delta(self, delta: Delta) -> None:
        self._count(delta)
        self._shape_texts()
        if delta.text or delta.token_ids:
            if self._plain:
                before, after = self._events.around(delta.choice)
                self._ready.append(before + _encode(delta.text) + after)
            else:
                self._piece(delta.choice, delta.text, delta.token_ids, delta.logprobs)
        if delta.finish_reason is not None:
            self._finish(self._choices[delta.choice], delta.finish_reason.value)

    def _piece(self, index: int, text: str, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> None:
        choice = self._choices[index]
        if choice.parser is None:
            self._ready.append(self._events.text(index, text, logprobs))
            return
        self._tool_events(choice, choice.parser.feed(self.served.marked(text, token_ids)), logprobs)

    def _tool_events(self, choice: Choice, events: Sequence[object], logprobs: Sequence[TokenLogprobs]) -> None:
        if logprobs:
            self._ready.append(self._events.text(choice.index, "", logprobs))
        for event in events:
            self._ready.append(self._events.tool(choice, event, self.served.call_id))

    def _finish(self, choice: Choice, reason: str) -> None:
        if choice.parser is not None:
            self._tool_events(choice, choice.parser.end(), ())
        self.finish_reason = "tool_calls" if choice.calls and reason == "stop" else reason
        self._ready.append(self._events.finish(choice.index, self.finish_reason))

    def _shape_texts(self) -> None:
        if self._texts:
            self._ready.append(self._before + self._between.join(map(_encode, self._texts)) + self._after)
            self._texts = []

    # What is written around them

    def _opening(self) -> bytes:
        return self._events.opening()

    def _closing(self) -> bytes:
        return self._events.closing(self.usage, self.times, self.energy)

    def _failure(self, error: EnginebayError) -> bytes:
        return b"data: %b\n\n" % error_body(error)
