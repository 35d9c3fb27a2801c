"""The NVIDIA driver's own library by ctypes: for environments without nvidia-ml-py, the few calls that joules need."""

from __future__ import annotations

import ctypes
from typing import Any

_LIBRARY = "libnvidia-ml.so.1"
_UUID_BYTES = 96
_NAME_BYTES = 96
_MAX_PROCESSES = 256


class NvmlDriverError(Exception):
    """What the driver says."""


class _ProcessInfo(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("memory", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class NvmlDriver:
    """Open until `close`. GPUs are counted as the driver does, by their place on the bus."""

    def __init__(self, library: Any = None) -> None:
        try:
            self._library = ctypes.CDLL(_LIBRARY) if library is None else library
        except OSError as error:
            raise NvmlDriverError(f"there is no NVIDIA driver: {error}") from None
        self._call("nvmlInit_v2")

    def count_gpus(self) -> int:
        found = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(found))
        return int(found.value)

    def get_gpu(self, index: int) -> ctypes.c_void_p:
        found = ctypes.c_void_p()
        self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(found))
        return found

    def read_uuid(self, gpu: ctypes.c_void_p) -> str:
        found = ctypes.create_string_buffer(_UUID_BYTES)
        self._call("nvmlDeviceGetUUID", gpu, found, ctypes.c_uint(_UUID_BYTES))
        return found.value.decode()

    def read_model(self, gpu: ctypes.c_void_p) -> str:
        found = ctypes.create_string_buffer(_NAME_BYTES)
        self._call("nvmlDeviceGetName", gpu, found, ctypes.c_uint(_NAME_BYTES))
        return found.value.decode()

    def read_energy_j(self, gpu: ctypes.c_void_p) -> float:
        found = ctypes.c_ulonglong()
        self._call("nvmlDeviceGetTotalEnergyConsumption", gpu, ctypes.byref(found))
        return int(found.value) / 1e3

    def read_power_w(self, gpu: ctypes.c_void_p) -> float:
        found = ctypes.c_uint()
        self._call("nvmlDeviceGetPowerUsage", gpu, ctypes.byref(found))
        return int(found.value) / 1e3

    def list_compute_pids(self, gpu: ctypes.c_void_p) -> list[int]:
        """Who computes on it. In a container the numbers may be the host's, or there may be none."""
        count, found = ctypes.c_uint(_MAX_PROCESSES), (_ProcessInfo * _MAX_PROCESSES)()
        self._call("nvmlDeviceGetComputeRunningProcesses_v3", gpu, ctypes.byref(count), found)
        return [int(one.pid) for one in found[: count.value]]

    def close(self) -> None:
        try:
            self._call("nvmlShutdown")
        except NvmlDriverError:
            pass  # it is gone, and with it what would be released

    def _call(self, name: str, *arguments: Any) -> None:
        try:
            code = int(getattr(self._library, name)(*arguments))
        except AttributeError:
            raise NvmlDriverError(f"this driver has no {name}") from None
        if code:
            raise NvmlDriverError(self._describe_error(code))

    def _describe_error(self, code: int) -> str:
        try:
            say = self._library.nvmlErrorString
            say.restype = ctypes.c_char_p
            return str(say(code).decode())
        except AttributeError:
            return f"error {code}"
