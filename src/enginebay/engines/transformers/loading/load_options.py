"""Parses and checks load settings. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from enginebay.contract import Sampling
from enginebay.engines.transformers.settings import SHARDING, STRATEGIES
from enginebay.errors import LoadFailed

DEFAULT_MAX_WAIT_S = 0.05


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Settings with aliases resolved. `None`: the loader decides, from the model and the device."""

    dtype: str | None = None
    device: str | None = None
    device_map: Any = None
    max_memory: Mapping[int | str, Any] | None = None
    gpu_memory_fraction: float | None = None  # of each GPU
    attention: str | None = None
    compile_mode: str | None = None
    cuda_graphs: bool = True  # if possible
    use_cache: bool = True
    threads: int | None = None
    seed: int | None = None
    context_length: int | None = None
    strategy: str | None = None
    batch_size: int | None = None
    tokens_per_batch: int | None = None
    max_wait_s: float = DEFAULT_MAX_WAIT_S
    sharding: str = "none"
    num_shards: int = 1
    draft_model: str | None = None
    draft_tokens: int | None = None
    quantization_bits: int | None = None
    bnb_arguments: Mapping[str, Any] = field(default_factory=dict)
    quantization_method: str | None = None
    rope_scaling: Mapping[str, Any] | None = None
    request_defaults: Mapping[str, Any] = field(default_factory=dict)  # for requests that do not set them
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_assisted(self) -> bool:
        return self.draft_tokens is not None or self.draft_model is not None


def read_options(settings: Mapping[str, Any]) -> LoadOptions:
    """Parse settings: resolve aliases and reject conflicts."""
    get = settings.get
    shards = int(get("sharding.num_shards") or 1)
    options = LoadOptions(
        dtype=_resolve_aliases(settings, "dtype", "torch_dtype", "fp_precision"),
        device=get("device"),
        device_map=get("device_map"),
        max_memory=_parse_max_memory(get("max_memory")),
        gpu_memory_fraction=get("gpu_memory_fraction"),
        attention=get("attn_implementation"),
        compile_mode=_parse_compile_mode(get("torch_compile")),
        cuda_graphs=get("cuda_graphs") not in ("off", False),
        use_cache=get("use_cache") is not False,
        threads=get("threads"),
        seed=get("seed"),
        context_length=get("context_length"),
        strategy=get("batching.strategy"),
        batch_size=get("batching.batch_size"),
        tokens_per_batch=get("batching.max_tokens_per_batch"),
        max_wait_s=DEFAULT_MAX_WAIT_S if get("batching.max_wait_s") is None else float(settings["batching.max_wait_s"]),
        sharding=get("sharding.strategy") or ("tensor_parallel" if shards > 1 else "none"),
        num_shards=shards,
        draft_model=get("assisted_generation.model"),
        draft_tokens=get("assisted_generation.num_tokens"),
        quantization_bits=_parse_quantization_bits(settings),
        bnb_arguments=_parse_bnb_arguments(settings),
        quantization_method=get("quantization_method"),
        rope_scaling=get("rope_scaling"),
        request_defaults=_parse_request_defaults(settings),
        extra=get("extra") or {},
    )
    _check_options(options)
    return options


def apply_request_defaults(sampling: Sampling, defaults: Mapping[str, Any]) -> Sampling:
    """Fill in the model's defaults where the request sets no value."""
    missing = {name: value for name, value in defaults.items() if getattr(sampling, name) is None}
    return replace(sampling, **missing) if missing else sampling


def choose_strategy(options: LoadOptions, obstacle: str | None) -> tuple[str, str | None]:
    """Return the batching strategy, and a warning if it differs from the configured one."""
    if obstacle is None:
        return options.strategy or "continuous", None
    if options.strategy == "continuous":
        return "dynamic", f"batching.strategy continuous is not possible: {obstacle}; falling back to dynamic"
    return options.strategy or "dynamic", None


def find_settings_obstacle(options: LoadOptions) -> str | None:
    """Return why these settings rule out continuous batching, or None."""
    if not options.use_cache:
        return "use_cache is false"
    if options.attention == "flash_attention_2":
        return "flash_attention_2 does not support mixed prefill and decode batches"
    if options.is_assisted:
        return "assisted generation drafts for one request at a time"
    return None


def find_graphs_obstacle(
    options: LoadOptions, devices: Collection[str], single_process: bool, quantized: bool
) -> str | None:
    """Return why CUDA graphs are not possible, or None. `devices`: of the weights, such as cuda:0."""
    if not options.cuda_graphs:
        return "cuda_graphs is off"
    if not all(device.startswith("cuda") for device in devices):
        return "the model is not on CUDA"
    if not single_process or len(devices) != 1:
        return "the model is on several devices"
    if options.compile_mode not in (None, "default"):
        return f"torch_compile: {options.compile_mode} uses its own CUDA graphs"
    return "the weights are quantized" if quantized else None


def _check_options(options: LoadOptions) -> None:
    if options.strategy is not None and options.strategy not in STRATEGIES:
        raise LoadFailed(f"batching.strategy is {options.strategy}", f"use one of {', '.join(STRATEGIES)}")
    if options.sharding not in SHARDING:
        raise LoadFailed(f"sharding.strategy is {options.sharding}", f"use one of {', '.join(SHARDING)}")
    if options.sharding == "tensor_parallel" and options.device_map is not None:
        raise LoadFailed("sharding.strategy tensor_parallel and device_map are mutually exclusive", "remove device_map")
    if options.sharding == "tensor_parallel" and options.quantization_bits is not None:
        raise LoadFailed("bitsandbytes weights cannot be split by tensor_parallel", "use sharding.strategy: pipeline")


def _resolve_aliases(settings: Mapping[str, Any], *names: str) -> Any:
    """Return the value of several aliases; raise if they conflict."""
    values = {name: settings[name] for name in names if settings.get(name) is not None}
    if len(set(values.values())) > 1:
        raise LoadFailed(
            f"settings conflict: {', '.join(f'{k} = {v}' for k, v in values.items())}", f"keep only {names[0]}"
        )
    return next(iter(values.values()), None)


def _parse_max_memory(limits: Mapping[Any, Any] | None) -> dict[int | str, Any] | None:
    """Convert GPU numbers to integers, as accelerate requires; YAML and JSON give strings."""
    if not limits:
        return None
    return {int(name) if str(name).isdigit() else str(name): value for name, value in limits.items()}


def _parse_compile_mode(value: Any) -> str | None:
    if value in (None, False, "false"):
        return None
    return "default" if value is True else str(value)


def _parse_quantization_bits(settings: Mapping[str, Any]) -> int | None:
    four, eight = settings.get("quantization.load_in_4bit"), settings.get("quantization.load_in_8bit")
    if four and eight:
        raise LoadFailed("quantization.load_in_4bit and load_in_8bit are mutually exclusive", "remove one of them")
    return 4 if four else 8 if eight else None


def _parse_bnb_arguments(settings: Mapping[str, Any]) -> dict[str, Any]:
    names = ("bnb_4bit_quant_type", "bnb_4bit_compute_dtype", "bnb_4bit_use_double_quant")
    values = {name: settings.get(f"quantization.{name}") for name in names}
    return {name: value for name, value in values.items() if value is not None}


def _parse_request_defaults(settings: Mapping[str, Any]) -> dict[str, Any]:
    names = ("num_beams", "early_stopping", "length_penalty")
    defaults = {name: settings[name] for name in names if settings.get(name) is not None}
    if settings.get("output_scores"):
        defaults["logprobs"] = 0
    return defaults


def resolve_context_length(
    config: Mapping[str, Any], requested: int | None, rope_scaling: Mapping[str, Any] | None
) -> int:
    """Return the requested context length if it fits, else the model's maximum, extended by RoPE scaling."""
    maximum = next((int(config[name]) for name in _CONTEXT_LENGTH_KEYS if config.get(name)), None)
    if maximum is not None and rope_scaling:
        maximum = math.floor(maximum * float(rope_scaling.get("factor", 1.0)))
    if requested is None:
        return maximum or 2048
    if maximum is not None and requested > maximum:
        raise LoadFailed(
            f"context_length is {requested}, but the model supports {maximum}", "lower it, or set rope_scaling"
        )
    return requested


_CONTEXT_LENGTH_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length")
