"""Parsing of system files and commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from enginebay.fleet.diagnostics import FindingState, check_host
from enginebay.util import hardware

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


def test_gpus_from_the_drivers_command() -> None:
    gpus, driver = hardware.parse_nvidia_smi("0, NVIDIA H200, 143771, 570.86\n1, NVIDIA H200, 143771, 570.86\n")
    assert [gpu.index for gpu in gpus] == [0, 1]
    assert gpus[0].memory_bytes == 143771 * 1024**2
    assert driver == "570.86"


def test_an_nvidia_smi_error_means_no_gpu() -> None:
    assert hardware.parse_nvidia_smi("No devices were found\n") == ((), "")


def test_hidden_gpus_are_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert hardware.read_gpus() == ((), "")


def test_a_driver_command_gives_the_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    command = tmp_path / "nvidia-smi"
    command.write_text("#!/bin/sh\necho '0, Test GPU, 1024, 1.2'\n")
    command.chmod(0o755)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    found = hardware.read_host()
    assert (found.cuda, found.device, found.gpus[0].name) == (True, "cuda", "Test GPU")


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
