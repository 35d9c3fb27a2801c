"""What this process and its devices have and use."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from typing import Any

import psutil  # type: ignore[import-untyped]
import torch

from enginebay.contract.sampling_parameters import GUIDED_PARAMETERS

_CPU_KV_RATIO, _CUDA_KV_RATIO = 0.5, 0.85  # of the free memory, for keys and values
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
    found = {}
    for name in _REPORTED_PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def find_refused_params() -> dict[str, str]:
    """Request parameters that need a library which is not there."""
    found: dict[str, str] = {}
    if importlib.util.find_spec("xgrammar") is None:
        found |= dict.fromkeys(GUIDED_PARAMETERS, "install xgrammar into the engine's environment")
    if importlib.util.find_spec("peft") is None:
        found["lora"] = "install peft into the engine's environment"
    return found


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


def compute_kv_cache_bytes(device: Any, num_processes: int) -> int:
    """Memory that this process's keys and values may take, once the weights are in place."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0] * _CUDA_KV_RATIO)
    return int(psutil.virtual_memory().available * _CPU_KV_RATIO / num_processes)
