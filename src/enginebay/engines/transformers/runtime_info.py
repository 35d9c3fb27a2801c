"""Versions, devices, cores and memory of this process."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from typing import Any

import psutil  # type: ignore[import-untyped]
import torch

from enginebay.contract.sampling_parameters import GUIDED_PARAMETERS

_CPU_KV_RATIO, _CUDA_KV_RATIO = 0.5, 0.85  # share of the free memory for the KV cache
_REPORTED_PACKAGES = (
    "transformers",
    "torch",
    "accelerate",
    "tokenizers",
    "safetensors",
    "peft",
    "xgrammar",
    "bitsandbytes",
)


def get_versions() -> dict[str, str]:
    versions = {}
    for name in _REPORTED_PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def find_refused_params() -> dict[str, str]:
    """Return the request parameters whose library is not installed, with the fix."""
    refused: dict[str, str] = {}
    if importlib.util.find_spec("xgrammar") is None:
        refused |= dict.fromkeys(GUIDED_PARAMETERS, "install xgrammar into the engine's environment")
    if importlib.util.find_spec("peft") is None:
        refused["lora"] = "install peft into the engine's environment"
    return refused


def list_devices() -> tuple[str, ...]:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return ("cpu", *(f"cuda:{i}" for i in range(count)))


def count_usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def measure_memory_bytes() -> int:
    resident = int(psutil.Process().memory_info().rss)
    if torch.cuda.is_available():
        resident += sum(torch.cuda.memory_reserved(i) for i in range(torch.cuda.device_count()))
    return resident


def limit_gpu_memory(fraction: float | None) -> None:
    """Let this process use at most this fraction of each GPU's memory."""
    if fraction is not None and torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            torch.cuda.set_per_process_memory_fraction(fraction, index)


def compute_kv_cache_bytes(device: Any, num_processes: int, gpu_fraction: float | None = None) -> int:
    """Return the memory for this process's KV cache. Call it after the weights are loaded."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        allowed = total if gpu_fraction is None else max(0, total * gpu_fraction - torch.cuda.memory_reserved(device))
        return int(min(free, allowed) * _CUDA_KV_RATIO)
    return int(psutil.virtual_memory().available * _CPU_KV_RATIO / num_processes)
