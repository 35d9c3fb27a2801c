"""Fork vLLM's engine process when that is safe, after importing what it needs. A spawned one imports everything again."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from importlib import import_module

START_METHOD_VARIABLE = "VLLM_WORKER_MULTIPROC_METHOD"

# Modules that vLLM imports while it loads a model, here and in forked processes. Not every version has all.
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


def import_all(device: str) -> None:
    """Import what a load needs. Skips modules that this version lacks or cannot import here."""
    for name in (*_LOAD_IMPORTS, *_LOAD_IMPORTS_BY_DEVICE.get(device, ())):
        with contextlib.suppress(ImportError):
            import_module(name)


def choose_start_method(requested: str) -> str:
    """Return "fork" if this process has one thread and no CUDA context, else "spawn"."""
    if requested != "auto":
        return requested
    if threading.active_count() > 1 or not hasattr(os, "fork") or sys.platform == "darwin":
        return "spawn"
    import torch

    return "spawn" if torch.cuda.is_initialized() else "fork"
