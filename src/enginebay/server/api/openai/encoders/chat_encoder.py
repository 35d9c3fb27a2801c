"""Encodes the responses of /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import msgspec
from msgspec import UNSET

from enginebay.contract import TokenLogprobs
from enginebay.server.api.openai import response_objects as objects
from enginebay.server.api.openai.encoders.choices_encoder import ChoicesEncoder
from enginebay.server.api.openai.encoders.logprobs import encode_chat_logprobs
from enginebay.server.encoding.choice_state import ChoiceState
from enginebay.text.output_events import ReasoningText, ToolCallArguments, ToolCallStart

_encode = msgspec.json.Encoder().encode


@dataclass(slots=True, kw_only=True)
class ChatEncoder(ChoicesEncoder):
    """Encodes one chat completion, as JSON or as events."""

    body_type = objects.ChatCompletionObject
    chunk_object_name: ClassVar[bytes] = b"chat.completion.chunk"

    choices: int
    _reasoning_envelopes: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)

    # JSON

    def _encode_choice(self, choice: ChoiceState) -> objects.ChatChoiceObject:
        message = objects.AssistantMessageObject(content=choice.text)
        if choice.calls:
            message.content = message.content or None
            message.tool_calls = [
                objects.MessageToolCallObject(
                    id=call.id, function=objects.CalledFunctionObject(call.name, call.arguments)
                )
                for call in choice.calls
            ]
        if choice.reasoning_texts:
            message.reasoning_content = message.reasoning = "".join(choice.reasoning_texts)
        logprobs = encode_chat_logprobs(choice.logprobs, self.token_bytes) if self.with_logprobs else None
        finish_reason = cast("objects.FinishReason", choice.finish_reason)
        ids = UNSET if choice.token_ids is None else choice.token_ids
        return objects.ChatChoiceObject(choice.index, message, logprobs, finish_reason, ids)

    def _build_prompt_fields(self) -> dict[str, Any]:
        return {"prompt_token_ids": self.prompt_ids[0]} if self.prompt_ids else {}

    # Events

    def _encode_event(self, index: int, delta: Any, finish: str | None = None, logprobs: Any = None) -> bytes:
        return self._encode_chunk({"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish})

    def build_text_envelope(self, index: int) -> tuple[bytes, bytes]:
        before = self._chunk_prefix() + b'{"index":%d,"delta":{"content":' % index
        return before, b'},"logprobs":null,"finish_reason":null}' + self._chunk_suffix()

    def encode_opening(self) -> bytes:
        role = {"role": "assistant", "content": "", "refusal": None}
        events = [self._encode_event(index, role) for index in range(self.choices)]
        if self.prompt_ids:
            ending = b',"prompt_token_ids":%b}\n\n' % _encode(self.prompt_ids[0])
            events = [event.removesuffix(b"}\n\n") + ending for event in events]
        return b"".join(events)

    def encode_text(self, index: int, text: str, logprobs: Sequence[TokenLogprobs]) -> bytes:
        encoded = encode_chat_logprobs(logprobs, self.token_bytes) if self.with_logprobs and logprobs else None
        return self._encode_event(index, {"content": text}, None, encoded)

    def encode_tool_event(self, choice: ChoiceState, event: Any, next_call_id: Callable[[], str]) -> bytes:
        if isinstance(event, ToolCallStart):
            choice.append_event(event, next_call_id())
            call = choice.calls[-1]
            function = {"name": call.name, "arguments": ""}
            start = {"index": event.index, "id": call.id, "type": "function", "function": function}
            return self._encode_event(choice.index, {"tool_calls": [start]})
        if isinstance(event, ToolCallArguments):
            fragment = {"index": event.index, "function": {"arguments": event.fragment}}
            return self._encode_event(choice.index, {"tool_calls": [fragment]})
        if isinstance(event, ReasoningText) and self.token_ids:
            return self._encode_event(choice.index, {"reasoning_content": event.text, "reasoning": event.text})
        if isinstance(event, ReasoningText):
            before, after = self._get_reasoning_envelope(choice.index)
            text = _encode(event.text)
            return b'%b%b,"reasoning":%b%b' % (before, text, text, after)
        return self._encode_event(choice.index, {"content": event.text})

    def _get_reasoning_envelope(self, index: int) -> tuple[bytes, bytes]:
        """Return the bytes before and after a thought's text, encoded once: thoughts are long."""
        if index not in self._reasoning_envelopes:
            _, after = self.build_text_envelope(index)
            before = self._chunk_prefix() + b'{"index":%d,"delta":{"reasoning_content":' % index
            self._reasoning_envelopes[index] = before, after
        return self._reasoning_envelopes[index]

    def encode_finish(self, index: int, reason: str) -> bytes:
        return self._encode_event(index, {}, reason)
