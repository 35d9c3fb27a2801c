"""Minimal NVML bindings by ctypes, for environments without nvidia-ml-py."""

from __future__ import annotations

import ctypes
from typing import Any

_LIBRARY = "libnvidia-ml.so.1"
_UUID_BYTES = 96
_NAME_BYTES = 96
_MAX_PROCESSES = 256


class NvmlDriverError(Exception):
    """An error of the NVIDIA driver."""


class _ProcessInfo(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("memory", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class NvmlDriver:
    """The driver, open until `close`. GPUs are numbered by bus id."""

    def __init__(self, library: Any = None) -> None:
        try:
            self._library = ctypes.CDLL(_LIBRARY) if library is None else library
        except OSError as error:
            raise NvmlDriverError(f"no NVIDIA driver: {error}") from None
        self._call("nvmlInit_v2")

    def count_gpus(self) -> int:
        count = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        return int(count.value)

    def get_gpu(self, index: int) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
        return handle

    def read_uuid(self, gpu: ctypes.c_void_p) -> str:
        buffer = ctypes.create_string_buffer(_UUID_BYTES)
        self._call("nvmlDeviceGetUUID", gpu, buffer, ctypes.c_uint(_UUID_BYTES))
        return buffer.value.decode()

    def read_model(self, gpu: ctypes.c_void_p) -> str:
        buffer = ctypes.create_string_buffer(_NAME_BYTES)
        self._call("nvmlDeviceGetName", gpu, buffer, ctypes.c_uint(_NAME_BYTES))
        return buffer.value.decode()

    def read_energy_j(self, gpu: ctypes.c_void_p) -> float:
        millijoules = ctypes.c_ulonglong()
        self._call("nvmlDeviceGetTotalEnergyConsumption", gpu, ctypes.byref(millijoules))
        return int(millijoules.value) / 1e3

    def read_power_w(self, gpu: ctypes.c_void_p) -> float:
        milliwatts = ctypes.c_uint()
        self._call("nvmlDeviceGetPowerUsage", gpu, ctypes.byref(milliwatts))
        return int(milliwatts.value) / 1e3

    def list_compute_pids(self, gpu: ctypes.c_void_p) -> list[int]:
        """Return the processes that compute on it. In a container these may be host pids, or missing."""
        count, processes = ctypes.c_uint(_MAX_PROCESSES), (_ProcessInfo * _MAX_PROCESSES)()
        self._call("nvmlDeviceGetComputeRunningProcesses_v3", gpu, ctypes.byref(count), processes)
        return [int(process.pid) for process in processes[: count.value]]

    def close(self) -> None:
        try:
            self._call("nvmlShutdown")
        except NvmlDriverError:
            pass  # the driver is gone, so nothing is left to release

    def _call(self, name: str, *arguments: Any) -> None:
        try:
            code = int(getattr(self._library, name)(*arguments))
        except AttributeError:
            raise NvmlDriverError(f"this driver has no {name}") from None
        if code:
            raise NvmlDriverError(self._describe_error(code))

    def _describe_error(self, code: int) -> str:
        try:
            describe = self._library.nvmlErrorString
            describe.restype = ctypes.c_char_p
            return str(describe(code).decode())
        except AttributeError:
            return f"error {code}"
