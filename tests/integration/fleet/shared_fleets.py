"""Servers with real engines, shared by several test files because loading takes most of their time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.fleet.fleet_client import FleetClient, run_fleet

# The default model with minimal settings per engine.
SMALL: dict[str, dict[str, Any]] = {
    "llamacpp": {"source": "smollm2", "engine": "llamacpp", "llamacpp": {"context_length": 512, "max_batch": 8}},
    "transformers": {
        "source": "smollm2",
        "engine": "transformers",
        "transformers": {"context_length": 512, "dtype": "float32"},
    },
    "vllm": {
        "source": "smollm2",
        "engine": "vllm",
        "vllm": {
            "max_model_len": 512,
            "dtype": "float32",
            "max_num_seqs": 8,
            "enforce_eager": True,
            "cpu_kvcache_space_gib": 1,
        },
    },
}


@pytest.fixture(scope="package")
def vllm_fleet() -> Iterator[FleetClient]:
    """Two models on vllm, one awake at a time, and a standby."""
    models = {name: {**SMALL["vllm"], "load": "use"} for name in ("one", "two")}
    with run_fleet(models, max_awake=1, min_residency_s=0, standby=["vllm"]) as fleet:
        yield fleet


@pytest.fixture(scope="package")
def mixed_fleet() -> Iterator[FleetClient]:
    """The same model on two engines, one of them awake at a time."""
    models = {
        "small": {**SMALL["llamacpp"], "load": "use"},
        "dense": {**SMALL["transformers"], "load": "use"},
    }
    with run_fleet(models, max_awake=1, min_residency_s=0) as fleet:
        yield fleet
