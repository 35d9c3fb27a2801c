"""What this host has: processor, memory, GPUs, disk, Python. Reads, never imports an engine's library."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from enginebay.util.paths import home_dir

# What decides which kernels a library picks, by the names the system uses for them on x86 and ARM.
_FEATURES = {
    "avx": "avx", "avx2": "avx2", "avx512f": "avx512", "amx_tile": "amx", "avx512_bf16": "bf16", "avx_vnni": "vnni",
    "f16c": "f16c", "asimd": "neon", "asimddp": "dotprod", "asimdhp": "fp16", "i8mm": "i8mm", "bf16": "bf16",
    "sve": "sve", "sve2": "sve2",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Gpu:
    index: int
    name: str
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class HostFacts:
    """Plain facts, so that decisions over them need no host."""

    system: str
    machine: str
    cpu: str
    features: tuple[str, ...]
    cores: int  # that the host has
    usable_cores: int  # that this process may use
    memory_bytes: int  # what this process may use: the smaller of the host's and the container's
    available_bytes: int
    gpus: tuple[Gpu, ...]
    driver: str  # NVIDIA's, empty without
    home: str
    disk_free_bytes: int
    python: str
    pip: bool  # a new venv can get pip

    @property
    def cuda(self) -> bool:
        return bool(self.gpus)

    @property
    def device(self) -> str:
        return "cuda" if self.cuda else "cpu"


def read_host() -> HostFacts:
    gpus, driver = read_gpus()
    info = _read_text("/proc/cpuinfo")
    total, available = read_memory()
    return HostFacts(
        system=f"{platform.system()} {platform.release()}",
        machine=platform.machine(),
        cpu=parse_cpu_model(info),
        features=parse_cpu_features(info),
        cores=os.cpu_count() or 1,
        usable_cores=count_usable_cores(),
        memory_bytes=total,
        available_bytes=available,
        gpus=gpus,
        driver=driver,
        home=str(home_dir()),
        disk_free_bytes=_read_disk_free(home_dir()),
        python=platform.python_version(),
        pip=importlib.util.find_spec("ensurepip") is not None,
    )


def parse_cpu_model(info: str) -> str:
    fields = _parse_fields(info)
    named = fields.get("model name") or fields.get("Model") or platform.processor() or platform.machine()
    part = fields.get("CPU part")
    return f"{named} (implementer {fields.get('CPU implementer', '?')}, part {part})" if part else named


def parse_cpu_features(info: str) -> tuple[str, ...]:
    flags = _parse_fields(info).get("flags") or _parse_fields(info).get("Features") or ""
    found = {_FEATURES[flag] for flag in flags.split() if flag in _FEATURES}
    if not flags and platform.machine() == "arm64":
        found.add("neon")  # every Apple processor has it
    return tuple(sorted(found))


def _parse_fields(info: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    for line in info.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            fields.setdefault(name.strip(), value.strip())
    return fields


def count_usable_cores() -> int:
    """Cores after affinity and the container's CPU quota."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = parse_cpu_quota(_read_text("/sys/fs/cgroup/cpu.max"))
    return min(allowed, quota) if quota else allowed


def parse_cpu_quota(text: str) -> int | None:
    """Whole cores of a cgroup's `cpu.max` ("200000 100000"), at least one."""
    parts = text.split()
    if len(parts) != 2 or not parts[0].isdigit():
        return None
    return max(1, int(parts[0]) // int(parts[1]))


def read_memory() -> tuple[int, int]:
    """Total and available bytes, the container's limit respected."""
    info = _parse_fields(_read_text("/proc/meminfo"))
    total, available = _parse_kib(info.get("MemTotal")), _parse_kib(info.get("MemAvailable"))
    if not total:
        total = available = _read_sysconf_memory()
    for folder, limit_name, usage_name in (
        ("/sys/fs/cgroup", "memory.max", "memory.current"),
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        limit, used = _read_text(f"{folder}/{limit_name}").strip(), _read_text(f"{folder}/{usage_name}").strip()
        if limit.isdigit() and int(limit) < total:
            total = int(limit)
            cached = _parse_fields(_read_text(f"{folder}/memory.stat").replace(" ", ":")).get("inactive_file", "0")
            available = min(available, max(0, total - int(used or 0) + int(cached)))  # pages of files are given back
    return total, available


def _parse_kib(value: str | None) -> int:
    return int(value.split()[0]) * 1024 if value else 0


def _read_sysconf_memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 0


def read_gpus() -> tuple[tuple[Gpu, ...], str]:
    """Visible NVIDIA GPUs and the driver's version; none where CUDA_VISIBLE_DEVICES hides them all."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in ("", "-1"):
        return (), ""
    command = shutil.which("nvidia-smi")
    if command is None:
        return _read_gpus_from_nvml()
    query = [command, "--query-gpu=index,name,memory.total,driver_version", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, check=False, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return _read_gpus_from_nvml()
    return parse_nvidia_smi(done.stdout) if done.returncode == 0 else ((), "")


def parse_nvidia_smi(text: str) -> tuple[tuple[Gpu, ...], str]:
    gpus, driver = [], ""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != 4 or not cells[0].isdigit():
            continue
        memory_mib = int(cells[2]) if cells[2].isdigit() else 0
        gpus.append(Gpu(int(cells[0]), cells[1], memory_mib * 1024 * 1024))
        driver = cells[3]
    return tuple(gpus), driver


def _read_gpus_from_nvml() -> tuple[tuple[Gpu, ...], str]:
    """For containers that have the driver's library and not its command."""
    if importlib.util.find_spec("pynvml") is None:
        return (), ""
    import pynvml  # type: ignore[import-not-found, import-untyped, unused-ignore]

    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        gpus = tuple(
            Gpu(index, str(pynvml.nvmlDeviceGetName(handle)), int(pynvml.nvmlDeviceGetMemoryInfo(handle).total))
            for index, handle in enumerate(handles)
        )
        return gpus, str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        return (), ""


def _read_disk_free(path: Path) -> int:
    while not path.exists() and path != path.parent:
        path = path.parent
    return shutil.disk_usage(path).free


def _read_text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
