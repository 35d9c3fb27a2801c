"""Memory of a server's process tree by kind of process, and its growth."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from enginebay.meters.devices.proc_files import list_process_tree, read_process_usage

_WORKER, _ENGINE = b"worker/bootstrap.py", b"Engine"


def compute_growth(points: Sequence[tuple[float, float]]) -> float:
    """Return the growth over all points as a share of their mean: least-squares slope times duration. Pure."""
    times, values = [time for time, _ in points], [value for _, value in points]
    if len(points) < 2 or max(times) == min(times):
        raise ValueError("a trend needs two points in time")
    middle, mean = fmean(times), fmean(values)
    spread = sum((time - middle) ** 2 for time in times)
    slope = sum((time - middle) * (value - mean) for time, value in points) / spread
    return slope * (max(times) - min(times)) / mean if mean else 0.0


def classify_processes(parents: Mapping[int, int], commands: Mapping[int, bytes]) -> dict[int, str]:
    """Return the kind of each process by name and command line; vLLM forks its engine process from the worker. Pure."""
    kinds: dict[int, str] = {}
    for pid in parents:  # parents come first
        parent_kind = kinds.get(parents[pid], "server")
        is_worker = _WORKER in commands.get(pid, b"")
        if parent_kind == "server":
            kinds[pid] = "worker" if is_worker else "server"
        else:
            kinds[pid] = (
                "engine" if parent_kind == "engine" or is_worker or _ENGINE in commands.get(pid, b"") else "worker"
            )
    return kinds


def list_processes(root: int) -> dict[int, str]:
    """Return the kind of a process and of each of its descendants."""
    parents: dict[int, int] = {}
    commands: dict[int, bytes] = {}
    for pid in list_process_tree(root):
        folder = Path(f"/proc/{pid}")
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            commands[pid] = (folder / "comm").read_bytes() + (folder / "cmdline").read_bytes()
        except OSError:
            continue  # just exited
        parents[pid] = parent
    return classify_processes(parents, commands)


def sum_resident(processes: Mapping[int, str]) -> dict[str, int]:
    """Return resident bytes by kind."""
    sums: dict[str, int] = {}
    for pid, kind in processes.items():
        usage = read_process_usage(pid)
        if usage is not None:
            sums[kind] = sums.get(kind, 0) + usage.resident_bytes
    return sums


def identify_own_processes(
    before: Collection[int], now: Mapping[int, int], pids: Collection[int], min_bytes: int
) -> tuple[set[int], str]:
    """Return which of the driver's processes are ours (empty: unknown), and how they were identified. Pure.

    In a container the driver may report the host's PIDs. Then ours is the only new process that holds at least `min_bytes`.
    """
    known = {pid for pid in now if pid in pids}
    if known:
        return known, "by PID"
    large = {pid for pid, held in now.items() if pid not in before and held >= min_bytes}
    if len(large) == 1:
        return large, f"the driver reports other PIDs: the only new process of at least {min_bytes / 2**30:.0f} GiB"
    return set(), "cannot tell which process is ours: whole device, not judged"


class GpuMemoryWatch:
    """GPU memory of the server. Create it before the server starts. Holds no CUDA context."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self.method = "no GPU"
        try:
            import pynvml

            pynvml.nvmlInit()
            count = pynvml.nvmlDeviceGetCount()
            self._gpus = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        except ImportError:
            self.method = "nvidia-ml-py is not installed"
            return
        except pynvml.NVMLError as error:
            self.method = f"NVML does not initialize: {error}"
            return
        self._nvml = pynvml
        self._before = set(self._read_held())
        self._ours: set[int] = set()

    @property
    def is_available(self) -> bool:
        """Return whether NVML reports a GPU."""
        return self._nvml is not None and bool(self._gpus)

    def identify(self, pids: Collection[int], min_bytes: int) -> None:
        """Find the server's processes. Call it once the model is loaded."""
        if self._nvml is not None:
            self._ours, self.method = identify_own_processes(self._before, self._read_held(), pids, min_bytes)

    def read(self) -> dict[str, int]:
        """Return bytes as "gpu", or as "device" if only the total of all processes is known."""
        if self._nvml is None:
            return {}
        if self._ours:
            held = [size for pid, size in self._read_held().items() if pid in self._ours]
            return {"gpu": sum(held)} if held else {}
        return {"device": sum(int(self._nvml.nvmlDeviceGetMemoryInfo(gpu).used) for gpu in self._gpus)}

    def _read_held(self) -> dict[int, int]:
        held: dict[int, int] = {}
        for gpu in self._gpus:
            try:
                running = self._nvml.nvmlDeviceGetComputeRunningProcesses(gpu)
            except self._nvml.NVMLError:
                continue  # transient: skip this sample
            for process in running:
                if process.usedGpuMemory:  # None: the driver does not report it
                    held[int(process.pid)] = held.get(int(process.pid), 0) + int(process.usedGpuMemory)
        return held
