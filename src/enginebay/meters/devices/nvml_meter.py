"""Meter of NVIDIA GPUs, by NVML."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from enginebay.meters.sample import Absent, Sample
from enginebay.util.nvml import NvmlMissing, close_nvml, open_nvml

THROTTLE_REASONS = {
    0x002: "clocks_set",  # by the administrator
    0x004: "power_cap",
    0x008: "hardware_slowdown",
    0x010: "sync_boost",
    0x020: "thermal_software",
    0x040: "thermal_hardware",
    0x080: "power_brake",
    0x100: "display_clocks",
    0x200: "board_limit",
    0x400: "reliability",
}  # bit 1, an idle GPU, is not throttling

ReadFunction = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class _Gpu:
    """One GPU with its supported readings."""

    device: str
    readers: dict[str, ReadFunction]
    limit_w: float | None


class NvmlMeter:
    """Energy, power, utilization, memory, clock, temperature and throttling of GPUs. MIG slices are read as the whole GPU."""

    name = "nvml"

    def __init__(self, library: ModuleType, gpus: Sequence[_Gpu], labels: dict[str, str]) -> None:
        self._nvml = library
        self._gpus = tuple(gpus)
        self.labels = labels  # by device: product name and UUID

    def read(self) -> list[Sample]:
        return [self._read_gpu(gpu) for gpu in self._gpus]

    def close(self) -> None:
        close_nvml(self._nvml)

    def _read_gpu(self, gpu: _Gpu) -> Sample:
        before_s = time.monotonic()
        energy_j = self._read_value(gpu, "energy")
        after_s = time.monotonic()  # time of the counter; the rest may take a while
        return Sample(
            time_s=(before_s + after_s) / 2,
            device=gpu.device,
            energy_j=energy_j,
            power_w=self._read_value(gpu, "power"),
            utilisation=self._read_value(gpu, "utilisation"),
            memory_bytes=self._read_value(gpu, "memory"),
            sm_clock_hz=self._read_value(gpu, "clock"),
            temperature_c=self._read_value(gpu, "temperature"),
            throttle=decode_throttle_reasons(self._read_value(gpu, "throttle") or 0),
            limit_w=gpu.limit_w,
        )

    def _read_value(self, gpu: _Gpu, figure: str) -> Any:
        read = gpu.readers.get(figure)
        if read is None:
            return None
        try:
            return read()
        except self._nvml.NVMLError:
            return None  # a transient failure


def open_nvml_meter(indexes: Sequence[int] | None = None) -> tuple[NvmlMeter | None, list[Absent]]:
    """Open a meter of these GPUs, or of all, and list what they do not report."""
    try:
        pynvml = open_nvml()
    except NvmlMissing as error:
        return None, [Absent("nvml", str(error))]
    try:
        count = pynvml.nvmlDeviceGetCount()
        selected = list(range(count)) if indexes is None else list(indexes)
        handles = {index: pynvml.nvmlDeviceGetHandleByIndex(index) for index in selected}
    except pynvml.NVMLError as error:
        close_nvml(pynvml)
        return None, [Absent("nvml", f"the NVIDIA driver does not list its GPUs: {error}")]
    if not handles:
        close_nvml(pynvml)
        return None, [Absent("nvml", "the NVIDIA driver finds no GPU")]
    return _build_meter(pynvml, handles)


def decode_throttle_reasons(bits: int) -> tuple[str, ...]:
    """Return the names of the throttle reasons."""
    return tuple(name for bit, name in THROTTLE_REASONS.items() if bits & bit)


def _build_meter(nvml: ModuleType, handles: dict[int, Any]) -> tuple[NvmlMeter, list[Absent]]:
    gpus, labels, absent = [], {}, []
    for index, handle in handles.items():
        device = f"gpu:{index}"
        reads, missing = _select_readers(nvml, _list_readers(nvml, handle))
        absent += [Absent(f"nvml {device} {figure}", reason) for figure, reason in missing.items()]
        gpus.append(_Gpu(device, reads, _read_power_limit_w(nvml, handle)))
        labels[device] = _read_label(nvml, handle)
    return NvmlMeter(nvml, gpus, labels), absent


def _list_readers(nvml: ModuleType, handle: Any) -> dict[str, list[ReadFunction]]:
    """Return the ways to read each figure, best first."""
    return {
        "energy": [lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3],
        # Since Ampere the plain reading is averaged over the last second, so it lags at both ends of a window.
        "power": [lambda: _read_instant_power_w(nvml, handle), lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1e3],
        "utilisation": [lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100],
        "memory": [lambda: int(nvml.nvmlDeviceGetMemoryInfo(handle).used)],
        "clock": [lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM) * 1e6],
        "temperature": [lambda: float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))],
        "throttle": [
            lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle),
            lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),  # drivers before 535
        ],
    }


def _select_readers(
    nvml: ModuleType, candidates: dict[str, list[ReadFunction]]
) -> tuple[dict[str, ReadFunction], dict[str, str]]:
    """Return the first working reader of each figure, and why the others have none."""
    reads: dict[str, ReadFunction] = {}
    missing: dict[str, str] = {}
    for figure, readers in candidates.items():
        for reader in readers:
            try:
                reader()
            except (nvml.NVMLError, AttributeError) as error:  # older nvidia-ml-py lacks some fields
                missing[figure] = f"the driver does not report it: {error}"
            else:
                reads[figure] = reader
                missing.pop(figure, None)
                break
    return reads, missing


def _read_instant_power_w(nvml: ModuleType, handle: Any) -> float:
    field = nvml.nvmlDeviceGetFieldValues(handle, [nvml.NVML_FI_DEV_POWER_INSTANT])[0]
    if field.nvmlReturn != nvml.NVML_SUCCESS:
        raise nvml.NVMLError(field.nvmlReturn)
    if field.valueType != nvml.NVML_VALUE_TYPE_UNSIGNED_INT:
        raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)
    return float(field.value.uiVal) / 1e3


def _read_power_limit_w(nvml: ModuleType, handle: Any) -> float | None:
    try:
        return float(nvml.nvmlDeviceGetEnforcedPowerLimit(handle)) / 1e3
    except nvml.NVMLError:
        return None


def _read_label(nvml: ModuleType, handle: Any) -> str:
    try:
        return f"{nvml.nvmlDeviceGetName(handle)} {nvml.nvmlDeviceGetUUID(handle)}"
    except nvml.NVMLError:
        return "NVIDIA GPU"
