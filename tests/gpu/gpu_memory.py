"""GPU memory in use, as the driver reports it, without a CUDA context."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pynvml

GIB = 1024**3


def read_used_bytes() -> int:
    """Return the memory used by all processes."""
    return sum(int(pynvml.nvmlDeviceGetMemoryInfo(device).used) for device in _open_devices())


def read_held_bytes(pids: Collection[int]) -> int:
    """Return the memory used by these processes; by all if the driver cannot tell them apart, as in some containers."""
    running = [process for device in _open_devices() for process in pynvml.nvmlDeviceGetComputeRunningProcesses(device)]
    held = [int(process.usedGpuMemory) for process in running if process.pid in pids and process.usedGpuMemory]
    return sum(held) if held else read_used_bytes()


def _open_devices() -> list[Any]:
    pynvml.nvmlInit()
    return [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
