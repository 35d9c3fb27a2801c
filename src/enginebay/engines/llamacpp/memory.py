"""Memory estimate of the llamacpp engine. Pure."""

from __future__ import annotations

import math
from dataclasses import replace

from enginebay.contract import MemoryEstimate, MemoryFacts
from enginebay.contract.memory_facts import CUDA_CONTEXT_BYTES, MIB, RAM
from enginebay.engines.llamacpp.settings import CACHE_TYPE_BYTES, DEFAULT_BATCH, DEFAULT_CACHE_BYTES, DEFAULT_CONTEXT

_LIBRARY_BYTES = 300 * MIB  # with compute buffers
_USABLE_FRACTION = 0.9  # of a GPU, when choosing how many


def estimate_memory(facts: MemoryFacts) -> MemoryEstimate:
    weights, tokens = facts.estimate_weights_bytes(), _estimate_cache_tokens(facts)
    cache = facts.estimate_kv_cache_bytes(tokens, _get_value_bytes(facts))
    sizes = {"context_length": _get_context_length(facts), "max_batch": _get_slots(facts), "kv_cache_tokens": tokens}
    ram = _LIBRARY_BYTES + int(facts.get_setting("prompt_cache_mib") or 0) * MIB
    if _uses_gpu(facts) and not facts.gpus_configured and not _names_gpus(facts):
        facts = _choose_fewest_gpus(facts)
        tokens = _estimate_cache_tokens(facts)
        cache = facts.estimate_kv_cache_bytes(tokens, _get_value_bytes(facts))
        sizes["kv_cache_tokens"] = tokens
    if not _uses_gpu(facts):
        return MemoryEstimate({RAM: weights + cache + ram}, weights, sizes)
    offloaded = weights + (0 if facts.get_setting("kv_offload") is False else cache)
    shares = _split_gpus(facts)
    on_gpus = int(offloaded * _compute_gpu_fraction(facts, offloaded, sum(facts.gpus[gpu] for gpu in shares)))
    pools = {f"gpu{gpu}": int(on_gpus * share) + CUDA_CONTEXT_BYTES for gpu, share in shares.items()}
    return MemoryEstimate({RAM: weights + cache - on_gpus + ram, **pools}, weights, sizes)


def _names_gpus(facts: MemoryFacts) -> bool:
    return facts.get_setting("tensor_split") is not None or facts.get_setting("split_mode") == "none"


def _choose_fewest_gpus(facts: MemoryFacts) -> MemoryFacts:
    """Return the facts with as many GPUs as hold all of the model, or all GPUs."""
    for count in range(1, len(facts.gpus)):
        fewer = replace(facts, gpus=facts.gpus[:count])
        cache = fewer.estimate_kv_cache_bytes(_estimate_cache_tokens(fewer), _get_value_bytes(fewer))
        needed = fewer.estimate_weights_bytes() + cache + count * CUDA_CONTEXT_BYTES
        if needed <= sum(fewer.gpus) * _USABLE_FRACTION:
            return fewer
    return facts


def _get_context_length(facts: MemoryFacts) -> int:
    default = min(facts.context_length or DEFAULT_CONTEXT, DEFAULT_CONTEXT)
    return int(facts.get_setting("context_length") or default)


def _get_slots(facts: MemoryFacts) -> int:
    return int(facts.get_setting("max_batch", "batching.batch_size") or DEFAULT_BATCH)


def _get_value_bytes(facts: MemoryFacts) -> float:
    both = [CACHE_TYPE_BYTES[facts.get_setting(name) or "f16"] for name in ("cache_type_k", "cache_type_v")]
    return sum(both) / 2


def _estimate_cache_tokens(facts: MemoryFacts) -> int:
    """Return the KV cache size the engine chooses: all requests at full length, within its share of memory."""
    context, slots = _get_context_length(facts), _get_slots(facts)
    if facts.task == "embed":
        return context  # inputs run one at a time
    configured = facts.get_setting("kv_cache_tokens")
    if configured is not None:
        return max(context, min(int(configured), context * slots))
    on_gpu = _uses_gpu(facts)
    gpu_bytes = sum(facts.gpus) * float(facts.get_setting("gpu_memory_fraction") or 1)
    limit = (gpu_bytes if on_gpu else facts.memory_bytes) / 2 or math.inf
    if not on_gpu and facts.get_setting("context_length", "max_batch", "batching.batch_size") is None:
        limit = min(limit, DEFAULT_CACHE_BYTES)
    per_token = facts.estimate_kv_cache_bytes(1, _get_value_bytes(facts))
    affordable = limit / per_token if per_token else math.inf
    return int(max(context, min(context * slots, affordable)))


def _uses_gpu(facts: MemoryFacts) -> bool:
    return facts.cuda and bool(facts.gpus) and facts.get_setting("gpu_layers") != 0


def _compute_gpu_fraction(facts: MemoryFacts, needed: int, available: int) -> float:
    """Return the fraction of weights and cache on the GPUs: the configured layers, else as many as fit."""
    layers = facts.get_setting("gpu_layers")
    if layers is not None and layers > 0 and facts.layers:
        return min(1.0, float(layers / (facts.layers + 1)))  # plus the output layer
    return min(1.0, max(0, available - len(facts.gpus) * CUDA_CONTEXT_BYTES) / max(1, needed))


def _split_gpus(facts: MemoryFacts) -> dict[int, float]:
    """Return the share of each GPU it uses: by `tensor_split`, else in proportion to GPU memory."""
    if facts.get_setting("split_mode") == "none":
        return {min(int(facts.get_setting("main_gpu") or 0), len(facts.gpus) - 1): 1.0}
    split = [float(part) for part in facts.get_setting("tensor_split") or ()][: len(facts.gpus)]
    weights = split if sum(split) > 0 else [float(size) for size in facts.gpus]
    total = sum(weights) or 1.0
    return {gpu: weight / total for gpu, weight in enumerate(weights) if weight > 0} or {0: 1.0}
