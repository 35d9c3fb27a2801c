"""Two models on one GPU by fractions, each on another engine, placed by the fleet. Runs alone: it takes nearly all memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from enginebay.config.loader import load_config
from enginebay.contract import GenerateRequest, Sampling
from enginebay.fleet.fleet import Fleet
from enginebay.fleet.memory.memory_observed import ObservedResources
from enginebay.fleet.routing.model_client import ModelClient
from enginebay.fleet.routing.variants import build_variants
from enginebay.util.gpus.gpu_discovery import VISIBLE_DEVICES
from enginebay.util.hardware import read_host
from tests.contract.conftest import skip_without
from tests.contract.engine_profiles import is_on_cuda
from tests.contract.lora_adapters import ensure_dense_smollm2

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not is_on_cuda(), reason="needs a CUDA device")]


async def test_two_halves_share_a_gpu_and_each_keeps_to_its_own(tmp_path: Path) -> None:
    from tests.gpu.gpu_memory import GIB, read_used_bytes

    kinds = ("vllm", "transformers")
    for kind in kinds:
        skip_without(kind)
    host, before = read_host(), read_used_bytes()
    models = {kind: {"source": str(ensure_dense_smollm2()), "engine": kind, "gpus": [0]} for kind in kinds}
    models["vllm"] |= {"vllm": {"gpu_memory_utilization": 0.46, "max_model_len": 512, "enforce_eager": True}}
    models["transformers"] |= {"gpus": 0.5}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump({"models": models}))
    config = load_config(tmp_path / "c.yaml")
    variants = build_variants(config, config.models)
    fleet = Fleet(variants, config.fleet, host, ObservedResources(tmp_path / "measured.json"), lambda *_, **__: None)
    try:
        for kind in kinds:
            handle = await fleet.acquire(kind, 300.0, queued=False)
            client = await ModelClient.connect(handle)
            request = GenerateRequest(text="Hello", sampling=Sampling(max_tokens=4, temperature=0.0))
            assert [event async for event in client.generate(request)]
            await client.close()
        replicas = [fleet.get_replica(kind) for kind in kinds]
        assert [replica.gpus for replica in replicas] == [(0,), (0,)]
        workers = [replica.worker for replica in replicas if replica.worker is not None]
        assert {worker.plan.launch.devices[VISIBLE_DEVICES] for worker in workers} == {host.gpus[0].device}
        used = read_used_bytes() - before
        assert 0.4 * host.gpus[0].memory_bytes < used < 0.96 * host.gpus[0].memory_bytes, f"{used / GIB:.1f} GiB"
    finally:
        await fleet.close()
    assert read_used_bytes() < before + GIB, "memory is still in use on the GPU"
