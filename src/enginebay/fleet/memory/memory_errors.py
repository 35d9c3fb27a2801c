"""Errors of models that no eviction makes room for. Pure."""

from __future__ import annotations

from enginebay.errors import DoesNotFit, EnginebayError, Overloaded
from enginebay.fleet.memory.gpu_needs import describe_need
from enginebay.fleet.scheduling.device_placement import list_gpus, name_pool
from enginebay.fleet.scheduling.planner_state import MemoryAccount, ReplicaSnapshot
from enginebay.util.number_format import format_bytes


def build_no_memory_error(replica: ReplicaSnapshot, account: MemoryAccount) -> EnginebayError:
    """Return why a replica can never load: it is too big for the host, or for what pinned models leave."""
    gone = [
        gpu for gpu in (replica.gpu_need.only if replica.gpu_need else ()) if name_pool(gpu) not in account.capacity
    ]
    if gone:
        return DoesNotFit(
            f"{replica.name} cannot be placed: its GPU {gone[0]} does not respond",
            "see `bay doctor`; to run it elsewhere, change gpus",
        )
    short = [
        f"{format_bytes(needed)} of {pool}, but the budget is {format_bytes(account.capacity.get(pool, 0))}"
        for pool, needed in replica.awake_bytes.items()
        if needed > account.capacity.get(pool, 0)
    ] + _list_short_gpus(replica, account)
    if short:
        return DoesNotFit(
            f"{replica.name} does not fit on this host: it needs {'; '.join(short)}",
            "raise the budget (fleet.memory_bytes, fleet.gpu_memory_bytes), lower context_length, or use a smaller model",
        )
    if replica.gpu_need is not None and replica.unplaced and not account.has_gpus_for(replica):
        return Overloaded(
            f"{replica.name} needs {describe_need(replica.gpu_need)}, but pinned models hold too much of the GPUs",
            "unpin one, or see where they are: bay ps",
            retry_after_s=60.0,
        )
    message = "the model does not fit into the memory that pinned models leave, or max_awake is reached"
    return Overloaded(message, "see what it needs in `bay ps --json`", retry_after_s=60.0)


def _list_short_gpus(replica: ReplicaSnapshot, account: MemoryAccount) -> list[str]:
    """Return what no GPU, or too few of them, could give it."""
    need, gpus = replica.gpu_need, list_gpus(account.capacity)
    if need is None or replica.placement is not None:
        return []
    if need.count > len(gpus):
        return [f"{need.count} GPUs, but {len(gpus)} can be used"]
    amount = max(need.bytes_by_rank)
    able = [gpu for gpu in need.only or gpus if account.capacity[name_pool(gpu)] >= amount]
    used = sum(rank > 0 for rank in need.bytes_by_rank)
    if len(able) >= used:
        return []
    each = " each" if used > 1 else ""
    return [
        f"{used} {'GPU' if used == 1 else 'GPUs'} with {format_bytes(amount)}{each}, but only {len(able)} of this host's GPUs have that much"
    ]
