"""What the forms of chat and of plain completions have in common: an envelope around choices, whole or in events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec

from enginebay.contract.messages import Energy, Usage
from enginebay.server.answers.choice import Choice, Times, energy_object, times_object, usage_object
from enginebay.server.answers.logprobs import TokenBytes

_encode = msgspec.json.Encoder().encode


@dataclass(slots=True, kw_only=True)
class Form:
    """Writes one answer. Subclasses say what a choice looks like."""

    whole: ClassVar[str]  # the `object` of an answer in one piece
    chunk: ClassVar[bytes]  # and that of an event

    id: str
    created: int
    model: str
    fingerprint: str
    with_logprobs: bool
    include_usage: bool
    include_timing: bool = False  # with the usage
    include_energy: bool = False  # likewise
    token_bytes: TokenBytes

    def body(self, choices: Sequence[Choice], usage: Usage, energy: Energy | None = None) -> bytes:
        told = usage_object(usage)
        if self.include_energy:
            told["enginebay"] = energy_object(energy)
        return _encode(
            {
                "id": self.id,
                "object": self.whole,
                "created": self.created,
                "model": self.model,
                "choices": [self._choice(choice) for choice in choices],
                "usage": told,
                "system_fingerprint": self.fingerprint,
            }
        )

    def _choice(self, choice: Choice) -> dict[str, Any]:
        raise NotImplementedError

    def _head(self) -> bytes:
        return b'data: {"id":%b,"object":"%b","created":%d,"model":%b,"system_fingerprint":%b,"choices":[' % (
            _encode(self.id), self.chunk, self.created, _encode(self.model), _encode(self.fingerprint)
        )  # fmt: skip

    def _tail(self) -> bytes:
        return b"]" + (b',"usage":null' if self.include_usage else b"") + b"}\n\n"

    def _chunk(self, choice: dict[str, Any]) -> bytes:
        return self._head() + _encode(choice) + self._tail()

    def closing(self, usage: Usage, times: Times, energy: Energy | None = None) -> bytes:
        counts = b""
        if self.include_usage:
            told = usage_object(usage)
            ours = {
                **(times_object(times) if self.include_timing else {}),
                **(energy_object(energy) if self.include_energy else {}),
            }
            if ours:
                told["enginebay"] = ours
            counts = self._head() + b'],"usage":' + _encode(told) + b"}\n\n"
        return counts + b"data: [DONE]\n\n"
