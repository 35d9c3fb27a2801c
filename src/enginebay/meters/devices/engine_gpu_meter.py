"""The GPUs that one engine computes on: which they are, what they draw, and whether it has them for itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from ctypes import c_void_p
from pathlib import Path

from enginebay.meters.devices.nvml_driver import NvmlDriver, NvmlDriverError
from enginebay.meters.devices.proc_files import PROC
from enginebay.meters.sample import Absent, Sample

_CUDA_DEVICE_FILE = (
    "/dev/nvidia-uvm"  # every process that computes holds it open; one that only asks the driver does not
)
_CUDA_LIBRARY = "libcuda.so"
_PCI_BUS_ORDER = "PCI_BUS_ID"
_AMBIGUOUS_INDEXES = (  # the driver counts by the place on the bus, and CUDA, unless told otherwise, from the fastest on
    "the numbers in CUDA_VISIBLE_DEVICES do not tell which of these different GPUs this engine uses: "
    f"set CUDA_DEVICE_ORDER={_PCI_BUS_ORDER}, or name the GPU by its UUID"
)


class EngineGpuMeter:
    """A meter of these GPUs alone."""

    name = "nvml"

    def __init__(
        self,
        driver: NvmlDriver,
        gpus: dict[str, c_void_p],
        list_pids: Callable[[], Collection[int]],
        *,
        pids_known: bool,
    ) -> None:
        self._driver = driver
        self._gpus = gpus
        self._list_pids = list_pids
        self._pids_known = pids_known  # the driver knows our processes by the numbers we know them by

    def read(self) -> list[Sample]:
        return [self._read_gpu(device, gpu) for device, gpu in self._gpus.items()]

    def _read_gpu(self, device: str, gpu: c_void_p) -> Sample:
        before_s = time.monotonic()
        energy_j, power_w = _read_or_none(self._driver.read_energy_j, gpu), None
        after_s = time.monotonic()
        if energy_j is None:
            power_w = _read_or_none(self._driver.read_power_w, gpu)
        return Sample((before_s + after_s) / 2, device, energy_j=energy_j, power_w=power_w)

    def explain_sharing(self) -> str | None:
        """Why the joules are not the engine's alone; None: they are, or the driver does not tell."""
        if not self._pids_known:
            return None
        family = self._list_pids()
        for device, gpu in self._gpus.items():
            others = [pid for pid in _list_compute_pids(self._driver, gpu) if pid not in family]
            if others:
                return f"process {others[0]} computes on {device} too, and their joules cannot be told apart"
        return None

    def close(self) -> None:
        self._driver.close()


def open_engine_gpu_meter(
    list_pids: Callable[[], Collection[int]],
    visible_devices: str | None,
    open_driver: Callable[[], NvmlDriver] = NvmlDriver,
    *,
    order: str | None = None,
) -> EngineGpuMeter | Absent:
    """A meter of the GPUs that these processes use: `environment` is their CUDA_VISIBLE_DEVICES, `order` CUDA_DEVICE_ORDER."""
    try:
        driver = open_driver()
    except NvmlDriverError as error:
        return Absent("nvml", str(error))
    try:
        found = _open_used_gpus(driver, list_pids, visible_devices, order)
    except NvmlDriverError as error:
        found = Absent("nvml", f"the NVIDIA driver does not tell its GPUs: {error}")
    if isinstance(found, Absent):
        driver.close()
    return found


def _open_used_gpus(
    driver: NvmlDriver, list_pids: Callable[[], Collection[int]], visible_devices: str | None, order: str | None
) -> EngineGpuMeter | Absent:
    handles = [driver.get_gpu(index) for index in range(driver.count_gpus())]
    places = parse_visible_devices(visible_devices, [driver.read_uuid(handle) for handle in handles])
    if isinstance(places, str):
        return Absent("nvml", places)
    own = list_pids()
    used = [
        place for place, handle in enumerate(handles) if any(pid in own for pid in _list_compute_pids(driver, handle))
    ]
    if not used and len(places) > 1:
        return Absent("nvml", _explain_unknown_gpus(len(places)))
    if not used and _are_indexes_ambiguous(driver, handles, visible_devices, order):
        return Absent("nvml", _AMBIGUOUS_INDEXES)
    gpus = {f"gpu:{place}": handles[place] for place in used or places}
    meter = EngineGpuMeter(driver, gpus, list_pids, pids_known=bool(used))
    if any(sample.energy_j is None and sample.power_w is None for sample in meter.read()):
        return Absent("nvml", "the driver tells neither the energy nor the power of this GPU")
    return meter


def find_gpus_of(
    pids: Collection[int],
    visible_devices: str | None,
    open_driver: Callable[[], NvmlDriver] = NvmlDriver,
    *,
    order: str | None = None,
) -> list[int] | Absent | None:
    """The GPUs that these processes compute on, by their place; or why they are not known. None: there is no driver or no GPU.

    Where the driver does not tell, it is those that CUDA_VISIBLE_DEVICES, their `environment`, names; `order` is their CUDA_DEVICE_ORDER.
    """
    try:
        driver = open_driver()
    except NvmlDriverError:
        return None
    try:
        handles = [driver.get_gpu(index) for index in range(driver.count_gpus())]
        places = parse_visible_devices(visible_devices, [driver.read_uuid(handle) for handle in handles])
        used = [
            place
            for place, handle in enumerate(handles)
            if any(pid in pids for pid in _list_compute_pids(driver, handle))
        ]
        unclear = not used and _are_indexes_ambiguous(driver, handles, visible_devices, order)
    except NvmlDriverError:
        return None
    finally:
        driver.close()
    if not handles:
        return None
    if isinstance(places, str):
        return Absent("nvml", places)
    if unclear:
        return Absent("nvml", _AMBIGUOUS_INDEXES)
    if used or visible_devices is not None or len(places) == 1:
        return used or places
    return Absent("nvml", _explain_unknown_gpus(len(places)))


def _are_indexes_ambiguous(
    driver: NvmlDriver, handles: Sequence[c_void_p], visible_devices: str | None, order: str | None
) -> bool:
    """Whether GPUs are named by numbers, of which CUDA may have others than the driver."""
    numbers = any(name.strip().isdigit() for name in (visible_devices or "").split(","))
    return numbers and order != _PCI_BUS_ORDER and len(set(map(driver.read_model, handles))) > 1


def _explain_unknown_gpus(count: int) -> str:
    return f"the driver does not tell which of {count} GPUs this engine uses: set CUDA_VISIBLE_DEVICES to them"


def parse_visible_devices(visible_devices: str | None, uuids: Sequence[str]) -> list[int] | str:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves, by their place; or why that cannot be told."""
    if visible_devices is None:
        places = list(range(len(uuids)))
    else:
        places = []
        for name in (one.strip() for one in visible_devices.split(",")):
            if name.startswith("MIG"):
                return "a MIG slice has no energy counter of its own"
            match = [
                place for place, uuid in enumerate(uuids) if name == str(place) or (name and uuid.startswith(name))
            ]
            if not match:
                break  # CUDA, too, stops at the first one that it does not know
            places.append(match[0])
    return places or "CUDA_VISIBLE_DEVICES leaves no GPU"


def uses_cuda(pids: Collection[int], proc: Path = PROC) -> bool:
    """Whether any of these processes computes on a GPU."""
    return any(_has_cuda_open(proc / str(pid)) for pid in pids)


def collect_process_tree(pid: int, proc: Path = PROC) -> set[int]:
    """A process and all that come from it."""
    parents: dict[int, int] = {}
    for folder in proc.glob("[0-9]*"):
        try:
            # The second field is the program's name in brackets, which may hold anything.
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue  # it has just ended
    family, size = {pid}, 0
    while len(family) > size:
        size = len(family)
        family |= {child for child, parent in parents.items() if parent in family}
    return family


def _has_cuda_open(folder: Path) -> bool:
    try:
        if any(str(file.readlink()) == _CUDA_DEVICE_FILE for file in (folder / "fd").iterdir()):
            return True
    except OSError:
        pass  # a file was closed meanwhile, or is not ours to look at
    try:
        return _CUDA_LIBRARY in (folder / "maps").read_text()
    except (OSError, ValueError):
        return False


def _list_compute_pids(driver: NvmlDriver, gpu: c_void_p) -> list[int]:
    try:
        return driver.list_compute_pids(gpu)
    except NvmlDriverError:
        return []


def _read_or_none(read: Callable[[c_void_p], float], gpu: c_void_p) -> float | None:
    try:
        return read(gpu)
    except NvmlDriverError:
        return None
