"""The echo engine's memory estimate. Bay calls it before a load, to decide what must be evicted."""

from enginebay.contract import MemoryEstimate, MemoryFacts


def estimate_memory(facts: MemoryFacts) -> MemoryEstimate:
    """A real engine adds weights, KV cache and its library, with `MemoryFacts.estimate_weights_bytes` and
    `MemoryFacts.estimate_kv_cache_bytes`."""
    return MemoryEstimate({"ram": facts.get_setting("cache_bytes") or 100 * 2**20})
