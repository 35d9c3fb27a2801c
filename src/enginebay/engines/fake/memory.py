"""Memory estimate of the fake engine: as configured. Pure."""

from __future__ import annotations

from enginebay.contract import MemoryEstimate, MemoryFacts
from enginebay.contract.memory_facts import BARE_WORKER_BYTES, GIB, RAM


def estimate_memory(facts: MemoryFacts) -> MemoryEstimate:
    configured = facts.get_setting("memory_bytes")
    context = int(facts.get_setting("context_length") or facts.context_length or 0)
    sizes = {"context_length": context} if context else {}
    pools = {RAM: BARE_WORKER_BYTES if configured is None else int(configured)}
    names = ("tensor_parallel_size", "pipeline_parallel_size")
    tensor, pipeline = (int(facts.get_setting(name) or 1) for name in names)
    on_gpu, fraction = facts.get_setting("gpu_memory_bytes"), facts.get_setting("gpu_memory_fraction")
    if on_gpu is None and facts.gpus_configured:
        on_gpu = facts.gpus[0] * float(fraction) if fraction else GIB
    if on_gpu and facts.cuda:
        pools |= {f"gpu{rank}": int(on_gpu) for rank in range(tensor * pipeline)}
    return MemoryEstimate(pools, sizes=sizes, whole_gpus=tensor * pipeline > 1)
