"""Convert a request's sampling to vLLM's SamplingParams. Passes every neutral value explicitly."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from enginebay.constraints.gbnf_writer import normalize_gbnf
from enginebay.contract import Guided, Sampling
from enginebay.engines.compile_trial import CompileTrial, needs_trial
from enginebay.engines.schema_support import check_schema_support

_SEED_MODULUS = 2**63 - 1024  # vLLM reads -1 as "no seed" and adds the choice's index to a seed
_MIN_TOP_P = 1e-6  # vLLM rejects 0, which means: only the most likely token


def build_sampling_arguments(sampling: Sampling, prompt_tokens: int, context: int) -> dict[str, Any]:
    """Return keyword arguments for SamplingParams, with max_tokens capped to the remaining context."""
    remaining = context - prompt_tokens
    max_tokens = remaining if sampling.max_tokens is None else min(sampling.max_tokens, remaining)
    arguments: dict[str, Any] = {
        "n": sampling.n,
        "temperature": float(sampling.value("temperature")),
        "top_p": max(float(sampling.value("top_p")), _MIN_TOP_P),
        "top_k": max(int(sampling.value("top_k")), 0),
        "min_p": float(sampling.value("min_p")),
        "repetition_penalty": float(sampling.value("repetition_penalty")),
        "presence_penalty": float(sampling.value("presence_penalty")),
        "frequency_penalty": float(sampling.value("frequency_penalty")),
        "max_tokens": max_tokens,
        "min_tokens": min(int(sampling.value("min_tokens")), max_tokens),
        "stop": list(sampling.stop),
        "stop_token_ids": list(sampling.stop_token_ids),
        "ignore_eos": sampling.ignore_eos,
        "seed": None if sampling.seed is None else sampling.seed % _SEED_MODULUS,
        "logprobs": sampling.logprobs,
        "logit_bias": dict(sampling.logit_bias) or None,
        "skip_special_tokens": True,
        "detokenize": True,
    }
    if sampling.greedy:
        arguments.update(_build_greedy_arguments(sampling.n))
    return arguments


def _build_greedy_arguments(n: int) -> dict[str, Any]:
    """Return greedy arguments. vLLM allows temperature 0 only with n=1; top_k=1 is equivalent for larger n."""
    if n == 1:
        return {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}
    return {"temperature": 1.0, "top_p": 1.0, "top_k": 1, "min_p": 0.0}


def build_structured_outputs(guided: Guided) -> dict[str, Any]:
    """Return keyword arguments for StructuredOutputsParams."""
    if guided.json is not None:
        is_any_object = guided.json.replace(" ", "") == "{}"
        return {"json": '{"type": "object"}' if is_any_object else guided.json}
    if guided.regex is not None:
        return {"regex": guided.regex}
    if guided.grammar is not None:
        return {"grammar": normalize_gbnf(guided.grammar)}
    return {"choice": list(guided.choice or ())}


def apply_default_sampling(sampling: Sampling, settings: Mapping[str, Any], speculates: bool) -> Sampling:
    """Return the sampling with the model's default logprobs and logit bias. vLLM cannot combine a bias with speculation."""
    if sampling.logprobs is None and settings.get("logprobs") is not None:
        sampling = replace(sampling, logprobs=int(settings["logprobs"]))
    if not sampling.logit_bias and settings.get("logit_bias") and not speculates:
        bias = {int(token): float(value) for token, value in settings["logit_bias"].items()}
        sampling = replace(sampling, logit_bias=bias)
    return sampling


def build_params(sampling: Sampling, prompt_tokens: int, context: int) -> Any:
    """Return vLLM's SamplingParams."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    arguments = build_sampling_arguments(sampling, prompt_tokens, context)
    if sampling.guided is not None:
        arguments["structured_outputs"] = StructuredOutputsParams(**build_structured_outputs(sampling.guided))
    return SamplingParams(**arguments, output_kind=RequestOutputKind.DELTA, skip_clone=True)


def create_compile_trial(llm: Any) -> CompileTrial:
    """Return the trial that large constraints pass before vLLM's engine process compiles them."""

    @cache  # a new child follows each runaway
    def describe_tokenizer() -> str:
        import xgrammar

        vocab_size = llm.vllm_config.model_config.get_vocab_size()
        info = xgrammar.TokenizerInfo.from_huggingface(llm.get_tokenizer(), vocab_size=vocab_size)
        return str(info.serialize_json())

    config = llm.vllm_config.structured_outputs_config
    # Another library may compile what xgrammar rejects.
    limits_only = config.backend != "xgrammar"
    return CompileTrial(describe_tokenizer, any_whitespace=not config.disable_any_whitespace, limits_only=limits_only)


def check_constraint(guided: Guided, config: Any) -> bool:
    """Return whether to try this constraint before it is compiled. Raises `Unsupported` for what would be ignored."""
    if config.structured_outputs_config.backend == "xgrammar":
        check_schema_support(guided)
    return needs_trial(guided)


def write_trial_source(guided: Guided) -> tuple[str, str]:
    """Return the kind and the text that vLLM has xgrammar compile."""
    [(kind, value)] = build_structured_outputs(guided).items()
    if kind == "choice":
        return "grammar", "root ::= " + " | ".join(json.dumps(choice, ensure_ascii=False) for choice in value)
    return kind, value
