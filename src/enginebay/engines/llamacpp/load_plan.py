"""Convert load settings to attributes of xllamacpp.CommonParams. Pure: does not import the library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from enginebay.contract import Load, Support
from enginebay.engines.llamacpp.settings import (
    CACHE_TYPE_BYTES,
    DEFAULT_BATCH,
    DEFAULT_CACHE_BYTES,
    DEFAULT_CONTEXT,
    SETTINGS,
    STEP_TOKENS_CPU,
    STEP_TOKENS_GPU,
)
from enginebay.errors import ConfigError
from enginebay.text.gguf.gguf_reader import GgufFile

_DEFAULT_UBATCH_TOKENS = 512
_SIZE_SETTINGS = ("context_length", "max_batch", "batching.batch_size")

# Settings passed on unchanged -> attribute.
_DIRECT_ATTRIBUTES = {
    "cache_type_k": "cache_type_k", "cache_type_v": "cache_type_v", "numa": "numa", "split_mode": "split_mode",
    "gpu_layers": "n_gpu_layers", "main_gpu": "main_gpu", "tensor_split": "tensor_split", "swa_full": "swa_full",
    "check_tensors": "check_tensors", "warmup": "warmup", "prompt_cache": "cache_prompt",
    "rope_scaling.type": "rope_scaling_type", "rope_scaling.freq_base": "rope_freq_base",
    "rope_scaling.freq_scale": "rope_freq_scale", "rope_scaling.yarn_ext_factor": "yarn_ext_factor",
    "rope_scaling.yarn_attn_factor": "yarn_attn_factor", "rope_scaling.yarn_beta_fast": "yarn_beta_fast",
    "rope_scaling.yarn_beta_slow": "yarn_beta_slow", "rope_scaling.yarn_orig_ctx": "yarn_orig_ctx",
}  # fmt: skip

# `extra` must not set these: they would open a port, read another file or break a request's guarantees.
_PROTECTED_ATTRIBUTES = frozenset(
    [
        "model",
        "hostname",
        "hostnames",
        "port",
        "api_keys",
        "api_prefix",
        "public_path",
        "ssl_file_cert",
        "ssl_file_key",
        "mmproj",
        "lora_adapters",
        "n_ctx",
        "n_parallel",
        "ctx_shift",
        "slot_save_path",
        "path_prompt_cache",
        "mcp_servers_config",
        "mcp_servers_json",
        "server_tools",
    ]
)


@dataclass(frozen=True, slots=True)
class EnumMember:
    """A member of one of the library's enums, by name."""

    enum: str
    member: str


# Attribute -> its enum and the prefix of the members' names.
_ENUMS = {
    "cache_type_k": ("ggml_type", "GGML_TYPE_"),
    "cache_type_v": ("ggml_type", "GGML_TYPE_"),
    "numa": ("ggml_numa_strategy", "GGML_NUMA_STRATEGY_"),
    "split_mode": ("llama_split_mode", "LLAMA_SPLIT_MODE_"),
    "rope_scaling_type": ("llama_rope_scaling_type", "LLAMA_ROPE_SCALING_TYPE_"),
    "flash_attn_type": ("llama_flash_attn_type", "LLAMA_FLASH_ATTN_TYPE_"),
    "load_mode": ("llama_load_mode", "LLAMA_LOAD_MODE_"),
    "pooling_type": ("llama_pooling_type", "LLAMA_POOLING_TYPE_"),
}
_SPECULATION = ("common_speculative_type", "COMMON_SPECULATIVE_TYPE_")


@dataclass(frozen=True, slots=True)
class LlamaHost:
    """The machine's cores and free memory."""

    cores: int
    free_bytes: int  # of main memory
    gpu_free_bytes: int = 0  # of the GPUs the library can use
    gpu_total_bytes: int = 0


@dataclass(frozen=True, slots=True)
class LlamaLoadPlan:
    """Sizes, attributes and effective settings of one load."""

    context_length: int
    max_batch: int
    cache_tokens: int  # KV cache that running requests share
    busy_wait: bool
    attributes: Mapping[str, Any]  # dotted attribute of CommonParams -> value
    effective: Mapping[str, Any]
    warnings: tuple[str, ...] = field(default=())

    @property
    def has_shared_cache(self) -> bool:
        """Whether the cache is smaller than every request at full length would need."""
        return self.cache_tokens < self.context_length * self.max_batch


def plan_load(load: Load, file: GgufFile, host: LlamaHost) -> LlamaLoadPlan:
    """Resolve every setting. Raises `ConfigError` for impossible values."""
    settings = {name: value for name, value in load.settings.items() if value is not None}
    unknown = [name for name in settings if name not in SETTINGS]
    if unknown:
        raise ConfigError(
            f"llamacpp has no setting {unknown[0]}", "`bay engines matrix` lists all settings", param=unknown[0]
        )
    context = _decide_context_length(settings, file)
    batch = int(settings.get("max_batch") or settings.get("batching.batch_size") or DEFAULT_BATCH)
    embedding = load.task == "embed"
    step = int(settings.get("batch_size") or (STEP_TOKENS_GPU if _uses_gpu(settings, host) else STEP_TOKENS_CPU))
    single_step = max(context, step)  # an embedding is computed in one piece, and its cache is not reused
    cache = single_step if embedding else _decide_cache_tokens(settings, file, host, context, batch)
    attributes = _build_sizes(settings, step, context, batch, cache)
    attributes |= {name: _to_native(name, settings[key]) for key, name in _DIRECT_ATTRIBUTES.items() if key in settings}
    attributes |= _build_compute(settings, host) | _build_load_mode(settings) | _build_speculation(settings)
    if embedding:
        attributes |= {"embedding": True, "n_batch": single_step, "n_ubatch": single_step} | _build_pooling(
            settings, file
        )
        # With separate caches the library splits texts of unequal length and pools only each text's last part.
        attributes["kv_unified"] = True
    attributes |= _read_extra(settings)
    return LlamaLoadPlan(
        context_length=context,
        max_batch=batch,
        cache_tokens=cache,
        busy_wait=bool(settings.get("busy_wait", False)),
        attributes=attributes,
        effective=_list_effective(settings, attributes, context, batch, cache),
        warnings=_list_warnings(settings, host),
    )


def _read_extra(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return `extra`. Raises `ConfigError` for protected attributes."""
    extra = dict(settings.get("extra") or {})
    for name in extra:
        if name.partition(".")[0] in _PROTECTED_ATTRIBUTES:
            raise ConfigError(f"llamacpp.extra must not set {name}", "remove it: Enginebay sets it", param="extra")
    return extra


def _decide_context_length(settings: Mapping[str, Any], file: GgufFile) -> int:
    trained = file.context_length or DEFAULT_CONTEXT
    requested = settings.get("context_length")
    if requested is None:
        return min(trained, DEFAULT_CONTEXT)
    if requested > trained:
        raise ConfigError(
            f"context_length is {requested}, but the model was trained for {trained}",
            f"set context_length to {trained} or less: llama.cpp's server supports no more",
            param="context_length",
        )
    return int(requested)


def _decide_cache_tokens(settings: Mapping[str, Any], file: GgufFile, host: LlamaHost, context: int, batch: int) -> int:
    """Return cache tokens for every request at full length, as far as memory allows.

    With its own cache a request's output does not depend on other requests; a shared cache takes less memory.
    """
    requested = settings.get("kv_cache_tokens")
    if requested is not None:
        if requested < context:
            raise ConfigError(
                f"kv_cache_tokens is {requested}, below context_length {context}",
                "one request must fit: raise kv_cache_tokens or lower context_length",
                param="kv_cache_tokens",
            )
        return int(min(requested, context * batch))
    fraction = settings.get("gpu_memory_fraction")
    gpu_free = min(host.gpu_free_bytes, int(host.gpu_total_bytes * fraction)) if fraction else host.gpu_free_bytes
    free = gpu_free if _uses_gpu(settings, host) else host.free_bytes
    size_is_set = _uses_gpu(settings, host) or any(name in settings for name in _SIZE_SETTINGS)
    limit = free // 2 if size_is_set else min(free // 2, DEFAULT_CACHE_BYTES)
    per_token = estimate_cache_bytes_per_token(settings, file)
    affordable = int(limit / per_token) if per_token else context * batch
    return max(context, min(context * batch, affordable))


def _uses_gpu(settings: Mapping[str, Any], host: LlamaHost) -> bool:
    return host.gpu_free_bytes > 0 and settings.get("gpu_layers", -1) != 0


def estimate_cache_bytes_per_token(settings: Mapping[str, Any], file: GgufFile) -> float:
    """Return the KV cache bytes per token, from the model's shape; 0 if the file does not say."""
    layers, heads = file.get_number("block_count"), file.get_number("attention.head_count")
    width = file.get_number("embedding_length")
    if not (layers and heads and width):
        return 0.0
    kv_heads = file.get_number("attention.head_count_kv") or heads
    key = file.get_number("attention.key_length") or width // heads
    value = file.get_number("attention.value_length") or width // heads
    types = (settings.get("cache_type_k", "f16"), settings.get("cache_type_v", "f16"))
    key_size, value_size = (CACHE_TYPE_BYTES[cache_type] for cache_type in types)
    return float(layers * kv_heads * (key * key_size + value * value_size))


def _build_sizes(settings: Mapping[str, Any], step: int, context: int, batch: int, cache: int) -> dict[str, Any]:
    inner = int(settings.get("ubatch_size") or min(step, _DEFAULT_UBATCH_TOKENS))
    return {
        "n_ctx": cache,
        "n_parallel": batch,
        "kv_unified": cache < context * batch,
        "n_batch": max(step, inner, batch),  # the library aborts unless a step holds one token of every request
        "n_ubatch": inner,
        "cache_ram_mib": int(settings.get("prompt_cache_mib") or 0),
        "ctx_shift": False,
    }


def _build_compute(settings: Mapping[str, Any], host: LlamaHost) -> dict[str, Any]:
    threads = int(settings.get("threads") or host.cores)
    attributes: dict[str, Any] = {
        "cpuparams.n_threads": threads,
        "cpuparams_batch.n_threads": int(settings.get("threads_batch") or threads),
    }
    attention = settings.get("flash_attention", "auto")
    member = {True: "ENABLED", False: "DISABLED"}.get(attention, "AUTO")
    attributes["flash_attn_type"] = _to_native("flash_attn_type", member)
    # To find how many layers fit the GPU the library loads twice: useless without a GPU.
    attributes["fit_params"] = bool(host.gpu_free_bytes) and settings.get("gpu_layers", -1) == -1
    if "kv_offload" in settings:
        attributes["no_kv_offload"] = not settings["kv_offload"]
    return attributes


def _build_load_mode(settings: Mapping[str, Any]) -> dict[str, Any]:
    if "mmap" not in settings and "mlock" not in settings:
        return {}
    mapped, locked = settings.get("mmap", True), settings.get("mlock", False)
    parts = [name for name, on in (("MMAP", mapped), ("MLOCK", locked)) if on]
    return {"load_mode": _to_native("load_mode", "_".join(parts) or "NONE")}


def _build_pooling(settings: Mapping[str, Any], file: GgufFile) -> dict[str, Any]:
    chosen = settings.get("pooling")
    if chosen is None and file.get_number("pooling_type"):
        return {}  # the library reads it from the model
    return {"pooling_type": _to_native("pooling_type", chosen or "mean")}


def _build_speculation(settings: Mapping[str, Any]) -> dict[str, Any]:
    method = settings.get("speculative.method") or ("draft" if settings.get("speculative.model") else None)
    if method is None:
        return {}
    count = settings.get("speculative.num_tokens")
    enum, prefix = _SPECULATION
    if method == "ngram":
        attributes: dict[str, Any] = {"speculative.types": [EnumMember(enum, f"{prefix}NGRAM_SIMPLE")]}
        attributes |= {"speculative.ngram_simple.size_m": int(count)} if count else {}
        size = settings.get("speculative.ngram_max")
        return attributes | ({"speculative.ngram_simple.size_n": int(size)} if size else {})
    if not settings.get("speculative.model"):
        raise ConfigError(
            "speculative.method is draft, but speculative.model is not set",
            "set speculative.model to a GGUF file with the same tokenizer, or use method ngram",
            param="speculative.model",
        )
    attributes = {
        "speculative.types": [EnumMember(enum, f"{prefix}DRAFT_SIMPLE")],
        "speculative.draft.mparams.path": str(settings["speculative.model"]),
    }
    return attributes | ({"speculative.draft.n_max": int(count)} if count else {})


def _to_native(attribute: str, value: Any) -> Any:
    if attribute not in _ENUMS:
        return value
    enum, prefix = _ENUMS[attribute]
    return EnumMember(enum, prefix + str(value).upper())


def _list_effective(
    settings: Mapping[str, Any], attributes: Mapping[str, Any], context: int, batch: int, cache: int
) -> dict[str, Any]:
    """Return the effective settings: the given ones, and the values chosen for the rest."""
    defaults = {name: setting.default for name, setting in SETTINGS.items() if setting.default is not None}
    effective = {name: value for name, value in {**defaults, **settings}.items() if name not in _REFUSED_SETTINGS}
    effective.pop("batching.batch_size", None)
    return {
        **effective,
        "context_length": context,
        "max_batch": batch,
        "kv_cache_tokens": cache,
        "batch_size": attributes["n_batch"],
        "ubatch_size": attributes["n_ubatch"],
        "threads": attributes["cpuparams.n_threads"],
        "threads_batch": attributes["cpuparams_batch.n_threads"],
    }


_REFUSED_SETTINGS = frozenset(
    name for name, setting in SETTINGS.items() if setting.capability.support is Support.REFUSES
)


def _list_warnings(settings: Mapping[str, Any], host: LlamaHost) -> tuple[str, ...]:
    """Return one warning per given setting that has no effect."""
    warnings = [
        f"{name} has no effect on llamacpp; instead: {SETTINGS[name].capability.detail}"
        for name, value in settings.items()
        if name in _REFUSED_SETTINGS and value not in (False, SETTINGS[name].default)
    ]
    if settings.get("gpu_layers", -1) > 0 and not host.gpu_free_bytes:
        warnings.append("gpu_layers has no effect: llama.cpp finds no usable GPU and runs on the CPU")
    return tuple(warnings)
