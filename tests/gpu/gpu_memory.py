"""Memory in use on the GPUs, as the driver tells it: no CUDA context is opened for the question."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pynvml

GIB = 1024**3


def read_used_bytes() -> int:
    """By all processes."""
    return sum(int(pynvml.nvmlDeviceGetMemoryInfo(device).used) for device in _open_devices())


def read_held_bytes(pids: Collection[int]) -> int:
    """By these processes. By all, where the driver cannot tell processes apart, as in some containers."""
    running = [one for device in _open_devices() for one in pynvml.nvmlDeviceGetComputeRunningProcesses(device)]
    told = [int(one.usedGpuMemory) for one in running if one.pid in pids and one.usedGpuMemory]
    return sum(told) if told else read_used_bytes()


def _open_devices() -> list[Any]:
    pynvml.nvmlInit()
    return [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
