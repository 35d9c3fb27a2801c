"""Headline figures of a run in display order. Pure."""

from __future__ import annotations

from collections.abc import Iterable

HEADLINES = (
    "requests_per_s",
    "input_tokens_per_s",
    "output_tokens_per_s",
    "total_tokens_per_s",
    "ttft_s.median",
    "ttft_s.p95",
    "ttft_s.p99",
    "itl_s.median",
    "itl_s.p95",
    "tpot_s.median",
    "tpot_s.p95",
    "e2e_s.median",
    "e2e_s.p95",
    "goodput_requests_per_s",
    "j_per_output_token",
    "j_per_total_token",
    "j_per_good_token",
    "cost_per_million_output_tokens",
)


def select_headlines(names: Iterable[str]) -> list[str]:
    """Return the headline figures among these names, in display order."""
    available = set(names)
    return [name for name in HEADLINES if name in available]
