"""Build the path and JSON body of a remote request. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from enginebay.contract import GenerateRequest, Guided, Sampling
from enginebay.engines.openai.spec import EXTRAS
from enginebay.errors import ContextOverflow, InvalidRequest, Unsupported

CHAT_PATH = "/chat/completions"
COMPLETIONS_PATH = "/completions"

_CHAT_FIELDS = ("tools", "tool_choice", "parallel_tool_calls", "reasoning_effort")
_PENALTIES = ("presence_penalty", "frequency_penalty")
_SPECIAL_TOKEN_MARGIN = 16  # special tokens that a server may add to a text


@dataclass(frozen=True, slots=True)
class OpenAIBodyBuilder:
    """Builds requests for one server."""

    model: str
    context_length: int = 0  # 0: unknown
    extras: bool = False
    neutral: bool = True
    max_tokens_name: str = "max_tokens"

    def build(self, request: GenerateRequest) -> tuple[str, bytes]:
        """Return path and body. Raises a `RequestError` for unsupported parameters."""
        sampling = request.sampling
        chat = request.messages is not None
        body: dict[str, Any] = {"model": self.model, "stream": True, "stream_options": {"include_usage": True}}
        body |= self._build_chat(request) if chat else self._build_prompt(request)
        body |= self._build_sampling(sampling)
        if sampling.stop:
            body["stop"] = list(sampling.stop)
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        if sampling.n > 1:
            body["n"] = sampling.n
        if sampling.logit_bias:
            body["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias.items()}
        if sampling.guided is not None:
            body |= self._build_guided(sampling.guided, chat)
        if self.extras:
            body |= self._build_extras(sampling)
        return CHAT_PATH if chat else COMPLETIONS_PATH, _encode(body)

    def _build_chat(self, request: GenerateRequest) -> dict[str, Any]:
        body: dict[str, Any] = {"messages": [dict(message) for message in request.messages or ()]}
        for name, value in request.extras.items():
            if name not in _CHAT_FIELDS and not self.extras:
                raise Unsupported(f"{name} is not part of OpenAI's API", EXTRAS, param=name)
            if value is not None and value != [] and name not in _RESERVED_FIELDS:
                body[name] = value
        if request.sampling.max_tokens is not None:
            body[self.max_tokens_name] = request.sampling.max_tokens
        return body

    def _build_prompt(self, request: GenerateRequest) -> dict[str, Any]:
        for name, value in request.extras.items():
            if value is not None and value != []:
                raise Unsupported(
                    f"{name} only applies to a chat, and this is a plain prompt", "send messages", param=name
                )
        prompt = list(request.token_ids) if request.token_ids is not None else request.text
        return {"prompt": prompt, "max_tokens": self._resolve_max_tokens(request)}

    def _resolve_max_tokens(self, request: GenerateRequest) -> int:
        """Return max_tokens. It is always sent, since servers stop after 16 tokens by default."""
        if request.sampling.max_tokens is not None:
            return request.sampling.max_tokens
        if request.token_ids is not None:
            remaining = self.context_length - len(request.token_ids)
            if self.context_length and remaining < 1:
                raise ContextOverflow(
                    f"the prompt ({len(request.token_ids)} tokens) plus output exceeds the model's context length of "
                    f"{self.context_length} tokens",
                    "shorten the prompt",
                    param="prompt",
                )
        else:  # a token has at least one byte
            remaining = self.context_length - len((request.text or "").encode(errors="replace")) - _SPECIAL_TOKEN_MARGIN
        if remaining < 1:
            raise InvalidRequest(
                "the remaining context of the remote model is unknown",
                "set max_tokens",
                param="max_tokens",
            )
        return remaining

    def _build_sampling(self, sampling: Sampling) -> dict[str, Any]:
        body = {name: getattr(sampling, name) for name in ("temperature", "top_p", *_PENALTIES)}
        if self.neutral:
            body = {name: sampling.value(name) for name in body}
        if sampling.greedy:
            body |= {"temperature": 0.0}
        return {name: value for name, value in body.items() if value is not None}

    def _build_guided(self, guided: Guided, chat: bool) -> dict[str, Any]:
        if guided.json is None:
            constraint = {"regex": guided.regex, "grammar": guided.grammar, "choice": guided.choice}
            return {"structured_outputs": {name: value for name, value in constraint.items() if value is not None}}
        if not chat and not self.extras:
            raise Unsupported(
                "OpenAI's API supports guided output for chats only", f"send messages, or {EXTRAS}", param="guided_json"
            )
        schema = json.loads(guided.json)
        if not schema:
            return {"response_format": {"type": "json_object"}}
        named = {"name": "answer", "schema": schema, "strict": True}
        return {"response_format": {"type": "json_schema", "json_schema": named}}

    def _build_extras(self, sampling: Sampling) -> dict[str, Any]:
        body: dict[str, Any] = {}
        for name in ("top_k", "min_p", "repetition_penalty"):
            value = sampling.value(name) if self.neutral else getattr(sampling, name)
            if value is not None:
                body[name] = value
        if body.get("top_k") == 0:
            body["top_k"] = -1  # disabled, on old and new servers
        if sampling.min_tokens:
            body["min_tokens"] = sampling.min_tokens
        if sampling.stop_token_ids:
            body["stop_token_ids"] = list(sampling.stop_token_ids)
        if sampling.ignore_eos:
            body["ignore_eos"] = True
        return body


_RESERVED_FIELDS = frozenset(("model", "stream", "stream_options", "messages", "prompt"))


def _encode(body: Mapping[str, Any]) -> bytes:
    # ASCII, because a lone surrogate fits no other encoding.
    return json.dumps(body, separators=(",", ":")).encode("ascii")
