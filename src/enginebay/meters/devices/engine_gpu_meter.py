"""Meter of the GPUs that one engine uses, and whether it shares them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from enginebay.meters.devices.proc_files import PROC
from enginebay.meters.sample import Absent, Sample
from enginebay.util.gpus.gpu_discovery import match_device
from enginebay.util.nvml import NvmlMissing, close_nvml, open_nvml

_CUDA_DEVICE_FILE = "/dev/nvidia-uvm"  # held open by every process that computes, not by mere queries of the driver
_CUDA_LIBRARY = "libcuda.so"
_PCI_BUS_ORDER = "PCI_BUS_ID"
_AMBIGUOUS_INDEXES = (  # the driver numbers GPUs by bus id; CUDA, by default, starts with the fastest
    "indexes in CUDA_VISIBLE_DEVICES are ambiguous for different GPU models: "
    f"set CUDA_DEVICE_ORDER={_PCI_BUS_ORDER}, or use the GPU's UUID"
)


class EngineGpuMeter:
    """Meter of one engine's GPUs."""

    name = "nvml"

    def __init__(
        self,
        driver: Any,
        gpus: dict[str, Any],
        list_pids: Callable[[], Collection[int]],
        *,
        pids_known: bool,
    ) -> None:
        self._driver = driver
        self._gpus = gpus
        self._list_pids = list_pids
        self._pids_known = pids_known  # the driver sees the same process ids as we do

    def read(self) -> list[Sample]:
        return [self._read_gpu(device, gpu) for device, gpu in self._gpus.items()]

    def _read_gpu(self, device: str, gpu: Any) -> Sample:
        before_s = time.monotonic()
        energy_j, power_w = self._read_milli("nvmlDeviceGetTotalEnergyConsumption", gpu), None
        after_s = time.monotonic()
        if energy_j is None:
            power_w = self._read_milli("nvmlDeviceGetPowerUsage", gpu)
        return Sample((before_s + after_s) / 2, device, energy_j=energy_j, power_w=power_w)

    def _read_milli(self, function: str, gpu: Any) -> float | None:
        try:
            return float(getattr(self._driver, function)(gpu)) / 1e3
        except self._driver.NVMLError:
            return None

    def explain_sharing(self) -> str | None:
        """Return why the joules are not the engine's alone; None if they are, or if the driver does not report processes."""
        if not self._pids_known:
            return None
        family = self._list_pids()
        for device, gpu in self._gpus.items():
            others = [pid for pid in _list_compute_pids(self._driver, gpu) if pid not in family]
            if others:
                return f"process {others[0]} also computes on {device}, and their joules cannot be separated"
        return None

    def close(self) -> None:
        close_nvml(self._driver)


def open_engine_gpu_meter(
    list_pids: Callable[[], Collection[int]],
    visible_devices: str | None,
    open_driver: Callable[[], Any] = open_nvml,
    *,
    order: str | None = None,
    placed: bool = False,
) -> EngineGpuMeter | Absent:
    """Open a meter of these processes' GPUs, given their CUDA_VISIBLE_DEVICES and, as `order`, CUDA_DEVICE_ORDER.

    `placed`: these are exactly the GPUs that they compute on.
    """
    try:
        driver = open_driver()
    except NvmlMissing as error:
        return Absent("nvml", str(error))
    try:
        meter = _open_used_gpus(driver, list_pids, visible_devices, order, placed)
    except driver.NVMLError as error:
        meter = Absent("nvml", f"the NVIDIA driver does not list its GPUs: {error}")
    if isinstance(meter, Absent):
        close_nvml(driver)
    return meter


def _open_used_gpus(
    driver: Any,
    list_pids: Callable[[], Collection[int]],
    visible_devices: str | None,
    order: str | None,
    placed: bool,
) -> EngineGpuMeter | Absent:
    handles = _list_gpus(driver)
    indexes = parse_visible_devices(visible_devices, [driver.nvmlDeviceGetUUID(handle) for handle in handles])
    if isinstance(indexes, str):
        return Absent("nvml", indexes)
    used = _list_used_gpus(driver, handles, list_pids())
    if not used and len(indexes) > 1 and not placed:
        return Absent("nvml", _explain_unknown_gpus(len(indexes)))
    if not used and _are_indexes_ambiguous(driver, handles, visible_devices, order):
        return Absent("nvml", _AMBIGUOUS_INDEXES)
    gpus = {f"gpu:{index}": handles[index] for index in used or indexes}
    meter = EngineGpuMeter(driver, gpus, list_pids, pids_known=bool(used))
    if any(sample.energy_j is None and sample.power_w is None for sample in meter.read()):
        return Absent("nvml", "the driver reports neither energy nor power of this GPU")
    return meter


def _list_used_gpus(driver: Any, handles: Sequence[Any], pids: Collection[int]) -> list[int]:
    return [n for n, handle in enumerate(handles) if any(pid in pids for pid in _list_compute_pids(driver, handle))]


def find_gpus_of(
    pids: Collection[int],
    visible_devices: str | None,
    open_driver: Callable[[], Any] = open_nvml,
    *,
    order: str | None = None,
) -> list[int] | Absent | None:
    """Return the indexes of the GPUs that these processes use, or why they are unknown; None without a driver or GPU.

    If the driver does not report processes, use their CUDA_VISIBLE_DEVICES; `order` is their CUDA_DEVICE_ORDER.
    """
    try:
        driver = open_driver()
    except NvmlMissing:
        return None
    try:
        handles = _list_gpus(driver)
        indexes = parse_visible_devices(visible_devices, [driver.nvmlDeviceGetUUID(handle) for handle in handles])
        used = _list_used_gpus(driver, handles, pids)
        ambiguous = not used and _are_indexes_ambiguous(driver, handles, visible_devices, order)
    except driver.NVMLError:
        return None
    finally:
        close_nvml(driver)
    if not handles:
        return None
    if isinstance(indexes, str):
        return Absent("nvml", indexes)
    if ambiguous:
        return Absent("nvml", _AMBIGUOUS_INDEXES)
    if used or visible_devices is not None or len(indexes) == 1:
        return used or indexes
    return Absent("nvml", _explain_unknown_gpus(len(indexes)))


def _are_indexes_ambiguous(driver: Any, handles: Sequence[Any], visible_devices: str | None, order: str | None) -> bool:
    """Return whether GPUs are named by index and CUDA may order them differently from the driver."""
    numbers = any(name.strip().isdigit() for name in (visible_devices or "").split(","))
    return numbers and order != _PCI_BUS_ORDER and len(set(map(driver.nvmlDeviceGetName, handles))) > 1


def _explain_unknown_gpus(count: int) -> str:
    return f"cannot determine which of {count} GPUs this engine uses: set CUDA_VISIBLE_DEVICES"


def parse_visible_devices(visible_devices: str | None, uuids: Sequence[str]) -> list[int] | str:
    """Return the indexes of the GPUs in CUDA_VISIBLE_DEVICES, or why they are unknown."""
    if visible_devices is None:
        indexes = list(range(len(uuids)))
    else:
        indexes = []
        for name in (entry.strip() for entry in visible_devices.split(",")):
            if name.startswith("MIG"):
                return "a MIG slice has no energy counter of its own"
            match = match_device(name, uuids)
            if match is None:
                break  # like CUDA, stop at the first unknown one
            indexes.append(match)
    return indexes or "CUDA_VISIBLE_DEVICES selects no GPU"


def uses_cuda(pids: Collection[int], proc: Path = PROC) -> bool:
    """Return whether any of these processes computes on a GPU."""
    return any(_has_cuda_open(proc / str(pid)) for pid in pids)


def has_initialized_cuda(pid: int, proc: Path = PROC) -> bool:
    """Return whether a process has initialized CUDA: it then no longer reads CUDA_VISIBLE_DEVICES."""
    try:
        return any(str(file.readlink()) == _CUDA_DEVICE_FILE for file in (proc / str(pid) / "fd").iterdir())
    except OSError:
        return False  # the file was closed meanwhile, or access is denied


def _has_cuda_open(folder: Path) -> bool:
    if has_initialized_cuda(int(folder.name), folder.parent):
        return True
    try:
        return _CUDA_LIBRARY in (folder / "maps").read_text()
    except (OSError, ValueError):
        return False


def _list_gpus(driver: Any) -> list[Any]:
    """Return the GPUs, numbered by bus id."""
    return [driver.nvmlDeviceGetHandleByIndex(index) for index in range(driver.nvmlDeviceGetCount())]


def _list_compute_pids(driver: Any, gpu: Any) -> list[int]:
    """Return the processes that compute on it. In a container these may be host pids, or missing."""
    try:
        return [int(process.pid) for process in driver.nvmlDeviceGetComputeRunningProcesses(gpu)]
    except driver.NVMLError:  # an old driver does not know
        return []
