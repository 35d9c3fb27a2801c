"""Sampling parameters: their ranges and their neutral values.

Unset (`None`) means the neutral value in `NEUTRAL` on every engine, never the library's default. So a request means
the same on all engines.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any

from enginebay.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Guided:
    """A constraint on the output. Exactly one field is set."""

    json: str | None = None  # a JSON schema, as JSON text; "{}" means any JSON object
    regex: str | None = None
    grammar: str | None = None  # GBNF, as in llama.cpp and xgrammar; the start rule is `root`
    choice: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        constraints = [name for name in ("json", "regex", "grammar", "choice") if getattr(self, name) is not None]
        if len(constraints) != 1:
            raise InvalidRequest(
                f"guided output takes exactly one constraint, got {', '.join(constraints) or 'none'}",
                "set one of json, regex, grammar, choice",
                param="guided",
            )
        if self.choice is not None and (not self.choice or not all(self.choice)):
            raise InvalidRequest("guided choice needs at least one non-empty string", param="guided_choice")


@dataclass(frozen=True, slots=True)
class Sampling:
    """All generation parameters. `None` is unset and means the value in `NEUTRAL`."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None  # 0 and -1 both mean off
    min_p: float | None = None
    repetition_penalty: float | None = None  # over prompt and output, 1.0 is off
    presence_penalty: float | None = None  # over the output only, as in OpenAI's API
    frequency_penalty: float | None = None
    no_repeat_ngram_size: int | None = None
    do_sample: bool | None = None  # False: greedy at any temperature
    min_tokens: int | None = None
    max_tokens: int | None = None  # unset: up to the end of the context
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None
    n: int = 1
    best_of: int | None = None
    num_beams: int | None = None  # above 1: beam search
    length_penalty: float | None = None
    early_stopping: bool | None = None
    logprobs: int | None = None  # top alternatives per token; 0: only the chosen token's
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    guided: Guided | None = None

    def __post_init__(self) -> None:
        for value, (name, (low, high)) in zip(_get_bounded(self), RANGES.items(), strict=True):
            if value is not None and not low <= value <= high:
                raise InvalidRequest(f"{name} must be between {low} and {high}, got {value}", param=name)
        if self.best_of is not None and self.best_of < self.n:
            raise InvalidRequest(f"best_of ({self.best_of}) is less than n ({self.n})", param="best_of")
        if self.max_tokens is not None and self.min_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequest(
                f"min_tokens ({self.min_tokens}) exceeds max_tokens ({self.max_tokens})", param="min_tokens"
            )
        if any(not text for text in self.stop):
            raise InvalidRequest("a stop string is empty", param="stop")
        for token, bias in self.logit_bias.items():
            if not -100 <= bias <= 100:
                raise InvalidRequest(
                    f"logit_bias of token {token} must be between -100 and 100, got {bias}", param="logit_bias"
                )

    @property
    def greedy(self) -> bool:
        return self.do_sample is False or self.temperature == 0

    def value(self, name: str) -> Any:
        """Return the parameter's value, or the neutral one if unset."""
        value = getattr(self, name)
        return NEUTRAL.get(name) if value is None else value


RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0.0, 2.0),
    "top_p": (0.0, 1.0),
    "top_k": (-1, 1_000_000),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.01, 10.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "no_repeat_ngram_size": (0, 1_000),
    "min_tokens": (0, 10_000_000),
    "max_tokens": (1, 10_000_000),
    "seed": (-(2**63), 2**63 - 1),
    "n": (1, 128),
    "best_of": (1, 128),
    "num_beams": (1, 64),
    "length_penalty": (-10.0, 10.0),
    "logprobs": (0, 20),
}

_get_bounded = attrgetter(*RANGES)

NEUTRAL: dict[str, Any] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "no_repeat_ngram_size": 0,
    "do_sample": True,
    "min_tokens": 0,
    "ignore_eos": False,
    "n": 1,
    "num_beams": 1,
    "length_penalty": 1.0,
    "early_stopping": False,
}

# All parameters but `guided` with their neutral value. top_k -1 is off like 0, but counts as set because it is translated.
_NEUTRAL_VALUES = tuple((f.name, NEUTRAL.get(f.name)) for f in fields(Sampling) if f.name != "guided")
_get_plain = attrgetter(*(name for name, _ in _NEUTRAL_VALUES))

GUIDED_PARAMETERS = ("guided_json", "guided_regex", "guided_grammar", "guided_choice")


def parameters() -> tuple[str, ...]:
    """Return all request parameters that an engine's spec must declare, in a stable order."""
    plain = [f.name for f in fields(Sampling) if f.name != "guided"]
    return (*plain, *GUIDED_PARAMETERS, "lora", "embeddings")


def collect_requested_parameters(sampling: Sampling, lora: str | None = None) -> dict[str, Any]:
    """Return the parameters that are set and differ from the neutral value."""
    requested: dict[str, Any] = {}
    for value, (name, neutral) in zip(_get_plain(sampling), _NEUTRAL_VALUES, strict=True):
        if value is None or value == neutral or value in ((), {}):
            continue
        requested[name] = value
    if sampling.guided is not None:
        for name in ("json", "regex", "grammar", "choice"):
            if getattr(sampling.guided, name) is not None:
                requested[f"guided_{name}"] = getattr(sampling.guided, name)
    if lora:
        requested["lora"] = lora
    return requested
