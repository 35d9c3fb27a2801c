"""From settings to vLLM's engine arguments: a pure decision over what the installed version takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from enginebay.contract import Load
from enginebay.engines.vllm.model_checks import build_rope_overrides
from enginebay.engines.vllm.protected_arguments import reject_protected_arguments
from enginebay.engines.vllm.settings import RETIRED, RETIRED_NATIVE, SETTINGS
from enginebay.errors import ConfigError

_GIB = 1024**3
_LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # the adapter ranks that vLLM has kernels for
_DEFAULT_MAX_LORAS = 4  # adapters in one batch, where nobody says
_DEFAULT_KV_GIB = 4.0
_FLOAT32_NAMES = ("float32", "float")
_CPU_BLOCK_SIZE = 32  # the attention kernels of a CPU take multiples of this


@dataclass(frozen=True, slots=True)
class VllmHost:
    """What the decision depends on beside the settings."""

    version: str
    device: str  # "cpu" or "cuda"
    arguments: frozenset[str]  # names the installed engine arguments have
    quantizations: frozenset[str]
    free_bytes: int = 16 * _GIB
    has_bf16: bool = True  # bfloat16 in hardware
    has_avx512: bool = True
    kv_size_from_environment: bool = False  # VLLM_CPU_KVCACHE_SPACE is set
    can_sleep: bool = False  # vLLM can free and restore this device's memory


@dataclass(slots=True)
class VllmLoadPlan:
    """What to start vLLM with."""

    arguments: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    single_process: bool = False  # on a CPU: the engine process computes itself, with no process per rank
    mixed_graphs: bool = False  # mixed steps are recorded as CUDA graphs; wished for, then what came of it

    @property
    def world_size(self) -> int:
        sizes = (self.arguments.get(name, 1) for name in ("tensor_parallel_size", "pipeline_parallel_size"))
        tensor, pipeline = sizes
        return int(tensor) * int(pipeline)


def plan_load(
    load: Load, host: VllmHost, config: Mapping[str, Any], lora_ranks: Mapping[str, int] | None = None
) -> VllmLoadPlan:
    """Decide the engine arguments. `config` is the model's config.json. Raises `ConfigError` where nothing fits."""
    given = {name: value for name, value in load.settings.items() if value is not None}
    draft = VllmLoadPlan()
    draft.arguments.update(_build_fixed_arguments(load))
    for name, value in given.items():
        if name in RETIRED:
            _apply_retired(draft, host, name, value)
        elif name not in _HANDLED_SETTINGS:
            _apply_direct(draft, host, name, value)
    for decide in _DECISIONS:
        decide(draft, host, given, config)
    _decide_lora(draft, host, given, lora_ranks or {})
    _apply_extra(draft, host, given)
    one_gpu = host.device == "cuda" and draft.world_size == 1
    draft.mixed_graphs = one_gpu and given.get("mixed_graphs") != "off" and not _has_custom_graphs(draft.arguments)
    draft.single_process = host.device == "cpu" and draft.world_size == 1 and not _needs_rank_processes(given)
    return draft


def _build_fixed_arguments(load: Load) -> dict[str, Any]:
    """Arguments that do not depend on settings: nothing of generation_config.json but its end tokens may leak in."""
    found: dict[str, Any] = {
        "model": load.path,
        "generation_config": "vllm",
        "logprobs_mode": "raw_logprobs",
        "disable_log_stats": True,
        "trust_remote_code": load.trust_remote_code,
    }
    if load.task == "embed":
        found.update(runner="pooling", convert="embed")
    return found


def _warn(draft: VllmLoadPlan, name: str, what: str) -> None:
    draft.warnings.append(f"{name}: {what}")


def _apply_retired(draft: VllmLoadPlan, host: VllmHost, name: str, value: Any) -> None:
    native = RETIRED_NATIVE.get(name)
    if native in host.arguments:
        draft.arguments[str(native)] = value
        return
    _warn(draft, name, f"gone since vllm {RETIRED[name].since}: {RETIRED[name].instead}")


def _apply_direct(draft: VllmLoadPlan, host: VllmHost, name: str, value: Any) -> None:
    """A setting that is an engine argument under vLLM's own name."""
    native = SETTINGS[name].native
    if native not in host.arguments:
        _warn(draft, name, f"vllm {host.version} has no argument {native}")
        return
    draft.arguments[native] = value


def _decide_precision(draft: VllmLoadPlan, host: VllmHost, given: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    dtype = given.get("dtype") or given.get("fp_precision")
    text = config.get("text_config") or {}
    stored = config.get("dtype") or config.get("torch_dtype") or text.get("dtype")
    if (
        dtype in (None, "auto")
        and host.device == "cpu"
        and not host.has_bf16
        and stored in ("bfloat16", "float32", None)
    ):
        dtype = "float32"  # vLLM would take bfloat16, which is emulated here: slower, and on some processors fatal
    if dtype is not None:
        draft.arguments["dtype"] = dtype


def _decide_memory(draft: VllmLoadPlan, host: VllmHost, given: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    space = given.get("cpu_kvcache_space_gib")
    if host.device != "cpu":
        if space is not None:
            _warn(draft, "cpu_kvcache_space_gib", f"only counts on a CPU; on {host.device} use gpu_memory_utilization")
        return
    if space is None and host.kv_size_from_environment:
        return  # vLLM itself reads VLLM_CPU_KVCACHE_SPACE
    gib = float(space) if space is not None else min(_DEFAULT_KV_GIB, host.free_bytes / _GIB / 4)
    draft.arguments["kv_cache_memory_bytes"] = int(gib * _GIB)


def _adapt_to_cpu(draft: VllmLoadPlan, host: VllmHost, given: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """What a CPU cannot do, and what suits it."""
    bind = given.get("cpu_threads_bind")
    if host.device != "cpu":
        if bind is not None:
            _warn(draft, "cpu_threads_bind", f"only counts on a CPU, this is {host.device}")
        return
    draft.arguments.setdefault("enforce_eager", True)  # compiling takes minutes here and gains little
    if draft.arguments.pop("gpu_memory_utilization", None) is not None:
        _warn(draft, "gpu_memory_utilization", "no GPU here; the KV cache has the size of cpu_kvcache_space_gib")
    if draft.arguments.pop("cpu_offload_gb", 0):
        _warn(draft, "cpu_offload_gb", "no GPU here to offload from; leave it out")
    size = given.get("block_size")
    if size is not None and size % _CPU_BLOCK_SIZE:
        draft.arguments["block_size"] = _CPU_BLOCK_SIZE
        _warn(
            draft,
            "block_size",
            f"{size} is not a multiple of {_CPU_BLOCK_SIZE}, as a CPU needs; it is {_CPU_BLOCK_SIZE}",
        )
    if str(given.get("kv_cache_dtype")).startswith("fp8") and not host.has_avx512:
        del draft.arguments["kv_cache_dtype"]
        _warn(draft, "kv_cache_dtype", "fp8 needs a GPU, or a CPU with AVX-512; the KV cache has the model's precision")
    if bind is not None:
        draft.environment["VLLM_CPU_OMP_THREADS_BIND"] = str(bind)


def _decide_attention(draft: VllmLoadPlan, host: VllmHost, given: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    backend = given.get("attention.backend")
    name = None if backend is None or str(backend).lower() == "auto" else str(backend).upper()
    if name == "TORCH_SDPA":
        _warn(draft, "attention.backend", "TORCH_SDPA is gone since vllm 0.11.1: use auto")
        name = None
    if host.device == "cpu":
        if name not in (None, "CPU_ATTN"):
            _warn(draft, "attention.backend", f"{name} needs a GPU; on a CPU vLLM has CPU_ATTN alone")
            name = None
        if "attention.flash_version" in given:
            _warn(draft, "attention.flash_version", "FlashAttention needs a GPU; leave it out")
    elif "attention.flash_version" in given:
        draft.arguments["attention_config"] = {"flash_attn_version": given["attention.flash_version"]}
    if name is not None:
        _set_argument(draft, host, "attention.backend", "attention_backend", name)


def _set_argument(draft: VllmLoadPlan, host: VllmHost, setting: str, native: str, value: Any) -> None:
    if native in host.arguments:
        draft.arguments[native] = value
    else:
        _warn(draft, setting, f"vllm {host.version} has no argument {native}")


def _decide_batching(draft: VllmLoadPlan, host: VllmHost, given: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    size = given.get("batching.batch_size")
    if size is not None:
        draft.arguments.setdefault("max_num_seqs", size)
    strategy = given.get("batching.strategy")
    if strategy not in (None, "continuous"):
        _warn(draft, "batching.strategy", f"{strategy} has no effect: vLLM always batches continuously")


def _decide_sharding(draft: VllmLoadPlan, host: VllmHost, given: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    shards = int(given.get("sharding.num_shards", 1))
    strategy = str(given.get("sharding.strategy", "tensor_parallel")).lower()
    if "pipeline" in strategy:
        draft.arguments.setdefault("pipeline_parallel_size", shards)
    elif "tensor" in strategy or strategy in ("tp", "auto"):
        draft.arguments.setdefault("tensor_parallel_size", shards)
    elif strategy != "none" or shards > 1:
        _warn(
            draft,
            "sharding.strategy",
            f"{strategy} is not one of tensor_parallel, pipeline_parallel; vLLM runs unsharded",
        )


def _decide_quantization(
    draft: VllmLoadPlan, host: VllmHost, given: Mapping[str, Any], config: Mapping[str, Any]
) -> None:
    if given.get("quantization.load_in_8bit"):
        _warn(
            draft,
            "quantization.load_in_8bit",
            "vLLM has no 8-bit bitsandbytes: load_in_4bit, or a GPTQ or AWQ checkpoint",
        )
    if not given.get("quantization.load_in_4bit"):
        return
    if host.device == "cpu":
        _warn(draft, "quantization.load_in_4bit", "bitsandbytes needs a GPU in vLLM: use a GPTQ or AWQ checkpoint")
    elif "bitsandbytes" not in host.quantizations:
        _warn(
            draft,
            "quantization.load_in_4bit",
            "bitsandbytes left vLLM in 0.28.0: install vllm-bnb-plugin beside it, or use a GPTQ or AWQ checkpoint",
        )
    else:
        draft.arguments.setdefault("quantization", "bitsandbytes")


def _decide_sleep_mode(
    draft: VllmLoadPlan, host: VllmHost, given: Mapping[str, Any], config: Mapping[str, Any]
) -> None:
    asked = given.get("sleep_mode", "auto")
    if asked is False:
        return
    if host.can_sleep and "enable_sleep_mode" in host.arguments:
        draft.arguments["enable_sleep_mode"] = True
    elif asked is True:
        _warn(draft, "sleep_mode", f"vllm {host.version} cannot free memory of this {host.device} device")


def _check_load_format(
    draft: VllmLoadPlan, host: VllmHost, given: Mapping[str, Any], config: Mapping[str, Any]
) -> None:
    form = given.get("load_format")
    if form == "gguf":
        raise ConfigError(
            "vllm.load_format is gguf: vLLM reads no GGUF since 0.24.0", "use engine llamacpp, or safetensors"
        )
    if form == "pt":
        raise ConfigError("vllm.load_format is pt: pickle files can run code when they are read", "use safetensors")


def _decide_rope(draft: VllmLoadPlan, host: VllmHost, given: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    overrides = build_rope_overrides(config, given.get("rope_scaling"), given.get("rope_theta"))
    if overrides:
        draft.arguments["hf_overrides"] = overrides


def _decide_speculative(
    draft: VllmLoadPlan, host: VllmHost, given: Mapping[str, Any], config: Mapping[str, Any]
) -> None:
    asked = {
        name.removeprefix("speculative."): value for name, value in given.items() if name.startswith("speculative.")
    }
    if not asked:
        return
    method = {"mlp": "mlp_speculator"}.get(asked.get("method", ""), asked.get("method"))
    if method is None and "model" not in asked:
        _warn(
            draft, "speculative", "needs speculative.method (ngram) or speculative.model; vLLM runs without speculation"
        )
        return
    found: dict[str, Any] = {"num_speculative_tokens": asked.get("num_tokens", 5)}
    if method == "ngram":
        found.update(
            method=method, prompt_lookup_min=asked.get("ngram_min", 1), prompt_lookup_max=asked.get("ngram_max", 4)
        )
        if "model" in asked:
            _warn(
                draft,
                "speculative.model",
                "method ngram looks tokens up in the prompt and uses no draft model; leave it out",
            )
    else:
        found.update({"method": method} if method else {}, **({"model": asked["model"]} if "model" in asked else {}))
        found.update({"draft_tensor_parallel_size": asked["draft_tp_size"]} if "draft_tp_size" in asked else {})
        for name in ("ngram_min", "ngram_max"):
            if name in asked:
                _warn(draft, f"speculative.{name}", "only counts with method ngram")
    draft.arguments["speculative_config"] = found
    if given.get("logit_bias"):
        _warn(draft, "logit_bias", "vLLM cannot combine it with speculative decoding; it is no default here")


def _decide_lora(draft: VllmLoadPlan, host: VllmHost, given: Mapping[str, Any], ranks: Mapping[str, int]) -> None:
    """`ranks`: adapter name -> rank, of the adapters the model lists."""
    if not ranks and not given.get("lora.enabled"):
        return
    if host.device != "cpu" and draft.arguments.get("dtype") in _FLOAT32_NAMES:
        raise ConfigError(
            "vllm.dtype is float32: on a GPU vLLM's adapters compute in float16 or bfloat16", "set dtype: bfloat16"
        )
    if ranks and given.get("lora.enabled") is False:
        _warn(draft, "lora.enabled", "is false, but the model lists adapters; they are loaded")
    wanted = max([given.get("lora.max_rank", 0), *ranks.values()]) or 16
    rank = next((allowed for allowed in _LORA_RANKS if allowed >= wanted), None)
    if rank is None:
        raise ConfigError(
            f"vllm.lora.max_rank is {wanted}, vLLM allows up to {_LORA_RANKS[-1]}", "use an adapter of a lower rank"
        )
    to_come = _DEFAULT_MAX_LORAS if given.get("lora.enabled") else 1  # adapters may be added while it runs
    slots = int(given.get("lora.max_loras", max(to_come, min(len(ranks), _DEFAULT_MAX_LORAS))))
    if host.device == "cpu":
        # vLLM's CPU kernels give a request without an adapter the last slot when others in the batch have one:
        # with a slot to spare that one is empty, and the request computes the plain model.
        slots = max(slots, len(ranks)) + 1
    draft.arguments.update(enable_lora=True, max_loras=slots, max_lora_rank=rank)


def _apply_extra(draft: VllmLoadPlan, host: VllmHost, given: Mapping[str, Any]) -> None:
    asked = dict(given.get("extra") or {})
    reject_protected_arguments(asked)
    for name, value in asked.items():
        if name in host.arguments:
            draft.arguments[name] = value
            continue
        near = get_close_matches(name, sorted(host.arguments), n=1)
        _warn(
            draft,
            f"extra.{name}",
            f"vllm {host.version} has no such argument" + (f"; did you mean {near[0]}?" if near else ""),
        )


def _has_custom_graphs(arguments: Mapping[str, Any]) -> bool:
    """Whoever says which graphs are recorded gets those."""
    return any("cudagraph" in name or name == "compilation_config" for name in arguments)


def _needs_rank_processes(given: Mapping[str, Any]) -> bool:
    return "cpu_threads_bind" in given or "distributed_backend" in given


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

# Names that are decided above or by the engine itself; every other one passes straight through.
_HANDLED_SETTINGS = frozenset(
    name
    for name in SETTINGS
    if name.split(".")[0] in ("speculative", "lora", "batching", "sharding", "quantization")
    or name in ("attention.backend", "attention.flash_version", "rope_scaling", "rope_theta", "dtype", "fp_precision")
    or name in ("cpu_kvcache_space_gib", "cpu_threads_bind", "start_method", "stepwise", "mixed_graphs")
    or name in ("sleep_mode", "logprobs", "logit_bias", "extra")
)
