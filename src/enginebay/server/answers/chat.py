"""The forms of /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from enginebay.contract import TokenLogprobs
from enginebay.server.answers.choice import Choice
from enginebay.server.answers.form import Form
from enginebay.server.answers.logprobs import chat_logprobs
from enginebay.text.tools import CallArguments, CallStart


@dataclass(slots=True, kw_only=True)
class ChatForm(Form):
    """Writes one chat answer, in events or whole."""

    whole: ClassVar[str] = "chat.completion"
    chunk: ClassVar[bytes] = b"chat.completion.chunk"

    choices: int

    # Whole

    def _choice(self, choice: Choice) -> dict[str, Any]:
        text = choice.text
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if choice.calls:
            message["content"] = text or None
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in choice.calls
            ]
        logprobs = chat_logprobs(choice.logprobs, self.token_bytes) if self.with_logprobs else None
        return {
            "index": choice.index, "message": message, "logprobs": logprobs, "finish_reason": choice.finish_reason
        }  # fmt: skip

    # Streamed

    def _event(self, index: int, delta: Any, finish: str | None = None, logprobs: Any = None) -> bytes:
        return self._chunk({"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish})

    def around(self, index: int) -> tuple[bytes, bytes]:
        before = self._head() + b'{"index":%d,"delta":{"content":' % index
        return before, b'},"logprobs":null,"finish_reason":null}' + self._tail()

    def opening(self) -> bytes:
        role = {"role": "assistant", "content": "", "refusal": None}
        return b"".join(self._event(index, role) for index in range(self.choices))

    def text(self, index: int, text: str, logprobs: Sequence[TokenLogprobs]) -> bytes:
        shown = chat_logprobs(logprobs, self.token_bytes) if self.with_logprobs and logprobs else None
        return self._event(index, {"content": text}, None, shown)

    def tool(self, choice: Choice, event: Any, call_id: Callable[[], str]) -> bytes:
        if isinstance(event, CallStart):
            choice.take(event, call_id())
            call = choice.calls[-1]
            function = {"name": call.name, "arguments": ""}
            shown = {"index": event.index, "id": call.id, "type": "function", "function": function}
            return self._event(choice.index, {"tool_calls": [shown]})
        if isinstance(event, CallArguments):
            fragment = {"index": event.index, "function": {"arguments": event.fragment}}
            return self._event(choice.index, {"tool_calls": [fragment]})
        return self._event(choice.index, {"content": event.text})

    def finish(self, index: int, reason: str) -> bytes:
        return self._event(index, {}, reason)
