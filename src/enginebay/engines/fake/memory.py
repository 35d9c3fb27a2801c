"""Memory estimate of the fake engine: as configured. Pure."""

from __future__ import annotations

from enginebay.contract import MemoryEstimate, MemoryFacts
from enginebay.contract.memory_facts import BARE_WORKER_BYTES, RAM


def estimate_memory(facts: MemoryFacts) -> MemoryEstimate:
    configured = facts.get_setting("memory_bytes")
    context = int(facts.get_setting("context_length") or facts.context_length or 0)
    sizes = {"context_length": context} if context else {}
    return MemoryEstimate({RAM: BARE_WORKER_BYTES if configured is None else int(configured)}, sizes=sizes)
