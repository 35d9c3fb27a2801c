"""What a form of streaming must be able to write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from enginebay.contract import TokenLogprobs
from enginebay.contract.messages import Energy, Usage
from enginebay.server.answers.choice import Choice, Times


class Events(Protocol):
    """The server-sent events of one answer, as bytes."""

    with_logprobs: bool

    def opening(self) -> bytes:
        """Before the first token."""

    def around(self, index: int) -> tuple[bytes, bytes]:
        """What stands before and after the JSON string of a piece of text."""

    def text(self, index: int, text: str, logprobs: Sequence[TokenLogprobs]) -> bytes: ...

    def tool(self, choice: Choice, event: Any, call_id: Callable[[], str]) -> bytes: ...

    def finish(self, index: int, reason: str) -> bytes: ...

    def closing(self, usage: Usage, times: Times, energy: Energy | None = None) -> bytes:
        """After the last event of every choice."""
