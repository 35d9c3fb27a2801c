"""Estimates the memory of a variant per pool ("ram", "gpu0", "gpu1", ...); observations then correct the estimate.

    facts = gather_memory_facts(plan.launch.load, host, environment.probe.devices)
    estimate = estimate_memory(plan.spec, facts, plan.launch.python)
    apply_observed_memory(estimate.pools, observed.get_peak_memory(key), config_bytes)

The estimate itself belongs to the engine: `EngineSpec.memory`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from enginebay.contract import EngineSpec, Load, MemoryEstimate, MemoryFacts, estimate_generic_memory
from enginebay.contract.memory_facts import GIB, RAM
from enginebay.environments.engine_probe import run_probe
from enginebay.errors import EngineFailed, ModelInvalid
from enginebay.fleet.memory.gpu_needs import GpusKey, select_gpu_sizes
from enginebay.models.model_description import CONTEXT_KEYS, read_safetensors_header
from enginebay.models.model_sources import list_split_files
from enginebay.text.gguf.gguf_reader import is_gguf, read_gguf
from enginebay.util.hardware import HostFacts

_POOL = re.compile(r"ram|gpu\d+")
_MARGIN = 1.05  # on observed memory, which grows a little with use
_ASLEEP_SHARE, _ASLEEP_CONTEXT = 0.02, GIB  # left on a GPU while weights and cache are offloaded
_FLOATS = frozenset(("F64", "F32", "F16", "BF16"))  # of safetensors: loaded in the configured precision


def estimate_memory(spec: EngineSpec, facts: MemoryFacts, python: Path) -> MemoryEstimate:
    """Return the engine's own estimate. `python`, of its environment, runs an estimate that is not installed in ours.

    Raises `EngineFailed` if the estimate fails.
    """
    if not spec.memory:
        return estimate_generic_memory(facts)
    module, _, name = spec.memory.partition(":")
    try:
        function = getattr(import_module(module), name, None) if find_spec(module.partition(".")[0]) else None
        if function is None:
            reply = run_probe(python, {"memory": spec.memory, "facts": asdict(facts)}, spec.env_prefixes)
            estimate = MemoryEstimate(**reply["memory"])
        else:
            estimate = function(facts)
        pools = _check_pools(estimate)
    except EngineFailed:
        raise
    except Exception as error:  # a third-party function may raise and return anything
        raise EngineFailed(
            f"the memory estimate of {spec.kind} failed: {type(error).__name__}: {error}",
            f"report it to the engine's author: {spec.memory}",
        ) from error
    return replace(estimate, pools=pools)


def _check_pools(estimate: Any) -> dict[str, int]:
    if not isinstance(estimate, MemoryEstimate):
        raise TypeError(f"it returned {type(estimate).__name__}, not a MemoryEstimate")
    pools = {pool: math.ceil(amount) for pool, amount in estimate.pools.items()}
    invalid = [f"{pool}: {amount}" for pool, amount in pools.items() if amount < 0 or not _POOL.fullmatch(pool)]
    if invalid:
        raise ValueError(f"pools are ram, gpu0, gpu1, ... in bytes, not {', '.join(invalid)}")
    return pools


def apply_observed_memory(
    estimated: Mapping[str, int], observed: Mapping[str, int], memory_bytes: int | None = None
) -> dict[str, int]:
    """Override estimates with observations, and both with the configured `memory_bytes` (RAM only)."""
    known = {pool: math.ceil(amount * _MARGIN) for pool, amount in observed.items() if amount > 0}
    return {**estimated, **known, **({} if memory_bytes is None else {RAM: memory_bytes})}


def estimate_asleep_memory(
    awake: Mapping[str, int], levels: Collection[int], sleep: str | int, weights_bytes: int
) -> dict[str, int]:
    """Estimate the memory held while asleep. `sleep` is the configured level; an unsupported one frees nothing."""
    level = 1 if sleep == "auto" else sleep
    gpus = {pool: amount for pool, amount in awake.items() if pool != RAM}
    if level not in levels or not gpus:
        return dict(awake)
    left = {pool: min(amount, int(amount * _ASLEEP_SHARE) + _ASLEEP_CONTEXT) for pool, amount in gpus.items()}
    return {RAM: awake.get(RAM, 0) + (weights_bytes if level == 1 else 0), **left}


def supports_cuda(devices: Collection[str]) -> bool:
    """Return whether an engine's library was built for GPUs, by the devices of its probe."""
    return any(device.startswith("cuda") for device in devices)


# Gathering: reads file headers, never weights.


def gather_memory_facts(
    load: Load, host: HostFacts, devices: Collection[str] | None = None, gpus: GpusKey = None
) -> MemoryFacts:
    """Collect the facts of a load on this host.

    `devices`: those the installed library supports, from its probe. `gpus`: the model's key.
    """
    cuda = host.cuda and (devices is None or supports_cuda(devices))
    path = Path(load.path) if load.path not in ("", ".") else None
    config = {} if path is None else _read_model_config(path)
    extra_paths = [
        *load.loras.values(),
        load.settings.get("speculative.model"),
        load.settings.get("assisted_generation.model"),
    ]
    heads = _get_positive_int(config, "num_attention_heads", "n_head")
    width = _get_positive_int(config, "hidden_size", "n_embd", "d_model")
    return MemoryFacts(
        kind=load.kind,
        **({} if path is None else _measure_weights(path, config)),
        extra_bytes=sum(_sum_stored_bytes(Path(extra)) for extra in extra_paths if extra),
        layers=_get_positive_int(config, "num_hidden_layers", "n_layer", "num_layers"),
        kv_heads=_get_positive_int(config, "num_key_value_heads", "num_kv_heads") or heads,
        head_dim=_get_positive_int(config, "head_dim") or (width // heads if heads else 0),
        context_length=_get_positive_int(config, *CONTEXT_KEYS) or None,
        stored_dtype=str(config.get("dtype") or config.get("torch_dtype") or ""),
        settings=load.settings,
        gpus=select_gpu_sizes(gpus, host) if cuda else (),
        gpus_configured=gpus is not None and cuda,
        cuda=cuda,
        task=load.task,
        memory_bytes=host.memory_bytes,
        bf16="bf16" in host.features,
    )


def _read_model_config(path: Path) -> dict[str, Any]:
    """Read config.json with its text part merged in, or the same keys from a GGUF header. Empty if unreadable."""
    if path.is_file():
        return _read_gguf_config(path)
    try:
        content = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(content, dict):
        return {}
    text = content.get("text_config")
    return {**content, **text} if isinstance(text, dict) else content


def _read_gguf_config(path: Path) -> dict[str, Any]:
    try:
        file = read_gguf(path)
    except ModelInvalid:
        return {}
    heads, width = file.get_number("attention.head_count"), file.get_number("embedding_length")
    default = width // heads if heads else 0
    key = file.get_number("attention.key_length") or default
    value = file.get_number("attention.value_length") or default
    return {
        "num_hidden_layers": file.get_number("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": file.get_number("attention.head_count_kv"),
        "head_dim": -(-(key + value) // 2),
        "max_position_embeddings": file.get_number("context_length"),
    }


def _get_positive_int(config: Mapping[str, Any], *names: str) -> int:
    values = (config.get(name) for name in names)
    return next((value for value in values if isinstance(value, int) and value > 0), 0)


def _measure_weights(path: Path, config: Mapping[str, Any]) -> dict[str, int]:
    """Return the weights' bytes as stored, and of which values: the fields of `MemoryFacts`."""
    if not path.is_dir():
        return {"weights_bytes": _sum_stored_bytes(path)}
    packed = _count_packed_values(config)
    total = dict.fromkeys(("weights_bytes", "float_values", "float_bytes", "packed_values", "packed_bytes"), 0)
    for file in _list_safetensors(path):
        try:
            tensors = [
                (tensor["dtype"], math.prod(tensor["shape"]), tensor["data_offsets"][1] - tensor["data_offsets"][0])
                for tensor in read_safetensors_header(file).values()
            ]
        except (ModelInvalid, OSError, KeyError, IndexError, TypeError, ValueError):
            tensors = [("", 0, _get_file_size(file))]
        for dtype, count, size in tensors:
            total["weights_bytes"] += size
            if dtype in _FLOATS:
                total["float_values"] += count
                total["float_bytes"] += size
            elif packed > 1 and dtype == "I32":
                total["packed_values"] += count * packed
                total["packed_bytes"] += size
    return total


def _count_packed_values(config: Mapping[str, Any]) -> int:
    """Return the number of weights in one stored integer."""
    quantization = config.get("quantization_config")
    if not isinstance(quantization, Mapping) or quantization.get("quant_method") not in ("gptq", "awq"):
        return 1
    bits = quantization.get("bits")
    return 32 // bits if isinstance(bits, int) and bits in (2, 3, 4, 8) else 8


def _list_safetensors(folder: Path) -> list[Path]:
    files = sorted(folder.glob("*.safetensors"))
    return [file for file in files if not file.name.startswith("consolidated")] or files  # that one is a second copy


def _sum_stored_bytes(path: Path) -> int:
    if path.is_dir():
        return sum(map(_get_file_size, _list_safetensors(path)))
    names = list_split_files(path.name) if is_gguf(path) else [path.name]
    return sum(_get_file_size(path.with_name(name)) for name in names)


def _get_file_size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0
