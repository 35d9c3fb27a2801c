"""Memory of this process and the ones vLLM started: resident, and on the GPUs where the driver tells."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def measure_used_bytes() -> int:
    import psutil  # type: ignore[import-untyped, unused-ignore]

    me = psutil.Process()
    family = [me, *me.children(recursive=True)]
    return sum(_read_resident_bytes(one) for one in family) + _read_gpu_bytes({one.pid for one in family})


def _read_resident_bytes(process: Any) -> int:
    """Pages shared by forked processes are counted once, where the system tells."""
    try:
        lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    except (OSError, StopIteration):
        pass
    try:
        return int(process.memory_info().rss)
    except Exception:  # the process may have ended meanwhile
        return 0


def _read_gpu_bytes(pids: set[int]) -> int:
    """Read through NVML, which opens no CUDA context in this process."""
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
            total += sum(one.usedGpuMemory or 0 for one in running if one.pid in pids)
    except pynvml.NVMLError:
        return total
    return total
