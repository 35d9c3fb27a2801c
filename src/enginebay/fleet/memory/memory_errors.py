"""Errors of models that no eviction makes room for. Pure."""

from __future__ import annotations

from enginebay.errors import DoesNotFit, EnginebayError, Overloaded
from enginebay.fleet.scheduling.planner_state import MemoryAccount, ReplicaSnapshot
from enginebay.util.number_format import format_bytes


def build_no_memory_error(replica: ReplicaSnapshot, account: MemoryAccount) -> EnginebayError:
    """Return why a replica can never load: it is too big for the host, or for what pinned models leave."""
    short = [
        f"{format_bytes(needed)} of {pool}, but the budget is {format_bytes(account.capacity.get(pool, 0))}"
        for pool, needed in replica.awake_bytes.items()
        if needed > account.capacity.get(pool, 0)
    ]
    if short:
        return DoesNotFit(
            f"{replica.name} does not fit on this host: it needs {'; '.join(short)}",
            "raise the budget (fleet.memory_bytes, fleet.gpu_memory_bytes), lower context_length, or use a smaller model",
        )
    message = "the model does not fit into the memory that pinned models leave, or max_awake is reached"
    return Overloaded(message, "see what it needs in `bay ps --json`", retry_after_s=60.0)
