"""Convert a request to the body of llama.cpp's server. Pure.

Names every sampler and sets every value, so that none of the library's defaults (top_k 40, min_p 0.05) applies.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from enginebay.constraints.gbnf_writer import normalize_gbnf
from enginebay.contract import GenerateRequest, Guided, Sampling
from enginebay.engines.llamacpp.guided.llguidance_grammar import (
    to_llguidance_schema,
    write_choices,
    write_grammar,
    write_regex,
    write_schema,
)
from enginebay.errors import InvalidRequest, Unsupported

_RANDOM_SEED = 0xFFFFFFFF  # llama.cpp draws a random seed for this value


@dataclass(frozen=True, slots=True)
class CompletionAttempt:
    """One call of the library: the output so far, the token budget, and the number of choices."""

    output: Sequence[int]  # generated so far; appended to the prompt
    budget: int
    choices: int
    seed_offset: int  # added to the seed, so that choices and attempts sample differently
    ban_end_tokens: bool  # until min_tokens is reached


class LlamaBodyBuilder:
    """Builds the bodies of one request's calls. Raises `RequestError` for unsupported parameters."""

    def __init__(self, request: GenerateRequest, context_length: int, loras: Mapping[str, int]) -> None:
        sampling = request.sampling
        self._prompt = list(request.token_ids or ())
        self._seed = sampling.seed
        self._ignore_eos = sampling.ignore_eos
        self._stop_ids = sampling.stop_token_ids
        self._bias = _build_logit_bias(sampling, self._prompt)
        self.schema = parse_json_schema(sampling.guided)
        self.constraint = write_constraint(sampling.guided, self.schema)
        self.guided = sampling.guided
        self.lora = {"lora": build_lora_scales(request.lora, loras)} if loras or request.lora else {}
        self._common = {
            "stream": True,
            "verbose": True,  # adds the token ids and the count
            "return_progress": True,  # one chunk per prefill step, so that a cancel takes effect
            "sse_ping_interval": -1,
            **_build_samplers(sampling, context_length),
            **_build_grammar(sampling.guided, self.constraint),
            **({} if sampling.logprobs is None else {"n_probs": max(sampling.logprobs, 1)}),
            **self.lora,
        }

    def build(self, attempt: CompletionAttempt) -> dict[str, Any]:
        bias: dict[int, Any] = dict(self._bias)
        if attempt.ban_end_tokens:
            bias |= dict.fromkeys(self._stop_ids, False)  # False bans a token
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
    """Fold a seed of any size to llama.cpp's 32 bits. Small seeds do not change."""
    if seed is None:
        return _RANDOM_SEED
    wide = seed & 0xFFFFFFFFFFFFFFFF
    return (((wide ^ (wide >> 32)) & 0xFFFFFFFF) + offset) % _RANDOM_SEED


def build_lora_scales(adapter: str | None, loras: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return the scale of every loaded adapter: 1 for the chosen one, 0 for the others."""
    if adapter is not None and adapter not in loras:
        known = ", ".join(loras) or "none"
        raise InvalidRequest(f"unknown LoRA adapter {adapter!r}", f"available: {known}", param="lora")
    return [{"id": index, "scale": 1.0 if name == adapter else 0.0} for name, index in loras.items()]


def parse_json_schema(guided: Guided | None) -> dict[str, Any] | None:
    """Return the request's JSON schema, adapted to the library; `{}` means any object."""
    if guided is None or guided.json is None:
        return None
    try:
        schema = json.loads(guided.json)
    except ValueError as problem:
        raise InvalidRequest(f"the JSON schema is not valid JSON: {problem}", param="guided_json") from None
    if not isinstance(schema, dict):
        raise InvalidRequest(
            "the JSON schema is not an object", 'use an object such as {"type": "object"}', param="guided_json"
        )
    try:
        return to_llguidance_schema(schema)
    except RecursionError:
        raise InvalidRequest("the JSON schema is nested too deeply", param="guided_json") from None


def write_constraint(guided: Guided | None, schema: Mapping[str, Any] | None) -> str | None:
    """Return the constraint as a grammar of llguidance; None if there is none, or only GBNF can express it."""
    if guided is None:
        return None
    if schema is not None:
        return write_schema(schema)
    if guided.regex is not None:
        return write_regex(guided.regex)
    return write_grammar(guided.grammar or "") if guided.choice is None else write_choices(guided.choice)


def _build_grammar(guided: Guided | None, constraint: str | None) -> dict[str, Any]:
    if guided is None:
        return {}
    if constraint is None and (guided.grammar or "").lstrip().startswith("%"):
        # The library silently drops the constraint if such a grammar has an error.
        raise Unsupported("llamacpp only supports GBNF grammars", "rewrite the grammar in GBNF", param="guided_grammar")
    return {"grammar": normalize_gbnf(guided.grammar or "") if constraint is None else constraint}


def _build_samplers(sampling: Sampling, context_length: int) -> dict[str, Any]:
    """Return the sampler chain: penalties, temperature, truncation. That is the other engines' order, not llama.cpp's."""
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
    """Return the request's biases, corrected for llama.cpp counting the prompt in frequency_penalty.

    It subtracts penalty x count over prompt and output. Adding penalty x count of the prompt leaves the output's part.
    That is exact only with repetition_penalty off, since that one multiplies.
    """
    bias = dict(sampling.logit_bias)
    penalty = sampling.value("frequency_penalty")
    if penalty and sampling.value("repetition_penalty") == 1.0:
        for token, count in Counter(prompt).items():
            bias[token] = bias.get(token, 0.0) + penalty * count
    return bias
