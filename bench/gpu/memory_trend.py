"""Memory of a server and all below it, by what the processes are, and whether it grows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from enginebay.meters.devices.proc_files import read_process_usage
from enginebay.worker.engine_side.resident_memory import list_process_tree

_WORKER, _ENGINE = b"worker/bootstrap.py", b"Engine"


def compute_growth(points: Sequence[tuple[float, float]]) -> float:
    """Growth over all of the points as a share of their mean: the slope of least squares times the time. Pure."""
    times, values = [time for time, _ in points], [value for _, value in points]
    if len(points) < 2 or max(times) == min(times):
        raise ValueError("a trend needs two moments")
    middle, mean = fmean(times), fmean(values)
    spread = sum((time - middle) ** 2 for time in times)
    slope = sum((time - middle) * (value - mean) for time, value in points) / spread
    return slope * (max(times) - min(times)) / mean if mean else 0.0


def classify_processes(parents: Mapping[int, int], told: Mapping[int, bytes]) -> dict[int, str]:
    """What each process is, by its name and command line: vLLM's engine process is forked from the worker. Pure."""
    found: dict[int, str] = {}
    for pid in parents:  # parents come first
        above = found.get(parents[pid], "server")
        is_worker = _WORKER in told.get(pid, b"")
        if above == "server":
            found[pid] = "worker" if is_worker else "server"
        else:
            found[pid] = "engine" if above == "engine" or is_worker or _ENGINE in told.get(pid, b"") else "worker"
    return found


def list_processes(root: int) -> dict[int, str]:
    """The kinds of a process and all below it."""
    parents: dict[int, int] = {}
    told: dict[int, bytes] = {}
    for pid in list_process_tree(root):
        place = Path(f"/proc/{pid}")
        try:
            parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
            told[pid] = (place / "comm").read_bytes() + (place / "cmdline").read_bytes()
        except OSError:
            continue  # it has just ended
        parents[pid] = parent
    return classify_processes(parents, told)


def sum_resident(found: Mapping[int, str]) -> dict[str, int]:
    """Resident bytes by kind."""
    sums: dict[str, int] = {}
    for pid, kind in found.items():
        process = read_process_usage(pid)
        if process is not None:
            sums[kind] = sums.get(kind, 0) + process.resident_bytes
    return sums


def identify_own_processes(
    before: Collection[int], now: Mapping[int, int], pids: Collection[int], least: int
) -> tuple[set[int], str]:
    """Which of the driver's processes are these, and how that is known; empty: it is not. Pure.

    In a container the driver may number processes as the host does. Then it is the one that came since and holds at
    least so many bytes, if there is only one.
    """
    known = {pid for pid in now if pid in pids}
    if known:
        return known, "by process number"
    large = {pid for pid, held in now.items() if pid not in before and held >= least}
    if len(large) == 1:
        return large, f"the driver numbers processes differently: the only new one of at least {least / 2**30:.0f} GiB"
    return set(), "the driver does not tell which process is ours: all of the device, not judged"


class GpuMemoryWatch:
    """To be made before the server is. Holds no CUDA context."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self.method = "no GPU"
        try:
            import pynvml

            pynvml.nvmlInit()
            count = pynvml.nvmlDeviceGetCount()
            self._gpus = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        except ImportError:
            self.method = "nvidia-ml-py is not there"
            return
        except pynvml.NVMLError as error:
            self.method = f"the driver's library does not start: {error}"
            return
        self._nvml = pynvml
        self._before = set(self._read_held())
        self._ours: set[int] = set()

    @property
    def is_available(self) -> bool:
        """Whether there is a GPU to be read at all."""
        return self._nvml is not None and bool(self._gpus)

    def identify(self, pids: Collection[int], least: int) -> None:
        """Once the server has loaded its model."""
        if self._nvml is not None:
            self._ours, self.method = identify_own_processes(self._before, self._read_held(), pids, least)

    def read(self) -> dict[str, int]:
        """Bytes as "gpu"; as "device" where only the sum of all processes is known."""
        if self._nvml is None:
            return {}
        if self._ours:
            held = [size for pid, size in self._read_held().items() if pid in self._ours]
            return {"gpu": sum(held)} if held else {}
        return {"device": sum(int(self._nvml.nvmlDeviceGetMemoryInfo(gpu).used) for gpu in self._gpus)}

    def _read_held(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for gpu in self._gpus:
            try:
                running = self._nvml.nvmlDeviceGetComputeRunningProcesses(gpu)
            except self._nvml.NVMLError:
                continue  # not this time
            for one in running:
                if one.usedGpuMemory:  # None: the driver knows the process and not what it holds
                    found[int(one.pid)] = found.get(int(one.pid), 0) + int(one.usedGpuMemory)
        return found
