"""How many GPUs an engine's estimate takes, and how much of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.fleet.memory.test_memory_estimate import (
    GIB,
    estimate,
    estimate_memory,
    facts,
    resolve_size_settings,
)


def test_llamacpp_takes_as_few_gpus_as_hold_it() -> None:
    small = facts("llamacpp", weights=4 * GIB, gpus=(24 * GIB,) * 4, kv_cache_tokens=8192)
    assert set(estimate_memory(small)) == {"ram", "gpu0"}
    assert set(estimate_memory(replace(small, weights_bytes=30 * GIB))) == {"ram", "gpu0", "gpu1"}
    too_large = estimate_memory(replace(small, weights_bytes=200 * GIB))
    assert set(too_large) == {"ram", "gpu0", "gpu1", "gpu2", "gpu3"} and too_large["ram"] > 100 * GIB


def test_a_part_of_a_gpu_bounds_the_cache_of_llamacpp() -> None:
    whole = facts("llamacpp", weights=4 * GIB, gpus=(24 * GIB,), context_length=8192, max_batch=256)
    half = replace(whole, settings={**whole.settings, "gpu_memory_fraction": 0.5})
    assert resolve_size_settings(half)["kv_cache_tokens"] == pytest.approx(
        resolve_size_settings(whole)["kv_cache_tokens"] / 2, rel=0.01
    )


def test_more_ranks_than_gpus_show_in_the_estimate() -> None:
    """So that the fleet refuses the model before it loads."""
    assert set(estimate_memory(facts("vllm", gpus=(80 * GIB,), tensor_parallel_size=3))) == {
        "ram", "gpu0", "gpu1", "gpu2"
    }  # fmt: skip
    assert estimate(facts("vllm", gpus=(80 * GIB,) * 2, tensor_parallel_size=2)).whole_gpus
    assert not estimate(facts("vllm", gpus=(80 * GIB,) * 2)).whole_gpus
