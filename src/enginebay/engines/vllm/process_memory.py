"""Memory used by this process and vLLM's processes: resident memory, plus GPU memory if the driver reports it."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def measure_used_bytes() -> int:
    import psutil  # type: ignore[import-untyped, unused-ignore]

    me = psutil.Process()
    processes = [me, *me.children(recursive=True)]
    return sum(map(_read_resident_bytes, processes)) + _read_gpu_bytes({process.pid for process in processes})


def _read_resident_bytes(process: Any) -> int:
    """Return resident bytes. Counts pages shared by forked processes once, if the system reports that."""
    try:
        lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    except (OSError, StopIteration):
        pass
    try:
        return int(process.memory_info().rss)
    except Exception:  # the process may have exited
        return 0


def _read_gpu_bytes(pids: set[int]) -> int:
    """Return GPU memory through NVML, which creates no CUDA context in this process."""
    from vllm.platforms import current_platform

    if not current_platform.is_cuda():
        return 0
    from vllm.third_party import pynvml

    total = 0
    try:
        pynvml.nvmlInit()
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            running = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
            total += sum(process.usedGpuMemory or 0 for process in running if process.pid in pids)
    except pynvml.NVMLError:
        return total
    return total
