"""Estimates the memory of a variant per pool ("ram", "gpu0", "gpu1", ...); observations then correct the estimate.

    facts = gather_memory_facts(plan.launch.load, host, environment.probe.devices)
    apply_observed_memory(estimate_memory(facts), observed.get_peak_memory(key), config_bytes)

All but `gather_memory_facts` is pure. Estimates err on the high side: too high costs an eviction, too low the whole host.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from enginebay.contract import Load
from enginebay.engines.llamacpp.gguf_model import get_model_number
from enginebay.engines.llamacpp.settings import DEFAULT_BATCH, DEFAULT_CONTEXT
from enginebay.errors import ModelInvalid
from enginebay.models.model_description import CONTEXT_KEYS, read_safetensors_header
from enginebay.models.model_sources import list_split_files
from enginebay.text.gguf.ggml_types import TENSOR_TYPES
from enginebay.text.gguf.gguf_reader import is_gguf, read_gguf
from enginebay.util.hardware import HostFacts

RAM = "ram"
_MIB, _GIB = 2**20, 2**30
_MARGIN = 1.05  # on observed memory, which grows a little with use
_BARE_WORKER = 100 * _MIB  # Python, gRPC, no library
_CUDA_CONTEXT = 500 * _MIB  # per GPU: driver and scratch space
_ASLEEP_SHARE, _ASLEEP_CONTEXT = 0.02, _GIB  # left on a GPU while weights and cache are offloaded

_LLAMACPP = 300 * _MIB  # library and compute buffers
_LLAMACPP_DEFAULT_CACHE = _GIB  # its KV cache without a configured size, at most half of the free memory
_VLLM_CPU, _VLLM_CPU_CACHE_GIB = int(1.5 * _GIB), 4.0
_VLLM_CUDA_RAM, _VLLM_UTILIZATION = 4 * _GIB, 0.92
_TRANSFORMERS, _TRANSFORMERS_CUDA_RAM = _GIB, 2 * _GIB
_TRANSFORMERS_CACHE = _GIB  # assumed size; it grows with use
_TRANSFORMERS_ROWS, _TRANSFORMERS_ROWS_CUDA = 32, 256

_GUESSED_TOKENS_PER_WEIGHTS = 8192  # tokens whose cache equals the weights in size, if the shape is unknown
_DTYPE_BYTES = {"float32": 4, "float": 4, "float16": 2, "half": 2, "bfloat16": 2}
_FLOATS = frozenset(("F64", "F32", "F16", "BF16"))  # of safetensors: loaded in the configured precision
_QUANTIZED_BYTES = {4: 0.6, 8: 1.1}  # per parameter: embeddings and scales stay unquantized
_CACHE_TYPE_BYTES = {kind.name.lower(): kind.block_bytes / kind.block_size for kind in TENSOR_TYPES.values()}


@dataclass(frozen=True, slots=True)
class MemoryFacts:
    """Inputs of the estimate. A shape of 0 is unknown."""

    kind: str
    weights_bytes: int = 0  # as the engine holds them, adapters and draft model included
    layers: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    context_length: int | None = None  # the model's maximum
    settings: Mapping[str, Any] = field(default_factory=dict)
    gpus: tuple[int, ...] = ()  # bytes of each
    cuda: bool = False  # the engine uses the GPUs
    task: str = "generate"
    memory_bytes: int = 0  # the host's RAM, of which some engines take a share by default; 0: unknown

    def get_setting(self, *names: str) -> Any:
        """Return the first of these settings that is set, including those under `extra`."""
        extra = self.settings.get("extra") or {}
        values = (extra.get(name, self.settings.get(name)) for name in names)
        return next((value for value in values if value is not None), None)

    def estimate_kv_cache_bytes(self, tokens: float, value_bytes: float = 2.0) -> int:
        """Estimate the KV cache of `tokens`, with `value_bytes` per number."""
        values = 2 * self.layers * self.kv_heads * self.head_dim
        return int(tokens * (values * value_bytes if values else self.weights_bytes / _GUESSED_TOKENS_PER_WEIGHTS))


def estimate_memory(facts: MemoryFacts) -> dict[str, int]:
    """Estimate the bytes a variant uses in each pool."""
    return _ESTIMATORS.get(facts.kind, _estimate_unknown)(facts)


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


def resolve_size_settings(facts: MemoryFacts) -> dict[str, int]:
    """Return the size settings with the engine's defaults filled in: what can be made smaller."""
    context = _get_context_length(facts)
    if facts.kind == "llamacpp":
        return {
            "context_length": context,
            "max_batch": _get_slots(facts),
            "kv_cache_tokens": _estimate_llamacpp_cache_tokens(facts),
        }
    return {"max_model_len" if facts.kind == "vllm" else "context_length": context}


def _get_context_length(facts: MemoryFacts) -> int:
    trained = facts.context_length or DEFAULT_CONTEXT
    default = min(trained, DEFAULT_CONTEXT) if facts.kind == "llamacpp" else trained
    return int(facts.get_setting("context_length", "max_model_len") or default)


# llamacpp


def _get_slots(facts: MemoryFacts) -> int:
    return int(facts.get_setting("max_batch", "batching.batch_size") or DEFAULT_BATCH)


def _get_llamacpp_value_bytes(facts: MemoryFacts) -> float:
    both = [_CACHE_TYPE_BYTES.get(facts.get_setting(name) or "f16", 2.0) for name in ("cache_type_k", "cache_type_v")]
    return sum(both) / 2


def _estimate_llamacpp_cache_tokens(facts: MemoryFacts) -> int:
    """Return the KV cache size the engine chooses: all requests at full length, within its share of memory."""
    context, slots = _get_context_length(facts), _get_slots(facts)
    if facts.task == "embed":
        return context  # inputs run one at a time
    configured = facts.get_setting("kv_cache_tokens")
    if configured is not None:
        return max(context, min(int(configured), context * slots))
    on_gpu = _uses_gpu(facts)
    limit = (sum(facts.gpus) if on_gpu else facts.memory_bytes) / 2 or math.inf
    if not on_gpu and facts.get_setting("context_length", "max_batch", "batching.batch_size") is None:
        limit = min(limit, _LLAMACPP_DEFAULT_CACHE)
    per_token = facts.estimate_kv_cache_bytes(1, _get_llamacpp_value_bytes(facts))
    affordable = limit / per_token if per_token else math.inf
    return int(max(context, min(context * slots, affordable)))


def _uses_gpu(facts: MemoryFacts) -> bool:
    return facts.cuda and bool(facts.gpus) and facts.get_setting("gpu_layers") != 0


def _estimate_llamacpp(facts: MemoryFacts) -> dict[str, int]:
    cache = facts.estimate_kv_cache_bytes(_estimate_llamacpp_cache_tokens(facts), _get_llamacpp_value_bytes(facts))
    ram = _LLAMACPP + int(facts.get_setting("prompt_cache_mib") or 0) * _MIB
    if not _uses_gpu(facts):
        return {RAM: facts.weights_bytes + cache + ram}
    offloaded = 0 if facts.get_setting("kv_offload") is False else cache
    shares = _split_llamacpp_gpus(facts)
    fraction = _compute_llamacpp_gpu_fraction(
        facts, facts.weights_bytes + offloaded, sum(facts.gpus[gpu] for gpu in shares)
    )
    on_gpus = int((facts.weights_bytes + offloaded) * fraction)
    pools = {f"gpu{gpu}": int(on_gpus * share) + _CUDA_CONTEXT for gpu, share in shares.items()}
    return {RAM: facts.weights_bytes + cache - on_gpus + ram, **pools}


def _compute_llamacpp_gpu_fraction(facts: MemoryFacts, needed: int, available: int) -> float:
    """Return the fraction of weights and cache on the GPUs: the configured layers, else as many as fit."""
    layers = facts.get_setting("gpu_layers")
    if layers is not None and layers > 0 and facts.layers:
        return min(1.0, float(layers / (facts.layers + 1)))  # plus the output layer
    return min(1.0, max(0, available - len(facts.gpus) * _CUDA_CONTEXT) / max(1, needed))


def _split_llamacpp_gpus(facts: MemoryFacts) -> dict[int, float]:
    """Return the share of each GPU it uses: by `tensor_split`, else in proportion to GPU memory."""
    if facts.get_setting("split_mode") == "none":
        return {min(int(facts.get_setting("main_gpu") or 0), len(facts.gpus) - 1): 1.0}
    split = [float(part) for part in facts.get_setting("tensor_split") or ()][: len(facts.gpus)]
    weights = split if sum(split) > 0 else [float(size) for size in facts.gpus]
    total = sum(weights) or 1.0
    return {gpu: weight / total for gpu, weight in enumerate(weights) if weight > 0} or {0: 1.0}


# vllm


def _estimate_vllm(facts: MemoryFacts) -> dict[str, int]:
    shards = int(facts.get_setting("sharding.num_shards") or 1)
    tensor = int(facts.get_setting("tensor_parallel_size") or 1)
    ranks = max(shards, tensor * int(facts.get_setting("pipeline_parallel_size") or 1))
    if not facts.cuda or not facts.gpus:
        configured = facts.get_setting("cpu_kvcache_space_gib")
        default = min(_VLLM_CPU_CACHE_GIB * _GIB, facts.memory_bytes / 4 or math.inf)
        cache = int(float(configured) * _GIB if configured is not None else default)
        return {RAM: facts.weights_bytes + ranks * (cache + _VLLM_CPU)}
    offloaded = int(float(facts.get_setting("cpu_offload_gb") or 0) * _GIB)
    share = float(facts.get_setting("gpu_memory_utilization") or _VLLM_UTILIZATION)
    pools = {f"gpu{gpu}": int(size * share) for gpu, size in enumerate(facts.gpus[:ranks])}
    return {RAM: _VLLM_CUDA_RAM + (ranks - 1) * _VLLM_CUDA_RAM // 2 + ranks * offloaded, **pools}


# transformers, and unknown engines


def _estimate_transformers(facts: MemoryFacts) -> dict[str, int]:
    device = str(facts.get_setting("device") or "")
    on_gpu = facts.cuda and bool(facts.gpus) and not device.startswith("cpu")
    rows = int(facts.get_setting("batching.batch_size") or (_TRANSFORMERS_ROWS_CUDA if on_gpu else _TRANSFORMERS_ROWS))
    value_bytes = 2.0 if on_gpu else 4.0
    cache = min(facts.estimate_kv_cache_bytes(rows * _get_context_length(facts), value_bytes), _TRANSFORMERS_CACHE)
    total = facts.weights_bytes + (0 if facts.get_setting("use_cache") is False or facts.task == "embed" else cache)
    shards = int(facts.get_setting("sharding.num_shards") or 1)
    if not on_gpu:
        return {RAM: total + shards * _TRANSFORMERS}
    used = _list_transformers_gpus(facts, device, shards)
    pools = {f"gpu{gpu}": total // len(used) + _TRANSFORMERS for gpu in used}
    return {RAM: shards * _TRANSFORMERS_CUDA_RAM, **pools}


def _list_transformers_gpus(facts: MemoryFacts, device: str, shards: int) -> list[int]:
    every = list(range(len(facts.gpus)))
    if (
        facts.get_setting("sharding.strategy") == "pipeline"
        or facts.get_setting("device_map", "max_memory") is not None
    ):
        return every  # assume an even split
    if shards > 1:
        return every[:shards]
    number = device.partition(":")[2]
    return [min(int(number), every[-1])] if number.isdigit() else [0]


def _estimate_unknown(facts: MemoryFacts) -> dict[str, int]:
    """Estimate a third-party engine. Without weights it is a small process."""
    if not facts.weights_bytes:
        return {RAM: _BARE_WORKER}
    return {RAM: facts.weights_bytes + facts.estimate_kv_cache_bytes(_get_context_length(facts)) + _TRANSFORMERS}


def _estimate_fake(facts: MemoryFacts) -> dict[str, int]:
    configured = facts.get_setting("memory_bytes")
    return {RAM: _BARE_WORKER if configured is None else int(configured)}


_ESTIMATORS: Mapping[str, Callable[[MemoryFacts], dict[str, int]]] = {
    "llamacpp": _estimate_llamacpp,
    "vllm": _estimate_vllm,
    "transformers": _estimate_transformers,
    "fake": _estimate_fake,
}


# Gathering: reads file headers, never weights.


def gather_memory_facts(load: Load, host: HostFacts, devices: Collection[str] | None = None) -> MemoryFacts:
    """Collect the facts of a load on this host. `devices`: those the installed library supports, from its probe."""
    cuda = host.cuda and (devices is None or any(device.startswith("cuda") for device in devices))
    path = Path(load.path) if load.path not in ("", ".") else None
    config = {} if path is None else _read_model_config(path)
    weights = 0 if path is None else _estimate_weights_bytes(path, load, config, cuda, "bf16" in host.features)
    extra_paths = [
        *load.loras.values(),
        load.settings.get("speculative.model"),
        load.settings.get("assisted_generation.model"),
    ]
    heads = _get_positive_int(config, "num_attention_heads", "n_head")
    width = _get_positive_int(config, "hidden_size", "n_embd", "d_model")
    return MemoryFacts(
        kind=load.kind,
        weights_bytes=weights + sum(_sum_stored_bytes(Path(extra)) for extra in extra_paths if extra),
        layers=_get_positive_int(config, "num_hidden_layers", "n_layer", "num_layers"),
        kv_heads=_get_positive_int(config, "num_key_value_heads", "num_kv_heads") or heads,
        head_dim=_get_positive_int(config, "head_dim") or (width // heads if heads else 0),
        context_length=_get_positive_int(config, *CONTEXT_KEYS) or None,
        settings=load.settings,
        gpus=tuple(gpu.memory_bytes for gpu in host.gpus) if cuda else (),
        cuda=cuda,
        task=load.task,
        memory_bytes=host.memory_bytes,
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
    heads, width = get_model_number(file, "attention.head_count"), get_model_number(file, "embedding_length")
    default = width // heads if heads else 0
    key = get_model_number(file, "attention.key_length") or default
    value = get_model_number(file, "attention.value_length") or default
    return {
        "num_hidden_layers": get_model_number(file, "block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": get_model_number(file, "attention.head_count_kv"),
        "head_dim": -(-(key + value) // 2),
        "max_position_embeddings": get_model_number(file, "context_length"),
    }


def _get_positive_int(config: Mapping[str, Any], *names: str) -> int:
    values = (config.get(name) for name in names)
    return next((value for value in values if isinstance(value, int) and value > 0), 0)


def _estimate_weights_bytes(path: Path, load: Load, config: Mapping[str, Any], cuda: bool, bf16: bool) -> int:
    if not path.is_dir():
        return _sum_stored_bytes(path)
    weight_bytes = _get_bytes_per_weight(load, config, cuda, bf16)
    packed = _count_packed_values(load, config)
    total = 0.0
    for file in _list_safetensors(path):
        try:
            tensors = read_safetensors_header(file).values()
            for tensor in tensors:
                count = math.prod(tensor["shape"])
                start, end = tensor["data_offsets"]
                converted = tensor["dtype"] in _FLOATS or (packed > 1 and tensor["dtype"] == "I32")
                values = count * (packed if tensor["dtype"] == "I32" else 1)
                total += values * weight_bytes if weight_bytes and converted else end - start
        except (ModelInvalid, OSError, KeyError, TypeError, ValueError):
            total += _get_file_size(file)
    return int(total)


def _get_bytes_per_weight(load: Load, config: Mapping[str, Any], cuda: bool, bf16: bool) -> float:
    """Return the bytes of one weight in the engine's precision; 0: as stored."""
    settings = load.settings
    for bits, amount in _QUANTIZED_BYTES.items():
        if settings.get(f"quantization.load_in_{bits}bit"):
            return amount
    dtype = next((settings[name] for name in ("dtype", "torch_dtype", "fp_precision") if settings.get(name)), None)
    if dtype not in (None, "auto"):
        return _DTYPE_BYTES.get(str(dtype), 4)
    stored = config.get("dtype") or config.get("torch_dtype")
    if load.kind == "transformers" and dtype is None:
        return 2 if cuda and not str(settings.get("device", "")).startswith("cpu") else 4
    if load.kind == "vllm" and not cuda and not bf16 and stored in ("bfloat16", "float32", None):
        return 4
    return 0


def _count_packed_values(load: Load, config: Mapping[str, Any]) -> int:
    """Return the number of weights in one stored integer, if the engine may have to unpack them."""
    quantization = config.get("quantization_config")
    if load.kind != "transformers" or not isinstance(quantization, Mapping):
        return 1
    bits = quantization.get("bits")
    if quantization.get("quant_method") not in ("gptq", "awq"):
        return 1
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
