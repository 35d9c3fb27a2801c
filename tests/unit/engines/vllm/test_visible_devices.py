"""GPUs by UUID become indexes for versions of vLLM that read only numbers."""

from __future__ import annotations

import os
from typing import Any

import pynvml
import pytest

from enginebay.engines.vllm import library
from enginebay.util.nvml import NvmlMissing


class Driver:
    NVMLError = pynvml.NVMLError

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid == "GPU-x":
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return uuid

    def nvmlDeviceGetIndex(self, handle: str) -> int:
        return "abcd".index(handle[-1])

    def nvmlShutdown(self) -> None: ...


@pytest.mark.parametrize(
    ("given", "seen"),
    [("GPU-c,GPU-a", "2,0"), ("GPU-x", "GPU-x"), ("1,0", "1,0"), ("MIG-1", "MIG-1"), (None, None)],
)
def test_uuids_become_the_drivers_indexes(monkeypatch: pytest.MonkeyPatch, given: str | None, seen: str | None) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    if given is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    monkeypatch.setattr(library, "open_nvml", Driver)
    library.number_visible_devices()
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == seen
    assert os.environ["CUDA_DEVICE_ORDER"] == ("PCI_BUS_ID" if given == "GPU-c,GPU-a" else "FASTEST_FIRST")


def test_without_the_driver_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    def open_nvml() -> Any:
        raise NvmlMissing("no driver")

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a")
    monkeypatch.setattr(library, "open_nvml", open_nvml)
    library.number_visible_devices()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-a"
