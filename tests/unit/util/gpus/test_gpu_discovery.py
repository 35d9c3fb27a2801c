"""The driver's GPUs as bay may use them: hidden, renumbered, linked, lost."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from enginebay.errors import ConfigError
from enginebay.util.gpus.declared_gpus import read_declared_gpus
from enginebay.util.gpus.gpu_discovery import Gpu, GpuHost, match_device, read_gpus
from enginebay.util.nvml import NvmlMissing

GIB = 2**30


class Driver:
    """`pynvml` with four GPUs."""

    NVMLError = pynvml.NVMLError
    NVML_ERROR_GPU_IS_LOST = pynvml.NVML_ERROR_GPU_IS_LOST
    NVML_P2P_CAPS_INDEX_NVLINK = pynvml.NVML_P2P_CAPS_INDEX_NVLINK
    NVML_P2P_STATUS_OK = pynvml.NVML_P2P_STATUS_OK
    NVML_TOPOLOGY_MULTIPLE = pynvml.NVML_TOPOLOGY_MULTIPLE

    def __init__(
        self, lost: tuple[int, ...] = (), nvlinks: tuple[tuple[int, int], ...] = (), uuids: bool = True
    ) -> None:
        self.lost, self.nvlinks, self.uuids = lost, nvlinks, uuids

    def nvmlDeviceGetCount(self) -> int:
        return 4

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index in self.lost:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid != "MIG-1":
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return uuid

    def nvmlDeviceGetName(self, gpu: Any) -> str:
        return "H200"

    def nvmlDeviceGetUUID(self, gpu: Any) -> str:
        if not self.uuids:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return gpu if isinstance(gpu, str) else f"GPU-{'abcd'[gpu]}"

    def nvmlDeviceGetMemoryInfo(self, gpu: Any) -> SimpleNamespace:
        return SimpleNamespace(total=18 * GIB if isinstance(gpu, str) else 80 * GIB)

    def nvmlSystemGetDriverVersion(self) -> str:
        return "570.86"

    def nvmlDeviceGetP2PStatus(self, one: int, other: int, index: int) -> int:
        return pynvml.NVML_P2P_STATUS_OK if (one, other) in self.nvlinks else 5

    def nvmlDeviceGetTopologyCommonAncestor(self, one: int, other: int) -> int:
        return pynvml.NVML_TOPOLOGY_SINGLE if one // 2 == other // 2 else pynvml.NVML_TOPOLOGY_SYSTEM

    def nvmlShutdown(self) -> None: ...


def read(driver: Driver, visible: str | None = None) -> GpuHost:
    return read_gpus({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}, lambda: driver)


@pytest.mark.parametrize(
    ("visible", "devices"),
    [
        (None, ["GPU-a", "GPU-b", "GPU-c", "GPU-d"]),
        ("2,0", ["GPU-c", "GPU-a"]),
        ("GPU-d,GPU-b", ["GPU-d", "GPU-b"]),
        ("1,9,2", ["GPU-b"]),  # as CUDA does: the first unknown one ends the list
        ("MIG-1", ["MIG-1"]),
        ("", []),
        ("-1", []),
    ],
)
def test_only_visible_gpus_count_and_in_their_order(visible: str | None, devices: list[str]) -> None:
    found = read(Driver(), visible).gpus
    assert [gpu.device for gpu in found] == devices
    assert [gpu.index for gpu in found] == list(range(len(devices)))


def test_a_slice_has_its_own_memory() -> None:
    assert [gpu.memory_bytes for gpu in read(Driver(), "MIG-1").gpus] == [18 * GIB]


def test_without_uuids_gpus_are_named_by_the_drivers_index() -> None:
    assert read(Driver(uuids=False), "3,1").gpus == (Gpu(0, "H200", 80 * GIB, "3"), Gpu(1, "H200", 80 * GIB, "1"))


def test_a_lost_gpu_is_reported_and_the_others_keep_their_numbers() -> None:
    found = read(Driver(lost=(1,)))
    assert [gpu.index for gpu in found.gpus] == [0, 2, 3]
    assert found.problems == ("GPU 1 cannot be used: GPU is lost",)


def test_a_lost_gpu_among_the_visible_ones_takes_no_other_with_it() -> None:
    found = read(Driver(lost=(1,)), "1,2,3")
    assert [(gpu.index, gpu.device) for gpu in found.gpus] == [(1, "GPU-c"), (2, "GPU-d")]


def test_nvlink_counts_before_a_common_switch() -> None:
    assert read(Driver(nvlinks=((0, 3), (1, 2)))).links == ((0, 3), (1, 2))
    assert read(Driver()).links == ((0, 1), (2, 3))
    assert read(Driver(), "0,2,3").links == ((1, 2),)


def test_no_driver_is_no_gpu() -> None:
    def open_driver() -> Any:
        raise NvmlMissing("no driver")

    assert read_gpus({}, open_driver) == GpuHost()


@pytest.mark.parametrize(("name", "index"), [("0", 0), ("2", None), ("GPU-b", 1), ("GPU-", 0), ("", None), ("x", None)])
def test_an_entry_is_an_index_or_the_start_of_a_uuid(name: str, index: int | None) -> None:
    assert match_device(name, ["GPU-aa", "GPU-bb"]) == index


def test_declared_gpus() -> None:
    found = read_declared_gpus("2x80GiB,24GiB; links 0-1; lost 2")
    assert [(gpu.index, gpu.memory_bytes) for gpu in found.gpus] == [(0, 80 * GIB), (1, 80 * GIB)]
    assert found.links == ((0, 1),) and found.problems == ("GPU 2 cannot be used: declared as lost",)


@pytest.mark.parametrize(
    "text", ["eight", "8x", "8x80GiB; links 0", "8x80GiB; found 1", "9999x1GiB", "/does/not/exist"]
)
def test_a_bad_declaration_is_one_clear_line(text: str) -> None:
    with pytest.raises(ConfigError, match="ENGINEBAY_FAKE_GPUS: "):
        read_declared_gpus(text)
