"""Parsing of system files and commands."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest

from enginebay.fleet.diagnostics import FindingState, check_host
from enginebay.util import hardware
from enginebay.util.gpus.gpu_discovery import GpuHost, read_gpus

X86 = "processor : 0\nmodel name : Some Xeon\nflags : fpu avx avx2 avx512f avx512_bf16 amx_tile\n"
ARM = "processor : 0\nFeatures : fp asimd asimddp i8mm\nCPU implementer : 0x41\nCPU part : 0xd49\n"


def test_features_are_named_the_same_on_every_processor() -> None:
    assert hardware.parse_cpu_features(X86) == ("amx", "avx", "avx2", "avx512", "bf16")
    assert hardware.parse_cpu_features(ARM) == ("dotprod", "i8mm", "neon")


def test_the_processor_is_named() -> None:
    assert hardware.parse_cpu_model(X86) == "Some Xeon"
    assert "0xd49" in hardware.parse_cpu_model(ARM)


@pytest.mark.parametrize(
    ("text", "cores"), [("200000 100000", 2), ("50000 100000", 1), ("max 100000", None), ("", None)]
)
def test_a_cpu_quota_counts_in_whole_cores(text: str, cores: int | None) -> None:
    assert hardware.parse_cpu_quota(text) == cores


def test_memory_is_what_the_container_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "/proc/meminfo": "MemTotal: 1000 kB\nMemAvailable: 900 kB\n",
        "/sys/fs/cgroup/memory.max": "512000\n",
        "/sys/fs/cgroup/memory.current": "112000\n",
    }
    monkeypatch.setattr(hardware, "_read_text", lambda path: files.get(path, ""))
    assert hardware.read_memory() == (512_000, 400_000)


def test_without_a_limit_memory_is_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"/proc/meminfo": "MemTotal: 1000 kB\nMemAvailable: 900 kB\n", "/sys/fs/cgroup/memory.max": "max\n"}
    monkeypatch.setattr(hardware, "_read_text", lambda path: files.get(path, ""))
    assert hardware.read_memory() == (1_024_000, 921_600)


def test_hidden_gpus_are_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert hardware.find_gpus() == GpuHost()


class Driver:
    """`pynvml` with two GPUs, or with an error."""

    NVMLError = pynvml.NVMLError

    def __init__(self, fails: bool = False) -> None:
        self.fails, self.closed = fails, 0

    def nvmlDeviceGetCount(self) -> int:
        if self.fails:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, gpu: int) -> str:
        return f"GPU-{gpu}"

    def nvmlDeviceGetName(self, gpu: int) -> str:
        return "NVIDIA H200"

    def nvmlDeviceGetMemoryInfo(self, gpu: int) -> SimpleNamespace:
        return SimpleNamespace(total=143771 << 20)

    def nvmlSystemGetDriverVersion(self) -> str:
        return "570.86"

    def nvmlShutdown(self) -> None:
        self.closed += 1


@pytest.mark.parametrize("fails", [False, True])
def test_the_driver_lists_the_gpus(monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    driver = Driver(fails)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(hardware, "read_gpus", lambda: read_gpus({}, lambda: driver))
    found = hardware.read_host()
    assert driver.closed == 1
    if fails:
        assert (found.device, found.gpus, found.driver) == ("cpu", (), "")
        assert found.gpu_problems == ("the NVIDIA driver does not list its GPUs: GPU is lost",)
    else:
        assert (found.cuda, found.device, found.driver) == (True, "cuda", "570.86")
        assert found.gpus[1] == hardware.Gpu(1, "NVIDIA H200", 143771 << 20, "GPU-1")


def test_this_host_has_plausible_facts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ENGINEBAY_HOME", str(tmp_path / "not" / "there"))
    found = hardware.read_host()
    assert 1 <= found.usable_cores <= found.cores
    assert 0 < found.available_bytes <= found.memory_bytes
    assert found.disk_free_bytes > 0


def test_a_python_that_makes_no_environments_is_broken_and_a_missing_gpu_is_not() -> None:
    facts = hardware.HostFacts("Linux", "x86_64", "c", (), 2, 2, 8, 8, (), "", "/h", 1, "3.12", pip=False)
    states = {one.what: one.state for one in check_host(facts)}
    assert states["pip"] is FindingState.BROKEN
    assert states["GPU"] is FindingState.ABSENT
    assert states["disk"] is FindingState.ABSENT


def test_a_lost_gpu_is_still_listed_once_it_is_kept() -> None:
    gpus = [hardware.Gpu(index, "g", 1, f"GPU-{index}") for index in range(3)]
    assert hardware.add_kept_gpus(gpus[1:], gpus) == tuple(gpus)
    assert hardware.add_kept_gpus(gpus, gpus) == tuple(gpus)
    renumbered = [hardware.Gpu(0, "g", 1, "GPU-1"), hardware.Gpu(1, "g", 1, "GPU-2")]
    assert hardware.add_kept_gpus(renumbered, gpus) == tuple(renumbered), "a number means one GPU"
