"""Memory estimate of the transformers engine. Pure."""

from __future__ import annotations

from enginebay.contract import MemoryEstimate, MemoryFacts
from enginebay.contract.memory_facts import GIB, RAM
from enginebay.engines.transformers.settings import DEFAULT_BATCH_SIZE

_LIBRARY_BYTES, _CUDA_RAM_BYTES = GIB, 2 * GIB
_CACHE_BYTES = GIB  # assumed size; it grows with use


def estimate_memory(facts: MemoryFacts) -> MemoryEstimate:
    device = str(facts.get_setting("device") or "")
    on_gpu = facts.cuda and bool(facts.gpus) and not device.startswith("cpu")
    context = facts.get_context_length("context_length")
    weights = facts.estimate_weights_bytes(_get_value_bytes(facts, device), unpack=True)
    total = weights + _estimate_cache_bytes(facts, context, on_gpu)
    shards = int(facts.get_setting("sharding.num_shards") or 1)
    sizes = {"context_length": context}
    if not on_gpu:
        return MemoryEstimate({RAM: total + shards * _LIBRARY_BYTES}, weights, sizes)
    used = _list_gpus(facts, device, shards)
    parallel = shards > 1 and facts.get_setting("sharding.strategy") != "pipeline"
    pools = {f"gpu{gpu}": total // len(used) + _LIBRARY_BYTES for gpu in used}
    return MemoryEstimate({RAM: shards * _CUDA_RAM_BYTES, **pools}, weights, sizes, whole_gpus=parallel)


def _get_value_bytes(facts: MemoryFacts, device: str) -> float:
    """Return the bytes of one weight; 0: as stored. Unset: bfloat16 on CUDA, float32 on a CPU."""
    default = 2 if facts.cuda and not device.startswith("cpu") else 4
    as_stored = facts.get_setting("dtype", "torch_dtype", "fp_precision") == "auto"
    return facts.get_configured_value_bytes() or (0 if as_stored else default)


def _estimate_cache_bytes(facts: MemoryFacts, context: int, on_gpu: bool) -> int:
    if facts.get_setting("use_cache") is False or facts.task == "embed":
        return 0
    rows = int(facts.get_setting("batching.batch_size") or DEFAULT_BATCH_SIZE["cuda" if on_gpu else "cpu"])
    return min(facts.estimate_kv_cache_bytes(rows * context, 2.0 if on_gpu else 4.0), _CACHE_BYTES)


def _list_gpus(facts: MemoryFacts, device: str, shards: int) -> list[int]:
    every = list(range(len(facts.gpus)))
    split = facts.get_setting("device_map", "max_memory") is not None
    if split or facts.get_setting("sharding.strategy") == "pipeline":
        return every  # assume an even split
    if shards > 1:
        return list(range(shards))
    number = device.partition(":")[2]
    return [int(number)] if number.isdigit() else [0]
