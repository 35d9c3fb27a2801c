"""Turns a request into the body that llama.cpp's server takes. Pure.

Every sampler is named and every value given, so that none of the library's own defaults (top_k 40, min_p 0.05) applies.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from enginebay.contract import GenerateRequest, Guided, Sampling
from enginebay.engines.llamacpp.gbnf import choice_to_gbnf, regex_to_gbnf
from enginebay.engines.llamacpp.llguidance_schema import to_llguidance_schema
from enginebay.errors import InvalidRequest, Unsupported

_RANDOM_SEED = 0xFFFFFFFF  # what llama.cpp takes as "draw one"
_LLGUIDANCE_PREFIX = "%llguidance"


@dataclass(frozen=True, slots=True)
class CompletionAttempt:
    """One call of the library: from which tokens on, how many at most, for how many choices."""

    output: Sequence[int]  # generated so far; goes behind the prompt
    budget: int
    choices: int
    seed_offset: int  # added to the seed, so that choices and attempts draw differently
    ban_end_tokens: bool  # end tokens are banned: min_tokens is not reached


class LlamaBodyBuilder:
    """What all calls for one request have in common, computed once. Raises `RequestError` for what cannot be done."""

    def __init__(self, request: GenerateRequest, context_length: int, loras: Mapping[str, int]) -> None:
        sampling = request.sampling
        self._prompt = list(request.token_ids or ())
        self._seed = sampling.seed
        self._ignore_eos = sampling.ignore_eos
        self._stop_ids = sampling.stop_token_ids
        self._bias = _build_logit_bias(sampling, self._prompt)
        self.schema = parse_json_schema(sampling.guided)
        self.lora = {"lora": build_lora_scales(request.lora, loras)} if loras or request.lora else {}
        self._common = {
            "stream": True,
            "verbose": True,  # brings the token ids and the count
            "return_progress": True,  # a chunk for each step of the prompt, which is when a cancel is seen
            "sse_ping_interval": -1,
            **_build_samplers(sampling, context_length),
            **_build_guided(sampling.guided, self.schema),
            **({} if sampling.logprobs is None else {"n_probs": max(sampling.logprobs, 1)}),
            **self.lora,
        }

    def build(self, attempt: CompletionAttempt) -> dict[str, Any]:
        bias: dict[int, Any] = dict(self._bias)
        if attempt.ban_end_tokens:
            bias |= dict.fromkeys(self._stop_ids, False)  # False bans a token altogether
        return {
            **self._common,
            "prompt": [*self._prompt, *attempt.output],
            "n_predict": attempt.budget,
            "n": attempt.choices,
            "seed": fold_seed(self._seed, attempt.seed_offset),
            "ignore_eos": self._ignore_eos or attempt.ban_end_tokens,
            "logit_bias": [[token, value] for token, value in bias.items()],
        }


def fold_seed(seed: int | None, offset: int = 0) -> int:
    """A seed of any size as the 32 bits that llama.cpp takes; small ones stay what they are."""
    if seed is None:
        return _RANDOM_SEED
    wide = seed & 0xFFFFFFFFFFFFFFFF
    return (((wide ^ (wide >> 32)) & 0xFFFFFFFF) + offset) % _RANDOM_SEED


def build_lora_scales(adapter: str | None, loras: Mapping[str, int]) -> list[dict[str, Any]]:
    """Every loaded adapter with its strength: all off but the chosen one."""
    if adapter is not None and adapter not in loras:
        known = ", ".join(loras) or "none"
        raise InvalidRequest(f"there is no adapter {adapter!r}", f"loaded adapters: {known}", param="lora")
    return [{"id": place, "scale": 1.0 if name == adapter else 0.0} for name, place in loras.items()]


def parse_json_schema(guided: Guided | None) -> dict[str, Any] | None:
    """The schema a request asks for, as the library takes it; `{}` means any object."""
    if guided is None or guided.json is None:
        return None
    try:
        schema = json.loads(guided.json)
    except ValueError as problem:
        raise InvalidRequest(f"the JSON schema is not JSON: {problem}", param="guided_json") from None
    if not isinstance(schema, dict):
        raise InvalidRequest(
            "the JSON schema is not an object", 'give one like {"type": "object"}', param="guided_json"
        )
    try:
        return to_llguidance_schema(schema)
    except RecursionError:
        raise InvalidRequest("the JSON schema is nested too deeply", param="guided_json") from None


def _build_guided(guided: Guided | None, schema: dict[str, Any] | None) -> dict[str, Any]:
    if guided is None:
        return {}
    if schema is not None:
        return {"json_schema": schema}
    if guided.regex is not None:
        return {"grammar": regex_to_gbnf(guided.regex)}
    if guided.choice is not None:
        return {"grammar": choice_to_gbnf(guided.choice)}
    grammar = guided.grammar or ""
    if grammar.lstrip().startswith(_LLGUIDANCE_PREFIX):
        # The library runs on without any constraint when such a grammar has a mistake.
        raise Unsupported("llamacpp takes grammars in GBNF only", "rewrite it in GBNF", param="guided_grammar")
    return {"grammar": grammar}


def _build_samplers(sampling: Sampling, context_length: int) -> dict[str, Any]:
    """Penalties, then temperature, then truncation: the order of the other engines, not llama.cpp's own."""
    value = sampling.value
    chain = [
        ("temperature", {"temperature": 0.0 if sampling.greedy else value("temperature")}),
    ]
    if not sampling.greedy:
        top_k = max(value("top_k"), 0)
        chain += [("top_k", {"top_k": top_k})] if top_k else []
        chain += [("top_p", {"top_p": value("top_p")})] if value("top_p") < 1 else []
        chain += [("min_p", {"min_p": value("min_p")})] if value("min_p") > 0 else []
    penalties = {
        "repeat_penalty": value("repetition_penalty"),
        "presence_penalty": value("presence_penalty"),
        "frequency_penalty": value("frequency_penalty"),
    }
    if tuple(penalties.values()) != (1.0, 0.0, 0.0):
        chain.insert(0, ("penalties", {**penalties, "repeat_last_n": context_length}))
    fields: dict[str, Any] = {"samplers": [name for name, _ in chain]}
    for _, values in chain:
        fields |= values
    return fields


def _build_logit_bias(sampling: Sampling, prompt: Sequence[int]) -> dict[int, float]:
    """The request's own biases, and what makes up for llama.cpp counting the prompt in frequency_penalty.

    It subtracts penalty x count over prompt and output; adding penalty x count of the prompt leaves the output's part.
    That is exact only while repetition_penalty, which multiplies, is off.
    """
    bias = dict(sampling.logit_bias)
    penalty = sampling.value("frequency_penalty")
    if penalty and sampling.value("repetition_penalty") == 1.0:
        for token, count in Counter(prompt).items():
            bias[token] = bias.get(token, 0.0) + penalty * count
    return bias
