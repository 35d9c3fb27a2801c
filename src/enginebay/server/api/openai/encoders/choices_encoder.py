"""The envelope that chat completions and completions share, as JSON and as events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec

from enginebay.contract import GenerateRequest
from enginebay.contract.engine_messages import Energy, Usage
from enginebay.server.api.openai.encoders.logprobs import TokenBytes
from enginebay.server.encoding.choice_state import (
    ChoiceState,
    ResponseTiming,
    UsageExtensionObject,
    count_reasoning_tokens,
    encode_energy,
    encode_timing,
    encode_usage,
)
from enginebay.server.requests.request_context import RequestContext

_encode = msgspec.json.Encoder().encode


@dataclass(slots=True, kw_only=True)
class ChoicesEncoder:
    """Encodes one response. Subclasses encode the choices."""

    body_type: ClassVar[Callable[..., msgspec.Struct]]
    chunk_object_name: ClassVar[bytes]  # `object` of an event

    id: str
    created: int
    model: str
    fingerprint: str
    with_logprobs: bool
    include_usage: bool
    include_timing: bool = False  # in the usage
    include_energy: bool = False  # in the usage
    token_bytes: TokenBytes
    token_ids: Sequence[list[int]] = ()  # by choice, those that no event has had; empty: not asked for
    prompt_ids: Sequence[Sequence[int]] = ()  # by choice; empty: not asked for

    def encode_body(self, choices: Sequence[ChoiceState], usage: Usage, energy: Energy | None = None) -> bytes:
        usage_object = encode_usage(usage, count_reasoning_tokens(choices, usage))
        if self.include_energy:
            usage_object.enginebay = UsageExtensionObject(**encode_energy(energy))
        body = self.body_type(
            id=self.id,
            created=self.created,
            model=self.model,
            choices=[self._encode_choice(choice) for choice in choices],
            usage=usage_object,
            system_fingerprint=self.fingerprint,
            **self._build_prompt_fields(),
        )
        return _encode(body)

    def _build_prompt_fields(self) -> dict[str, Any]:
        """Return the fields of the body about the prompt."""
        return {}

    def _encode_choice(self, choice: ChoiceState) -> Any:
        raise NotImplementedError

    def _chunk_prefix(self) -> bytes:
        return b'data: {"id":%b,"object":"%b","created":%d,"model":%b,"system_fingerprint":%b,"choices":[' % (
            _encode(self.id), self.chunk_object_name, self.created, _encode(self.model), _encode(self.fingerprint)
        )  # fmt: skip

    def _chunk_suffix(self) -> bytes:
        return b"]" + (b',"usage":null' if self.include_usage else b"") + b"}\n\n"

    def _encode_chunk(self, choice: dict[str, Any]) -> bytes:
        if self.token_ids and (ids := self.token_ids[choice["index"]]):
            choice["token_ids"] = list(ids)
            ids.clear()
        return self._chunk_prefix() + _encode(choice) + self._chunk_suffix()

    def encode_closing(
        self,
        usage: Usage,
        timing: ResponseTiming,
        energy: Energy | None = None,
        reasoning_tokens: int | None = None,
    ) -> bytes:
        usage_event = b""
        if self.include_usage:
            usage_object = encode_usage(usage, reasoning_tokens)
            own_fields = {
                **(encode_timing(timing) if self.include_timing else {}),
                **(encode_energy(energy) if self.include_energy else {}),
            }
            if own_fields:
                usage_object.enginebay = UsageExtensionObject(**own_fields)
            usage_event = self._chunk_prefix() + b'],"usage":' + _encode(usage_object) + b"}\n\n"
        return usage_event + b"data: [DONE]\n\n"


def plan_token_ids(
    request_context: RequestContext,
    is_wanted: bool | None,
    choices: Sequence[ChoiceState],
    requests: Sequence[GenerateRequest],
) -> tuple[list[list[int]], list[Sequence[int]]]:
    """Return where the token ids of each choice are collected, and those of its prompt; both empty if nobody wants them.

    `requests`: one per prompt, each for as many choices. A remote server's ids are not known, which is noted.
    """
    if not is_wanted:
        return [], []
    session = request_context.session
    prompts = [request.token_ids for request in requests if request.token_ids is not None]
    if len(prompts) < len(requests) or (session is not None and session.client.spec.renders):
        request_context.ignored["return_token_ids"] = "a remote server has the token ids"
        return [], []
    collected: list[list[int]] = [[] for _ in choices]
    for choice, ids in zip(choices, collected, strict=True):
        choice.token_ids = ids
    each = len(choices) // len(prompts)
    return collected, [prompt for prompt in prompts for _ in range(each)]
