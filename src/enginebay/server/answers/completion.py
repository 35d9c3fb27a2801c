"""The forms of /v1/completions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from enginebay.contract import TokenLogprobs
from enginebay.contract.messages import Usage
from enginebay.server.answers.choice import Choice, usage_object
from enginebay.server.answers.logprobs import TokenBytes, completion_logprobs

_encode = msgspec.json.Encoder().encode


@dataclass(slots=True)
class CompletionForm:
    """Writes one answer, in events or whole. `echoes` holds the text each choice begins with."""

    id: str
    created: int
    model: str
    fingerprint: str
    echoes: Sequence[str]
    with_logprobs: bool
    include_usage: bool
    token_bytes: TokenBytes
    _written: dict[int, int] = field(default_factory=dict)  # characters of each choice so far

    # Whole

    def body(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        return _encode(
            {
                "id": self.id,
                "object": "text_completion",
                "created": self.created,
                "model": self.model,
                "choices": [self._choice(choice) for choice in choices],
                "usage": usage_object(usage),
                "system_fingerprint": self.fingerprint,
            }
        )

    def _choice(self, choice: Choice) -> dict[str, Any]:
        echo = self.echoes[choice.index]
        logprobs = None
        if self.with_logprobs:
            logprobs = completion_logprobs(choice.logprobs, self.token_bytes, len(echo))
        return {
            "index": choice.index, "text": echo + choice.text, "logprobs": logprobs,
            "finish_reason": choice.finish_reason,
        }  # fmt: skip

    # Streamed

    def _head(self) -> bytes:
        return b'data: {"id":%b,"object":"text_completion","created":%d,"model":%b,"system_fingerprint":%b,' % (
            _encode(self.id), self.created, _encode(self.model), _encode(self.fingerprint)
        )  # fmt: skip

    def _tail(self) -> bytes:
        return b"]" + (b',"usage":null' if self.include_usage else b"") + b"}\n\n"

    def _event(self, index: int, text: str, finish: str | None = None, logprobs: Any = None) -> bytes:
        choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}
        return self._head() + b'"choices":[' + _encode(choice) + self._tail()

    def around(self, index: int) -> tuple[bytes, bytes]:
        before = self._head() + b'"choices":[{"index":%d,"text":' % index
        return before, b',"logprobs":null,"finish_reason":null}' + self._tail()

    def opening(self) -> bytes:
        return b"".join(self._event(index, echo) for index, echo in enumerate(self.echoes) if echo)

    def text(self, index: int, text: str, logprobs: Sequence[TokenLogprobs]) -> bytes:
        shown = None
        if self.with_logprobs and logprobs:
            before = self._written.get(index, len(self.echoes[index]))
            shown = completion_logprobs(logprobs, self.token_bytes, before)
            self._written[index] = before + sum(map(len, shown["tokens"]))
        return self._event(index, text, None, shown)

    def tool(self, choice: Choice, event: Any, call_id: Callable[[], str]) -> bytes:
        raise NotImplementedError("completions call no tools")

    def finish(self, index: int, reason: str) -> bytes:
        return self._event(index, "", reason)

    def closing(self, usage: Usage) -> bytes:
        counts = b""
        if self.include_usage:
            counts = self._head() + b'"choices":[],"usage":' + _encode(usage_object(usage)) + b"}\n\n"
        return counts + b"data: [DONE]\n\n"
