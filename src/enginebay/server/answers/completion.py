"""The forms of /v1/completions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from enginebay.contract import TokenLogprobs
from enginebay.server.answers.choice import Choice
from enginebay.server.answers.form import Form
from enginebay.server.answers.logprobs import completion_logprobs


@dataclass(slots=True, kw_only=True)
class CompletionForm(Form):
    """Writes one answer, in events or whole. `echoes` holds the text each choice begins with."""

    whole: ClassVar[str] = "text_completion"
    chunk: ClassVar[bytes] = b"text_completion"

    echoes: Sequence[str]
    _written: dict[int, int] = field(default_factory=dict)  # characters of each choice so far

    # Whole

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

    def _event(self, index: int, text: str, finish: str | None = None, logprobs: Any = None) -> bytes:
        return self._chunk({"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish})

    def around(self, index: int) -> tuple[bytes, bytes]:
        before = self._head() + b'{"index":%d,"text":' % index
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
