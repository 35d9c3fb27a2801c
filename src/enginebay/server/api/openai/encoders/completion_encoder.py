"""Encodes the responses of /v1/completions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

from msgspec import UNSET

from enginebay.contract import TokenLogprobs
from enginebay.server.api.openai import response_objects as objects
from enginebay.server.api.openai.encoders.choices_encoder import ChoicesEncoder
from enginebay.server.api.openai.encoders.logprobs import encode_completion_logprobs
from enginebay.server.encoding.choice_state import ChoiceState


@dataclass(slots=True, kw_only=True)
class CompletionEncoder(ChoicesEncoder):
    """Encodes one completion, as JSON or as events. `echoes`: the prompt that each choice starts with, or ""."""

    body_type = objects.CompletionObject
    chunk_object_name: ClassVar[bytes] = b"text_completion"

    echoes: Sequence[str]
    _written_chars: dict[int, int] = field(default_factory=dict)  # per choice

    # JSON

    def _encode_choice(self, choice: ChoiceState) -> objects.CompletionChoiceObject:
        echo = self.echoes[choice.index]
        logprobs = None
        if self.with_logprobs:
            logprobs = encode_completion_logprobs(choice.logprobs, self.token_bytes, len(echo))
        finish_reason = cast("objects.FinishReason | None", choice.finish_reason)
        ids = UNSET if choice.token_ids is None else choice.token_ids
        prompt_ids = list(self.prompt_ids[choice.index]) if self.prompt_ids else UNSET
        return objects.CompletionChoiceObject(
            choice.index, echo + choice.text, logprobs, finish_reason, prompt_ids, ids
        )

    # Events

    def _encode_event(self, index: int, text: str, finish: str | None = None, logprobs: Any = None) -> bytes:
        return self._encode_chunk({"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish})

    def build_text_envelope(self, index: int) -> tuple[bytes, bytes]:
        before = self._chunk_prefix() + b'{"index":%d,"text":' % index
        return before, b',"logprobs":null,"finish_reason":null}' + self._chunk_suffix()

    def encode_opening(self) -> bytes:
        if not self.prompt_ids:
            return b"".join(self._encode_event(index, echo) for index, echo in enumerate(self.echoes) if echo)
        return b"".join(
            self._encode_chunk(
                {"index": index, "text": echo, "logprobs": None, "finish_reason": None, "prompt_token_ids": ids}
            )
            for index, (echo, ids) in enumerate(zip(self.echoes, self.prompt_ids, strict=True))
        )

    def encode_text(self, index: int, text: str, logprobs: Sequence[TokenLogprobs]) -> bytes:
        encoded = None
        if self.with_logprobs and logprobs:
            before = self._written_chars.get(index, len(self.echoes[index]))
            encoded = encode_completion_logprobs(logprobs, self.token_bytes, before)
            self._written_chars[index] = before + sum(map(len, encoded.tokens))
        return self._encode_event(index, text, None, encoded)

    def encode_tool_event(self, choice: ChoiceState, event: Any, next_call_id: Callable[[], str]) -> bytes:
        raise NotImplementedError("completions call no tools")

    def encode_finish(self, index: int, reason: str) -> bytes:
        return self._encode_event(index, "", reason)
