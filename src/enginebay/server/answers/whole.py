"""An answer given in one piece: the stream, collected."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from enginebay.contract import Delta
from enginebay.contract.messages import Energy, Usage
from enginebay.server.answers.answer import Answer
from enginebay.server.answers.choice import Choice
from enginebay.server.http.exchange import Exchange
from enginebay.server.served import ServedModel

Body = Callable[[Sequence[Choice], Usage, Energy | None], bytes]


class Whole(Answer):
    """Collects choices and answers once."""

    def __init__(self, exchange: Exchange, served: ServedModel, choices: Sequence[Choice], body: Body) -> None:
        super().__init__(exchange, served)
        self._choices = choices
        self._body = body
        self._texts = choices[0].texts
        self._marked = choices[0].parser is not None and bool(served.markers)

    def token(self, text: str, token_id: int) -> None:
        self._fresh += 1
        self._texts.append(self.served.marked(text, (token_id,)) if self._marked else text)

    def delta(self, delta: Delta) -> None:
        choice = self._choices[delta.choice]
        self._count(delta)
        choice.texts.append(self.served.marked(delta.text, delta.token_ids) if self._marked else delta.text)
        choice.logprobs += delta.logprobs
        if delta.finish_reason is not None:
            choice.finish_reason = self.finish_reason = delta.finish_reason.value

    def complete(self) -> None:
        for choice in self._choices:
            if choice.parser is not None:
                self._parse(choice)
        self.exchange.respond(200, self._body(self._choices, self.usage, self.energy))

    def _parse(self, choice: Choice) -> None:
        assert choice.parser is not None
        text = choice.text
        choice.texts.clear()
        for event in (*choice.parser.feed(text), *choice.parser.end()):
            choice.take(event, self.served.call_id())
        if choice.calls and choice.finish_reason == "stop":
            choice.finish_reason = self.finish_reason = "tool_calls"
