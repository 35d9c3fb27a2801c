"""What a model takes of GPUs: from its `gpus` key and its engine's memory estimate. Pure.

gpus: 2        two whole GPUs          gpus: [0, 1]   exactly these; others may share them if memory allows
gpus: 0.5      half of one             unset          what the engine's settings take, shared if memory allows
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any, TypeAlias

from enginebay.contract import EngineSpec, MemoryEstimate
from enginebay.errors import ConfigError
from enginebay.fleet.scheduling.device_placement import (
    WHOLE_GPU,
    GpuNeed,
    Placement,
    add_pools,
    add_shares,
    name_pool,
    parse_pool,
    place_jointly,
)
from enginebay.util.gpus.gpu_discovery import PLACED_GPUS, VISIBLE_DEVICES, Gpu, match_device
from enginebay.util.hardware import HostFacts

USABLE_FRACTION = 0.95  # of the memory of the host and of each GPU

GpusKey: TypeAlias = int | float | tuple[int, ...] | None  # a model's `gpus`
NamedNeeds: TypeAlias = Mapping[str, GpuNeed]


def count_gpus(gpus: GpusKey) -> int | None:
    """Return how many GPUs the key gives a model; None: its engine's settings decide."""
    if gpus is None:
        return None
    return len(gpus) if isinstance(gpus, tuple) else max(1, int(gpus))


def derive_gpu_settings(spec: EngineSpec, settings: Mapping[str, Any], gpus: GpusKey) -> dict[str, Any]:
    """Return the engine's settings that follow from `gpus`. Raises `ConfigError` if one that is set contradicts it."""
    declared, count = spec.gpu_settings, count_gpus(gpus) or 1
    if isinstance(gpus, float) and declared.memory_fraction:
        configured = settings.get(declared.memory_fraction)
        if configured is None:
            return {declared.memory_fraction: round(gpus * declared.default_fraction, 4)}
        if configured > gpus:
            raise ConfigError(
                f"gpus is {gpus:g}, but {declared.memory_fraction} is {configured:g}",
                f"lower {declared.memory_fraction}, or remove one of them",
            )
    if count > 1 and declared.count and all(settings.get(name) is None for name in declared.count):
        return {declared.count[0]: count}
    return {}


def check_gpus(gpus: GpusKey, host: HostFacts) -> None:
    """Raise `ConfigError` if the host does not have these GPUs."""
    present = [gpu.index for gpu in host.gpus]
    missing = [index for index in gpus if index not in present] if isinstance(gpus, tuple) else []
    if missing:
        raise ConfigError(f"gpus lists GPU {missing[0]}, but {_describe_host(host)}", _hint_at_problems(host))
    count = count_gpus(gpus) or 0
    _check_count(count, host, f"gpus is {gpus}")


def _check_count(count: int, host: HostFacts, why: str) -> None:
    if count > len(host.gpus):
        raise ConfigError(f"{why}, but {_describe_host(host)}", _hint_at_problems(host))


def _describe_host(host: HostFacts) -> str:
    if not host.gpus:
        return "this host has no GPU that can be used"
    return f"this host has only {'GPU' if len(host.gpus) == 1 else 'GPUs'} {list_indexes(host.gpus)}"


def list_indexes(gpus: Iterable[Gpu]) -> str:
    return ", ".join(str(gpu.index) for gpu in gpus)


def _hint_at_problems(host: HostFacts) -> str:
    return "; ".join(host.gpu_problems) or "`bay doctor` lists them; CUDA_VISIBLE_DEVICES may hide some"


def select_gpu_sizes(gpus: GpusKey, host: HostFacts) -> tuple[int, ...]:
    """Return the memory of the GPUs that a model may get: of different ones the largest, so that no estimate is low."""
    if isinstance(gpus, tuple):
        sizes = {gpu.index: gpu.memory_bytes for gpu in host.gpus}
        return tuple(sizes[index] for index in gpus if index in sizes)
    largest = sorted((gpu.memory_bytes for gpu in host.gpus), reverse=True)
    return tuple(largest[: count_gpus(gpus)])


def build_gpu_need(estimate: MemoryEstimate, gpus: GpusKey, host: HostFacts) -> GpuNeed | None:
    """Return what a load takes of GPUs; None: nothing. Raises `ConfigError` if the host cannot give it."""
    ranks = {rank: amount for pool, amount in estimate.pools.items() if (rank := parse_pool(pool)) is not None}
    configured = count_gpus(gpus)
    if not ranks:
        if configured is not None:
            raise ConfigError(
                "gpus is set, but its settings use no GPU",
                "remove gpus, or the setting that keeps the model on the CPU",
            )
        return None
    taken = max(ranks) + 1
    in_order = len(ranks) == taken
    if configured is None:
        what = f"its parallel settings take {taken} GPUs" if in_order else f"its settings name GPU {taken - 1}"
        _check_count(taken, host, what)
        count = taken if in_order else len(host.gpus)
    else:
        _check_agreement(configured, taken, in_order, isinstance(gpus, float))
        count = configured
    return GpuNeed(
        tuple(max(1, ranks[rank]) if rank in ranks else 0 for rank in range(count)),
        _get_share(gpus, estimate.whole_gpus),
        gpus if isinstance(gpus, tuple) else () if in_order else tuple(gpu.index for gpu in host.gpus),
    )


def _check_agreement(configured: int, taken: int, in_order: bool, is_fraction: bool) -> None:
    if taken > configured:
        given = "a part of one GPU" if is_fraction else f"{configured}"
        raise ConfigError(
            f"gpus gives it {given}, but its parallel settings take {taken}", f"set gpus: {taken}, or remove it"
        )
    if in_order and taken < configured:
        raise ConfigError(
            f"gpus gives it {configured}, but its settings use {taken}",
            f"set gpus: {taken}, or let the engine's parallel settings use {configured}",
        )


def _get_share(gpus: GpusKey, whole_gpus: bool) -> int:
    if isinstance(gpus, float):
        return max(1, round(gpus * WHOLE_GPU))
    return WHOLE_GPU if whole_gpus or isinstance(gpus, int) else 1


def list_gpu_capacity(gpus: Iterable[Gpu], host_memory_bytes: int, budget_bytes: int | None) -> dict[str, int]:
    """Return the memory that models may use, by pool. A GPU without its own memory uses the host's."""
    return {
        name_pool(gpu.index): budget_bytes or int((gpu.memory_bytes or host_memory_bytes) * USABLE_FRACTION)
        for gpu in gpus
    }


def cap_need(need: GpuNeed, capacity: Mapping[str, int]) -> GpuNeed:
    """Return the need with no more memory of a GPU than the largest has: estimates may be wrong."""
    pools = [name_pool(gpu) for gpu in need.only] or list(capacity)
    largest = max((capacity.get(pool, 0) for pool in pools if parse_pool(pool) is not None), default=0)
    capped = tuple(min(amount, largest) if largest else amount for amount in need.bytes_by_rank)
    return GpuNeed(capped, need.share, need.only)


def describe_key(gpus: GpusKey) -> GpuNeed | None:
    """Return what the key alone says: shares of GPUs, and hardly any memory."""
    count = count_gpus(gpus)
    if count is None:
        return None
    return GpuNeed((1,) * count, _get_share(gpus, whole_gpus=False), gpus if isinstance(gpus, tuple) else ())


def check_pinned(pinned: NamedNeeds, capacity: Mapping[str, int]) -> None:
    """Raise `ConfigError` if models that are never evicted do not fit on the GPUs together."""
    needs = [(name, cap_need(need, capacity)) for name, need in pinned.items()]
    if len(place_jointly(needs, add_shares(capacity), {})) < len(needs):
        listed = "; ".join(f"{name}: {describe_need(need)}" for name, need in pinned.items())
        raise ConfigError(
            f"the pinned models do not fit on this host's GPUs together ({listed})",
            "unpin one, or change its gpus: a model that is not pinned takes turns",
        )


def find_clashes(needs: NamedNeeds, capacity: Mapping[str, int]) -> list[str]:
    """Return a line for every two models whose configured GPUs cannot hold both."""
    fixed = {name: cap_need(need, capacity) for name, need in needs.items() if need.only}
    limits = add_shares(capacity)
    lines = []
    for (one, need), (other, other_need) in combinations(fixed.items(), 2):
        both = add_pools(need.to_pools(need.only), other_need.to_pools(other_need.only))
        short = {pool.partition(".")[0] for pool, amount in both.items() if amount > limits.get(pool, 0)}
        if short:
            gpu = min(int(pool[3:]) for pool in short)
            lines.append(
                f"{one} and {other} do not fit on GPU {gpu} together, but gpus places both there: they take turns"
            )
    return lines


def describe_need(need: GpuNeed) -> str:
    """Describe a need: "GPU 0, 1", "2 whole GPUs", "0.5 of a GPU"."""
    if need.only:
        return f"GPU {', '.join(map(str, need.list_used(need.only)))}"
    if need.share == WHOLE_GPU:
        return f"{need.count} whole {'GPU' if need.count == 1 else 'GPUs'}"
    return f"{need.share / WHOLE_GPU:g} of a GPU" if need.share > 1 else f"{need.count} GPU"


def build_device_variables(gpus: Sequence[Gpu], visible: Placement, used: Placement) -> dict[str, str]:
    """Return the variables of a worker that sees some GPUs and computes on those in `used`."""
    names = {gpu.index: gpu.device or str(gpu.index) for gpu in gpus}
    variables = {
        VISIBLE_DEVICES: ",".join(names[index] for index in visible if index in names),
        PLACED_GPUS: ",".join(names[index] for index in used if index in names),
    }
    by_number = any(names[index].isdigit() for index in visible if index in names)
    return {**variables, **({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if by_number else {})}


def find_pins_in_environment(env: Mapping[str, str | None] | None, gpus: GpusKey, host: HostFacts) -> GpusKey:
    """Return `gpus`, or the GPUs that a model's own CUDA_VISIBLE_DEVICES names. Raises `ConfigError` if it has both."""
    visible = (env or {}).get(VISIBLE_DEVICES)
    if visible is None:
        return gpus
    if gpus is not None:
        raise ConfigError(f"both gpus and {VISIBLE_DEVICES} in env are set", "remove one of them")
    devices = [gpu.device for gpu in host.gpus]
    pins = [match_device(name.strip(), devices) for name in visible.split(",")]
    known = [host.gpus[pin].index for pin in pins if pin is not None]
    return tuple(known) if len(known) == len(pins) else None
