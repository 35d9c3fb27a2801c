"""Convert load settings to vLLM's engine arguments. Pure: depends only on the settings and the detected host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from enginebay.contract import Load
from enginebay.engines.vllm.model_checks import build_rope_overrides
from enginebay.engines.vllm.patches.declarations import PATCHES
from enginebay.engines.vllm.settings import (
    DEFAULT_CPU_CACHE_GIB,
    RETIRED,
    RETIRED_NATIVE,
    SETTINGS,
    reject_protected_arguments,
)
from enginebay.errors import ConfigError
from enginebay.util.text_format import find_nearest

_GIB = 1024**3
_LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # vLLM has kernels for these ranks only
_DEFAULT_MAX_LORAS = 4  # adapters in one batch, when unset
_FLOAT32_NAMES = ("float32", "float")
_CPU_BLOCK_SIZE = 32  # CPU attention kernels need multiples of this


@dataclass(frozen=True, slots=True)
class VllmHost:
    """The installed vLLM and the machine, as far as the plan depends on them."""

    version: str
    device: str  # "cpu" or "cuda"
    arguments: frozenset[str]  # engine arguments of the installed version
    quantizations: frozenset[str]
    free_bytes: int = 16 * _GIB
    has_bf16: bool = True  # bfloat16 hardware support
    has_avx512: bool = True
    kv_size_from_environment: bool = False  # VLLM_CPU_KVCACHE_SPACE is set
    can_sleep: bool = False  # vLLM can free and restore this device's memory


@dataclass(slots=True)
class VllmLoadPlan:
    """The arguments and environment to start vLLM with."""

    arguments: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    single_process: bool = False  # CPU only: the engine process computes, with no process per rank
    mixed_graphs: bool = False  # capture mixed steps as CUDA graphs; after the start: whether it did
    continued_requests: bool = False  # after the start: whether the engine process has the patch

    @property
    def world_size(self) -> int:
        sizes = (self.arguments.get(name, 1) for name in ("tensor_parallel_size", "pipeline_parallel_size"))
        tensor, pipeline = sizes
        return int(tensor) * int(pipeline)


def plan_load(
    load: Load, host: VllmHost, config: Mapping[str, Any], lora_ranks: Mapping[str, int] | None = None
) -> VllmLoadPlan:
    """Return the engine arguments. `config` is the model's config.json. Raises `ConfigError` for impossible settings."""
    settings = {name: value for name, value in load.settings.items() if value is not None}
    plan = VllmLoadPlan()
    plan.arguments.update(_build_fixed_arguments(load))
    for name, value in settings.items():
        if name in RETIRED:
            _apply_retired(plan, host, name, value)
        elif name not in _HANDLED_SETTINGS:
            _apply_direct(plan, host, name, value)
    for decide in _DECISIONS:
        decide(plan, host, settings, config)
    _decide_lora(plan, host, settings, lora_ranks or {})
    _apply_extra(plan, host, settings)
    one_gpu = host.device == "cuda" and plan.world_size == 1
    plan.mixed_graphs = one_gpu and settings.get("mixed_graphs") != "off" and not _has_custom_graphs(plan.arguments)
    plan.single_process = host.device == "cpu" and plan.world_size == 1 and not _needs_rank_processes(settings)
    return plan


def _build_fixed_arguments(load: Load) -> dict[str, Any]:
    """Return arguments that no setting changes. Of generation_config.json only the end tokens apply."""
    arguments: dict[str, Any] = {
        "model": load.path,
        "generation_config": "vllm",
        "logprobs_mode": "raw_logprobs",
        "disable_log_stats": True,
        "trust_remote_code": load.trust_remote_code,
    }
    if load.task == "embed":
        arguments.update(runner="pooling", convert="embed")
    return arguments


def _warn(plan: VllmLoadPlan, name: str, message: str) -> None:
    plan.warnings.append(f"{name}: {message}")


def _apply_retired(plan: VllmLoadPlan, host: VllmHost, name: str, value: Any) -> None:
    native = RETIRED_NATIVE.get(name)
    if native in host.arguments:
        plan.arguments[str(native)] = value
        return
    _warn(plan, name, f"removed in vllm {RETIRED[name].since}: {RETIRED[name].instead}")


def _apply_direct(plan: VllmLoadPlan, host: VllmHost, name: str, value: Any) -> None:
    """Pass on a setting that maps directly to one engine argument."""
    native = SETTINGS[name].native
    if native not in host.arguments:
        _warn(plan, name, f"vllm {host.version} has no argument {native}")
        return
    plan.arguments[native] = value


def _decide_precision(
    plan: VllmLoadPlan, host: VllmHost, settings: Mapping[str, Any], config: Mapping[str, Any]
) -> None:
    dtype = settings.get("dtype") or settings.get("fp_precision")
    text = config.get("text_config") or {}
    stored = config.get("dtype") or config.get("torch_dtype") or text.get("dtype")
    if (
        dtype in (None, "auto")
        and host.device == "cpu"
        and not host.has_bf16
        and stored in ("bfloat16", "float32", None)
    ):
        dtype = "float32"  # vLLM would pick bfloat16, which is emulated here: slower, and crashes on some processors
    if dtype is not None:
        plan.arguments["dtype"] = dtype


def _decide_memory(plan: VllmLoadPlan, host: VllmHost, settings: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    space = settings.get("cpu_kvcache_space_gib")
    if host.device != "cpu":
        if space is not None:
            _warn(plan, "cpu_kvcache_space_gib", f"only applies to a CPU; on {host.device} use gpu_memory_utilization")
        return
    if space is None and host.kv_size_from_environment:
        return  # vLLM itself reads VLLM_CPU_KVCACHE_SPACE
    gib = float(space) if space is not None else min(DEFAULT_CPU_CACHE_GIB, host.free_bytes / _GIB / 4)
    plan.arguments["kv_cache_memory_bytes"] = int(gib * _GIB)


def _adapt_to_cpu(plan: VllmLoadPlan, host: VllmHost, settings: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Set CPU defaults, and drop what a CPU does not support."""
    bind = settings.get("cpu_threads_bind")
    if host.device != "cpu":
        if bind is not None:
            _warn(plan, "cpu_threads_bind", f"only applies to a CPU; this device is {host.device}")
        return
    plan.arguments.setdefault("enforce_eager", True)  # on a CPU compilation takes minutes and gains little
    if plan.arguments.pop("gpu_memory_utilization", None) is not None:
        _warn(plan, "gpu_memory_utilization", "no GPU; cpu_kvcache_space_gib sets the size of the KV cache")
    if plan.arguments.pop("cpu_offload_gb", 0):
        _warn(plan, "cpu_offload_gb", "no GPU to offload from; remove it")
    size = settings.get("block_size")
    if size is not None and size % _CPU_BLOCK_SIZE:
        plan.arguments["block_size"] = _CPU_BLOCK_SIZE
        _warn(
            plan,
            "block_size",
            f"{size} is not a multiple of {_CPU_BLOCK_SIZE}, which a CPU needs; using {_CPU_BLOCK_SIZE}",
        )
    if str(settings.get("kv_cache_dtype")).startswith("fp8") and not host.has_avx512:
        del plan.arguments["kv_cache_dtype"]
        _warn(plan, "kv_cache_dtype", "fp8 needs a GPU, or a CPU with AVX-512; the KV cache uses the model's precision")
    if bind is not None:
        plan.environment["VLLM_CPU_OMP_THREADS_BIND"] = str(bind)


def _decide_attention(
    plan: VllmLoadPlan, host: VllmHost, settings: Mapping[str, Any], config: Mapping[str, Any]
) -> None:
    backend = settings.get("attention.backend")
    name = None if backend is None or str(backend).lower() == "auto" else str(backend).upper()
    if name == "TORCH_SDPA":
        _warn(plan, "attention.backend", "TORCH_SDPA was removed in vllm 0.11.1; use auto")
        name = None
    if host.device == "cpu":
        if name not in (None, "CPU_ATTN"):
            _warn(plan, "attention.backend", f"{name} needs a GPU; on a CPU vLLM only has CPU_ATTN")
            name = None
        if "attention.flash_version" in settings:
            _warn(plan, "attention.flash_version", "FlashAttention needs a GPU; remove it")
    elif "attention.flash_version" in settings:
        plan.arguments["attention_config"] = {"flash_attn_version": settings["attention.flash_version"]}
    if name is not None:
        _set_argument(plan, host, "attention.backend", "attention_backend", name)


def _set_argument(plan: VllmLoadPlan, host: VllmHost, setting: str, native: str, value: Any) -> None:
    if native in host.arguments:
        plan.arguments[native] = value
    else:
        _warn(plan, setting, f"vllm {host.version} has no argument {native}")


def _decide_batching(
    plan: VllmLoadPlan, host: VllmHost, settings: Mapping[str, Any], config: Mapping[str, Any]
) -> None:
    size = settings.get("batching.batch_size")
    if size is not None:
        plan.arguments.setdefault("max_num_seqs", size)
    strategy = settings.get("batching.strategy")
    if strategy not in (None, "continuous"):
        _warn(plan, "batching.strategy", f"{strategy} has no effect: vLLM always batches continuously")


def _decide_sharding(
    plan: VllmLoadPlan, host: VllmHost, settings: Mapping[str, Any], config: Mapping[str, Any]
) -> None:
    shards = int(settings.get("sharding.num_shards", 1))
    strategy = str(settings.get("sharding.strategy", "tensor_parallel")).lower()
    if "pipeline" in strategy:
        plan.arguments.setdefault("pipeline_parallel_size", shards)
    elif "tensor" in strategy or strategy in ("tp", "auto"):
        plan.arguments.setdefault("tensor_parallel_size", shards)
    elif strategy != "none" or shards > 1:
        _warn(
            plan,
            "sharding.strategy",
            f"{strategy} is not one of tensor_parallel, pipeline_parallel; vLLM runs unsharded",
        )


def _decide_quantization(
    plan: VllmLoadPlan, host: VllmHost, settings: Mapping[str, Any], config: Mapping[str, Any]
) -> None:
    if settings.get("quantization.load_in_8bit"):
        _warn(
            plan,
            "quantization.load_in_8bit",
            "vLLM has no 8-bit bitsandbytes; use load_in_4bit, or a GPTQ or AWQ checkpoint",
        )
    if not settings.get("quantization.load_in_4bit"):
        return
    if host.device == "cpu":
        _warn(plan, "quantization.load_in_4bit", "bitsandbytes needs a GPU in vLLM; use a GPTQ or AWQ checkpoint")
    elif "bitsandbytes" not in host.quantizations:
        _warn(
            plan,
            "quantization.load_in_4bit",
            "vllm 0.28.0 removed bitsandbytes; install vllm-bnb-plugin, or use a GPTQ or AWQ checkpoint",
        )
    else:
        plan.arguments.setdefault("quantization", "bitsandbytes")


def _decide_sleep_mode(
    plan: VllmLoadPlan, host: VllmHost, settings: Mapping[str, Any], config: Mapping[str, Any]
) -> None:
    requested = settings.get("sleep_mode", "auto")
    if requested is False:
        return
    if host.can_sleep and "enable_sleep_mode" in host.arguments:
        plan.arguments["enable_sleep_mode"] = True
    elif requested is True:
        _warn(plan, "sleep_mode", f"vllm {host.version} cannot free the memory of this {host.device} device")


def _check_load_format(
    plan: VllmLoadPlan, host: VllmHost, settings: Mapping[str, Any], config: Mapping[str, Any]
) -> None:
    load_format = settings.get("load_format")
    if load_format == "gguf":
        raise ConfigError(
            "vllm.load_format is gguf: vLLM 0.24.0 removed GGUF support", "use engine llamacpp, or safetensors"
        )
    if load_format == "pt":
        raise ConfigError("vllm.load_format is pt: pickle files can run code when loaded", "use safetensors")


def _decide_rope(plan: VllmLoadPlan, host: VllmHost, settings: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    overrides = build_rope_overrides(config, settings.get("rope_scaling"), settings.get("rope_theta"))
    if overrides:
        plan.arguments["hf_overrides"] = overrides


def _decide_speculative(
    plan: VllmLoadPlan, host: VllmHost, settings: Mapping[str, Any], config: Mapping[str, Any]
) -> None:
    options = {
        name.removeprefix("speculative."): value for name, value in settings.items() if name.startswith("speculative.")
    }
    if not options:
        return
    method = {"mlp": "mlp_speculator"}.get(options.get("method", ""), options.get("method"))
    if method is None and "model" not in options:
        _warn(
            plan, "speculative", "needs speculative.method (ngram) or speculative.model; vLLM runs without speculation"
        )
        return
    speculative: dict[str, Any] = {"num_speculative_tokens": options.get("num_tokens", 5)}
    if method == "ngram":
        speculative.update(
            method=method, prompt_lookup_min=options.get("ngram_min", 1), prompt_lookup_max=options.get("ngram_max", 4)
        )
        if "model" in options:
            _warn(
                plan,
                "speculative.model",
                "method ngram uses no draft model; remove it",
            )
    else:
        speculative.update(
            {"method": method} if method else {}, **({"model": options["model"]} if "model" in options else {})
        )
        speculative.update(
            {"draft_tensor_parallel_size": options["draft_tp_size"]} if "draft_tp_size" in options else {}
        )
        for name in ("ngram_min", "ngram_max"):
            if name in options:
                _warn(plan, f"speculative.{name}", "only applies to method ngram")
    plan.arguments["speculative_config"] = speculative
    if settings.get("logit_bias"):
        _warn(plan, "logit_bias", "vLLM cannot combine it with speculative decoding; it is ignored")


def _decide_lora(plan: VllmLoadPlan, host: VllmHost, settings: Mapping[str, Any], ranks: Mapping[str, int]) -> None:
    """Enable LoRA and size it. `ranks`: adapter name -> rank, of the adapters the model lists."""
    if not ranks and not settings.get("lora.enabled"):
        return
    if host.device != "cpu" and plan.arguments.get("dtype") in _FLOAT32_NAMES:
        raise ConfigError(
            "vllm.dtype is float32: on a GPU vLLM's adapters need float16 or bfloat16", "set dtype: bfloat16"
        )
    if ranks and settings.get("lora.enabled") is False:
        _warn(plan, "lora.enabled", "is false, but the model lists adapters; they are loaded anyway")
    required_rank = max([settings.get("lora.max_rank", 0), *ranks.values()]) or 16
    rank = next((allowed for allowed in _LORA_RANKS if allowed >= required_rank), None)
    if rank is None:
        raise ConfigError(
            f"vllm.lora.max_rank is {required_rank}, vLLM allows up to {_LORA_RANKS[-1]}",
            "use an adapter of a lower rank",
        )
    reserved = _DEFAULT_MAX_LORAS if settings.get("lora.enabled") else 1  # adapters may be added at runtime
    slots = int(settings.get("lora.max_loras", max(reserved, min(len(ranks), _DEFAULT_MAX_LORAS))))
    if host.device == "cpu":
        # In a mixed batch vLLM's CPU kernels give a request without an adapter the last slot. One spare slot stays
        # empty, so that such a request computes the base model.
        slots = max(slots, len(ranks)) + 1
    plan.arguments.update(enable_lora=True, max_loras=slots, max_lora_rank=rank)


def _apply_extra(plan: VllmLoadPlan, host: VllmHost, settings: Mapping[str, Any]) -> None:
    extra = dict(settings.get("extra") or {})
    reject_protected_arguments(extra)
    for name, value in extra.items():
        if name in host.arguments:
            plan.arguments[name] = value
            continue
        near = find_nearest(name, sorted(host.arguments))
        _warn(
            plan,
            f"extra.{name}",
            f"vllm {host.version} has no such argument" + (f"; did you mean {near[0]}?" if near else ""),
        )


def _has_custom_graphs(arguments: Mapping[str, Any]) -> bool:
    """Return whether the user chose which graphs to capture."""
    return any("cudagraph" in name or name == "compilation_config" for name in arguments)


def _needs_rank_processes(settings: Mapping[str, Any]) -> bool:
    return "cpu_threads_bind" in settings or "distributed_backend" in settings


_Decide = Callable[[VllmLoadPlan, VllmHost, Mapping[str, Any], Mapping[str, Any]], None]

_DECISIONS: tuple[_Decide, ...] = (
    _check_load_format,
    _decide_precision,
    _decide_memory,
    _adapt_to_cpu,
    _decide_attention,
    _decide_sharding,
    _decide_batching,
    _decide_quantization,
    _decide_rope,
    _decide_speculative,
    _decide_sleep_mode,
)

# Settings that the decisions above or the engine handle. Every other one maps directly to an argument.
_HANDLED_SETTINGS = frozenset(
    name
    for name in SETTINGS
    if name.split(".")[0] in ("speculative", "lora", "batching", "sharding", "quantization")
    or name in ("attention.backend", "attention.flash_version", "rope_scaling", "rope_theta", "dtype", "fp_precision")
    or name in ("cpu_kvcache_space_gib", "cpu_threads_bind", *(patch.setting for patch in PATCHES))
    or name in ("sleep_mode", "logprobs", "logit_bias", "extra")
)
