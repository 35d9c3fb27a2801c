"""Memory estimate of the vllm engine. Pure."""

from __future__ import annotations

import math

from enginebay.contract import MemoryEstimate, MemoryFacts
from enginebay.contract.memory_facts import GIB, RAM
from enginebay.engines.vllm.settings import DEFAULT_CPU_CACHE_GIB, DEFAULT_GPU_UTILIZATION

_CPU_LIBRARY_BYTES = int(1.5 * GIB)
_CUDA_RAM_BYTES = 4 * GIB


def estimate_memory(facts: MemoryFacts) -> MemoryEstimate:
    weights = facts.estimate_weights_bytes(_get_value_bytes(facts))
    sizes = {"max_model_len": facts.get_context_length("max_model_len", "context_length")}
    return MemoryEstimate(_estimate_pools(facts, weights), weights, sizes, whole_gpus=_count_ranks(facts) > 1)


def _count_ranks(facts: MemoryFacts) -> int:
    shards = int(facts.get_setting("sharding.num_shards") or 1)
    tensor = int(facts.get_setting("tensor_parallel_size") or 1)
    return max(shards, tensor * int(facts.get_setting("pipeline_parallel_size") or 1))


def _get_value_bytes(facts: MemoryFacts) -> float:
    """Return the bytes of one weight; 0: as stored. Processors without bfloat16 compute in float32."""
    widened = not facts.cuda and not facts.bf16 and facts.stored_dtype in ("bfloat16", "float32", "")
    return facts.get_configured_value_bytes() or (4 if widened else 0)


def _estimate_pools(facts: MemoryFacts, weights: int) -> dict[str, int]:
    ranks = _count_ranks(facts)
    if not facts.cuda or not facts.gpus:
        configured = facts.get_setting("cpu_kvcache_space_gib")
        default = min(DEFAULT_CPU_CACHE_GIB * GIB, facts.memory_bytes / 4 or math.inf)
        cache = int(float(configured) * GIB if configured is not None else default)
        return {RAM: weights + ranks * (cache + _CPU_LIBRARY_BYTES)}
    offloaded = int(float(facts.get_setting("cpu_offload_gb") or 0) * GIB)
    share = float(facts.get_setting("gpu_memory_utilization") or DEFAULT_GPU_UTILIZATION)
    sizes = [facts.gpus[min(rank, len(facts.gpus) - 1)] for rank in range(ranks)]
    pools = {f"gpu{rank}": int(size * share) for rank, size in enumerate(sizes)}
    return {RAM: _CUDA_RAM_BYTES + (ranks - 1) * _CUDA_RAM_BYTES // 2 + ranks * offloaded, **pools}
