"""A sampled token and its log probabilities."""

from __future__ import annotations

from dataclasses import dataclass

from enginebay.contract import TokenLogprobs


@dataclass(frozen=True, slots=True)
class SampledToken:
    token: int
    logprobs: tuple[TokenLogprobs, ...] = ()
