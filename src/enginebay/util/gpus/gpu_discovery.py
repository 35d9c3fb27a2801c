"""Finds the NVIDIA GPUs of this host, their links, and those that do not respond."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from enginebay.util.nvml import NvmlMissing, close_nvml, open_nvml

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
PLACED_GPUS = "ENGINEBAY_PLACED_GPUS"  # of a worker: the GPUs it computes on, which may be fewer than it sees
_MIG = "MIG"


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. Its index counts those that `bay` may use: the position in its own CUDA_VISIBLE_DEVICES, if set."""

    index: int
    name: str
    memory_bytes: int
    device: str = ""  # for CUDA_VISIBLE_DEVICES: its UUID, or the driver's index


@dataclass(frozen=True, slots=True)
class GpuHost:
    """What the driver says about this host."""

    gpus: tuple[Gpu, ...] = ()
    driver: str = ""
    links: tuple[tuple[int, int], ...] = ()  # pairs of indexes that are joined by NVLink, or else by a PCIe switch
    problems: tuple[str, ...] = ()  # GPUs that are there and cannot be used


def read_gpus(environ: Mapping[str, str] = os.environ, open_driver: Callable[[], Any] = open_nvml) -> GpuHost:
    """Ask the driver for the GPUs that CUDA_VISIBLE_DEVICES leaves us, in its order."""
    visible = environ.get(VISIBLE_DEVICES)
    if visible is not None and visible.strip() in ("", "-1"):
        return GpuHost()
    try:
        nvml = open_driver()
    except NvmlMissing:
        return GpuHost()
    try:
        return _read_host(nvml, visible)
    except nvml.NVMLError as error:
        return GpuHost(problems=(f"the NVIDIA driver does not list its GPUs: {error}",))
    finally:
        close_nvml(nvml)


def _read_host(nvml: Any, visible: str | None) -> GpuHost:
    handles: dict[int, Any] = {}
    gpus: list[Gpu] = []
    problems: list[str] = []
    for index, name, find in _iter_devices(nvml, visible):
        try:
            handle = find()
            gpu = Gpu(index, str(nvml.nvmlDeviceGetName(handle)), _read_memory(nvml, handle), _read_uuid(nvml, handle))
        except nvml.NVMLError as error:
            problems.append(f"GPU {name} cannot be used: {error}")
            if name.startswith(_MIG):
                break  # like CUDA, stop at the first that is unknown
            continue
        gpus.append(gpu if gpu.device else Gpu(gpu.index, gpu.name, gpu.memory_bytes, name))
        handles[index] = handle
    driver = str(nvml.nvmlSystemGetDriverVersion()) if gpus else ""
    return GpuHost(tuple(gpus), driver, tuple(_find_links(nvml, handles)), tuple(problems))


def _iter_devices(nvml: Any, visible: str | None) -> Iterator[tuple[int, str, Callable[[], Any]]]:
    """Yield the index, the name and the way to a handle of each GPU that we may use."""
    count = nvml.nvmlDeviceGetCount()
    if visible is None:
        for index in range(count):
            yield index, str(index), lambda index=index: nvml.nvmlDeviceGetHandleByIndex(index)  # type: ignore[misc]
        return
    names = [name.strip() for name in visible.split(",")]
    uuids = _read_uuids(nvml, count) if any(name.startswith("GPU-") for name in names) else []
    for index, name in enumerate(dict.fromkeys(names)):
        if name.startswith(_MIG):
            yield index, name, lambda name=name: nvml.nvmlDeviceGetHandleByUUID(name)  # type: ignore[misc]
            continue
        number = match_device(name, uuids, count)
        if number is None:
            return
        yield index, str(number), lambda number=number: nvml.nvmlDeviceGetHandleByIndex(number)  # type: ignore[misc]


def match_device(name: str, uuids: Sequence[str], count: int | None = None) -> int | None:
    """Return the driver's index of an entry in CUDA_VISIBLE_DEVICES: an index, or the start of a UUID."""
    if name.isdigit():
        return int(name) if int(name) < (len(uuids) if count is None else count) else None
    return next((n for n, uuid in enumerate(uuids) if name and uuid.startswith(name)), None)


def _read_uuids(nvml: Any, count: int) -> list[str]:
    uuids = []
    for index in range(count):
        try:
            uuids.append(_read_uuid(nvml, nvml.nvmlDeviceGetHandleByIndex(index)))
        except nvml.NVMLError:
            uuids.append("")
    return uuids


def _read_uuid(nvml: Any, handle: Any) -> str:
    try:
        return str(nvml.nvmlDeviceGetUUID(handle))
    except nvml.NVMLError:
        return ""


def _read_memory(nvml: Any, handle: Any) -> int:
    """Return the GPU's memory in bytes; 0 if it shares the host's."""
    try:
        return int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
    except nvml.NVMLError as error:
        if getattr(error, "value", None) == nvml.NVML_ERROR_GPU_IS_LOST:
            raise
        return 0


def _find_links(nvml: Any, handles: Mapping[int, Any]) -> list[tuple[int, int]]:
    """Return the pairs that NVLink joins; without any, those that share a PCIe switch."""
    pairs = list(combinations(sorted(handles), 2))
    for is_linked in (_has_nvlink, _shares_switch):
        linked = [(one, other) for one, other in pairs if is_linked(nvml, handles[one], handles[other])]
        if linked:
            return linked
    return []


def _has_nvlink(nvml: Any, one: Any, other: Any) -> bool:
    try:
        return bool(nvml.nvmlDeviceGetP2PStatus(one, other, nvml.NVML_P2P_CAPS_INDEX_NVLINK) == nvml.NVML_P2P_STATUS_OK)
    except (nvml.NVMLError, AttributeError):  # an old driver, or an old nvidia-ml-py
        return False


def _shares_switch(nvml: Any, one: Any, other: Any) -> bool:
    try:
        return bool(nvml.nvmlDeviceGetTopologyCommonAncestor(one, other) <= nvml.NVML_TOPOLOGY_MULTIPLE)
    except (nvml.NVMLError, AttributeError):
        return False
