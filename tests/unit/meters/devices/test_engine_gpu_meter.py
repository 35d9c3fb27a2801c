"""The GPUs of one engine, with a fake of the driver."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from enginebay.meters.devices.engine_gpu_meter import (
    EngineGpuMeter,
    find_gpus_of,
    has_initialized_cuda,
    open_engine_gpu_meter,
    parse_visible_devices,
    uses_cuda,
)
from enginebay.meters.devices.proc_files import list_process_tree
from enginebay.meters.sample import Absent
from enginebay.util.nvml import NvmlMissing

OWN, OTHER = 100, 999
UUIDS = ["GPU-aaaa", "GPU-bbbb"]


class Library:
    """`pynvml` with two GPUs; calls in `refused` are unsupported."""

    NVMLError = pynvml.NVMLError

    def __init__(self) -> None:
        self.refused: set[str] = set()
        self.energy_mj = [5_000, 9_000]
        self.running: list[list[int]] = [[], []]
        self.models = ["H200", "H200"]
        self.shut = 0

    def __getattr__(self, name: str) -> Any:
        answer = {
            "nvmlShutdown": self._shutdown,
            "nvmlDeviceGetCount": lambda: 2,
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetUUID": lambda gpu: UUIDS[gpu],
            "nvmlDeviceGetName": lambda gpu: self.models[gpu],
            "nvmlDeviceGetTotalEnergyConsumption": lambda gpu: self.energy_mj[gpu],
            "nvmlDeviceGetPowerUsage": lambda gpu: 412_500,
            "nvmlDeviceGetComputeRunningProcesses": lambda gpu: [SimpleNamespace(pid=pid) for pid in self.running[gpu]],
        }[name]
        return self._refuse if name in self.refused else answer

    def _shutdown(self) -> None:
        self.shut += 1

    def _refuse(self, *_: Any) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


def opened(library: Library, environment: str | None = None, order: str | None = None) -> EngineGpuMeter | Absent:
    return open_engine_gpu_meter(lambda: {OWN}, environment, lambda: library, order=order)


def test_of_several_gpus_the_one_that_computes_for_us() -> None:
    library = Library()
    library.running = [[OTHER], [OWN]]
    meter = opened(library)
    assert isinstance(meter, EngineGpuMeter)
    (sample,) = meter.read()
    assert (sample.device, sample.energy_j, sample.power_w) == ("gpu:1", 9.0, None)
    meter.close()
    assert library.shut == 1


def test_a_placed_engine_is_metered_on_all_its_gpus() -> None:
    """Even if the driver does not report processes, as in a container."""
    assert isinstance(opened(Library(), "GPU-bbbb,GPU-aaaa"), Absent)
    meter = open_engine_gpu_meter(lambda: {OWN}, "GPU-bbbb,GPU-aaaa", Library, placed=True)
    assert isinstance(meter, EngineGpuMeter)
    assert [sample.device for sample in meter.read()] == ["gpu:1", "gpu:0"]


@pytest.mark.parametrize(
    ("running", "environment", "places"),
    [
        ([[OTHER], [OWN, OTHER]], None, [1]),  # the driver tells
        ([[OWN], [OWN]], None, [0, 1]),
        ([[OTHER], []], "1", [1]),  # it does not, the environment does
        ([[], []], "0,GPU-bbbb", [0, 1]),
    ],
)
def test_the_gpus_of_a_server(running: list[list[int]], environment: str | None, places: list[int]) -> None:
    library = Library()
    library.running = running
    assert find_gpus_of({OWN}, environment, lambda: library) == places
    assert library.shut == 1


@pytest.mark.parametrize(
    ("environment", "words"), [(None, "which of 2 GPUs"), ("", "selects no GPU"), ("MIG-1", "MIG")]
)
def test_unknown_gpus_are_not_read(environment: str | None, words: str) -> None:
    found = find_gpus_of({OWN}, environment, Library)
    assert isinstance(found, Absent) and words in found.reason


@pytest.mark.parametrize(
    ("environment", "order", "running", "found"),
    [
        ("0", None, [[], []], None),
        ("0", "PCI_BUS_ID", [[], []], [0]),
        ("GPU-bb", None, [[], []], [1]),
        ("0", None, [[], [OWN]], [1]),  # the driver tells
    ],
)
def test_indexes_of_different_gpu_models_are_ambiguous(
    environment: str, order: str | None, running: list[list[int]], found: list[int] | None
) -> None:
    library = Library()
    library.models, library.running = ["T4", "H200"], running
    told = find_gpus_of({OWN}, environment, lambda: library, order=order)
    if found is None:
        assert isinstance(told, Absent) and "CUDA_DEVICE_ORDER=PCI_BUS_ID" in told.reason
    else:
        assert told == found


def test_without_a_driver_gpus_are_unknown() -> None:
    def none() -> None:
        raise NvmlMissing("there is none")

    assert find_gpus_of({OWN}, None, none) is None
    assert open_engine_gpu_meter(lambda: {OWN}, None, none) == Absent("nvml", "there is none")
    library = Library()
    library.refused = {"nvmlDeviceGetCount"}
    assert find_gpus_of({OWN}, None, lambda: library) is None and library.shut == 1


def test_cuda_indexes_do_not_matter_if_the_driver_reports_processes() -> None:
    library = Library()
    library.models = ["T4", "H200"]
    library.running = [[], [OWN]]
    meter = opened(library, "0")  # the fastest one, which is the second on the bus
    assert isinstance(meter, EngineGpuMeter) and [sample.device for sample in meter.read()] == ["gpu:1"]


@pytest.mark.parametrize(
    ("models", "environment", "order", "found"),
    [
        (["T4", "H200"], "1", None, "CUDA_DEVICE_ORDER=PCI_BUS_ID"),
        (["T4", "H200"], "1", "FASTEST_FIRST", "CUDA_DEVICE_ORDER=PCI_BUS_ID"),
        (["T4", "H200"], "1", "PCI_BUS_ID", ["gpu:1"]),
        (["T4", "H200"], "GPU-bb", None, ["gpu:1"]),
        (["H200", "H200"], "1", None, ["gpu:1"]),
    ],
)
def test_an_index_is_a_bus_index_only_if_unambiguous(
    models: list[str], environment: str, order: str | None, found: str | list[str]
) -> None:
    library = Library()
    library.models = models
    meter = opened(library, environment, order)
    if isinstance(found, str):
        assert isinstance(meter, Absent) and found in meter.reason and library.shut == 1
    else:
        assert isinstance(meter, EngineGpuMeter) and [sample.device for sample in meter.read()] == found


def test_without_a_counter_the_power() -> None:
    library = Library()
    library.refused.add("nvmlDeviceGetTotalEnergyConsumption")
    meter = opened(library, "0")
    assert isinstance(meter, EngineGpuMeter)
    assert [(sample.energy_j, sample.power_w) for sample in meter.read()] == [(None, 412.5)]


def test_other_processes_on_the_same_gpu_are_reported() -> None:
    library = Library()
    library.running = [[OWN], []]
    meter = opened(library, "0,1")
    assert isinstance(meter, EngineGpuMeter) and meter.explain_sharing() is None
    library.running = [[OWN, OTHER], []]
    assert f"process {OTHER} also computes on gpu:0" in (meter.explain_sharing() or "")


def test_in_a_container_the_driver_reports_foreign_pids() -> None:
    library = Library()
    library.running = [[41_000], []]  # ourselves, as the host sees us
    meter = opened(library, "0")
    assert isinstance(meter, EngineGpuMeter) and meter.explain_sharing() is None
    several = opened(library)
    assert isinstance(several, Absent) and "which of 2 GPUs" in several.reason and library.shut == 1


@pytest.mark.parametrize(
    ("refused", "words"),
    [
        (("nvmlDeviceGetCount",), "does not list its GPUs"),
        (("nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetPowerUsage"), "neither energy nor power"),
    ],
)
def test_what_cannot_be_read_is_absent_with_its_reason(refused: tuple[str, ...], words: str) -> None:
    library = Library()
    library.refused.update(refused)
    found = opened(library, "1")
    assert isinstance(found, Absent) and words in found.reason


def test_an_old_driver_may_not_know_who_computes() -> None:
    library = Library()
    library.refused.add("nvmlDeviceGetComputeRunningProcesses")
    assert isinstance(opened(library, "0"), EngineGpuMeter)


@pytest.mark.parametrize(
    ("environment", "places"),
    [
        (None, [0, 1]),
        ("0", [0]),
        ("1,0", [1, 0]),
        ("GPU-bb", [1]),
        ("0,7,1", [0]),  # as CUDA does: the first unknown one ends the list
        ("-1", "selects no GPU"),
        ("", "selects no GPU"),
        ("MIG-1", "MIG slice"),
    ],
)
def test_cuda_visible_devices(environment: str | None, places: list[int] | str) -> None:
    found = parse_visible_devices(environment, UUIDS)
    assert places in found if isinstance(places, str) and isinstance(found, str) else found == places


def make_process(proc: Path, pid: int, parent: int, *, file: str = "/dev/null", maps: str = "") -> None:
    folder = proc / str(pid)
    (folder / "fd").mkdir(parents=True)
    (folder / "task" / str(pid)).mkdir(parents=True)
    (folder / "task" / str(pid) / "children").write_text("")
    if (proc / str(parent)).exists():
        with (proc / str(parent) / "task" / str(parent) / "children").open("a") as children:
            children.write(f"{pid} ")
    (folder / "fd" / "3").symlink_to(file)
    (folder / "maps").write_text(maps)


def test_a_family_is_a_process_and_all_that_come_from_it(tmp_path: Path) -> None:
    for pid, parent in ((1, 0), (10, 1), (11, 10), (12, 11), (20, 1)):
        make_process(tmp_path, pid, parent)
    (tmp_path / "30").mkdir()  # just ended
    assert list_process_tree(10, tmp_path) == [10, 11, 12]


def test_who_computes_on_a_gpu_holds_a_file_or_the_library(tmp_path: Path) -> None:
    make_process(tmp_path, 10, 1, file="/dev/nvidiactl")  # only asks the driver
    make_process(tmp_path, 11, 10, file="/dev/nvidia-uvm")
    make_process(tmp_path, 12, 10, maps="7f00-7f01 r-xp 0 00:1 9 /usr/lib/libcuda.so.580.1\n")
    assert not uses_cuda({10, 13}, tmp_path)
    assert uses_cuda({10, 11}, tmp_path) and uses_cuda({12}, tmp_path)
    assert [has_initialized_cuda(pid, tmp_path) for pid in (10, 11, 12, 13)] == [False, True, False, False]


def test_this_process_is_in_its_own_family() -> None:
    assert os.getpid() in list_process_tree(os.getpid()) and os.getppid() not in list_process_tree(os.getpid())
