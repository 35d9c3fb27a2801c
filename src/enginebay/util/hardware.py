"""Host hardware: processor, memory, GPUs, disk and Python. Imports no engine library."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from enginebay.util.gpus.declared_gpus import VARIABLE as DECLARED_GPUS
from enginebay.util.gpus.declared_gpus import read_declared_gpus
from enginebay.util.gpus.gpu_discovery import Gpu, GpuHost, read_gpus
from enginebay.util.paths import home_dir

__all__ = ["Gpu", "GpuHost", "HostFacts", "find_gpus", "keep_gpus", "read_host", "read_memory", "release_free_memory"]

# CPU features that decide which kernels a library picks, by their names in /proc/cpuinfo on x86 and ARM.
_FEATURES = {
    "avx": "avx", "avx2": "avx2", "avx512f": "avx512", "amx_tile": "amx", "avx512_bf16": "bf16", "avx_vnni": "vnni",
    "f16c": "f16c", "asimd": "neon", "asimddp": "dotprod", "asimdhp": "fp16", "i8mm": "i8mm", "bf16": "bf16",
    "sve": "sve", "sve2": "sve2",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class HostFacts:
    """Facts about a host as plain data, so that decisions can be tested without one."""

    system: str
    machine: str
    cpu: str
    features: tuple[str, ...]
    cores: int  # of the host
    usable_cores: int  # after affinity and CPU quota
    memory_bytes: int  # the smaller of the host's and the container's
    available_bytes: int
    gpus: tuple[Gpu, ...]
    driver: str  # NVIDIA driver version, or empty
    home: str
    disk_free_bytes: int
    python: str
    pip: bool  # whether a new venv can have pip
    gpu_links: tuple[tuple[int, int], ...] = ()  # pairs of GPUs with a fast link
    gpu_problems: tuple[str, ...] = ()  # GPUs that are there and cannot be used

    @property
    def cuda(self) -> bool:
        return bool(self.gpus)

    @property
    def device(self) -> str:
        return "cuda" if self.cuda else "cpu"


_kept_gpus: tuple[Gpu, ...] = ()


def keep_gpus(gpus: Sequence[Gpu]) -> None:
    """List these from now on, also while the driver has lost them: a running fleet plans with them, and waits for their return."""
    global _kept_gpus
    _kept_gpus = tuple(gpus)


def add_kept_gpus(found: Sequence[Gpu], kept: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """Return the GPUs that were found and those that are lost, in order. Pure."""
    indexes, devices = {gpu.index for gpu in found}, {gpu.device for gpu in found}
    lost = (gpu for gpu in kept if gpu.index not in indexes and gpu.device not in devices)
    return tuple(sorted((*found, *lost), key=lambda gpu: gpu.index))


def read_host() -> HostFacts:
    """Read the facts of this host."""
    found = find_gpus()
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
        gpus=add_kept_gpus(found.gpus, _kept_gpus) if _kept_gpus else found.gpus,
        driver=found.driver,
        home=str(home_dir()),
        disk_free_bytes=_read_disk_free(home_dir()),
        python=platform.python_version(),
        pip=importlib.util.find_spec("ensurepip") is not None,
        gpu_links=found.links,
        gpu_problems=found.problems,
    )


def find_gpus() -> GpuHost:
    """Return the GPUs of this host, or those that a test declares."""
    declared = os.environ.get(DECLARED_GPUS)
    return read_declared_gpus(declared) if declared else read_gpus()


def parse_cpu_model(info: str) -> str:
    fields = _parse_fields(info)
    named = fields.get("model name") or fields.get("Model") or platform.processor() or platform.machine()
    part = fields.get("CPU part")
    return f"{named} (implementer {fields.get('CPU implementer', '?')}, part {part})" if part else named


def parse_cpu_features(info: str) -> tuple[str, ...]:
    flags = _parse_fields(info).get("flags") or _parse_fields(info).get("Features") or ""
    features = {_FEATURES[flag] for flag in flags.split() if flag in _FEATURES}
    if not flags and platform.machine() == "arm64":
        features.add("neon")  # all Apple processors have it
    return tuple(sorted(features))


def _parse_fields(info: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    for line in info.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            fields.setdefault(name.strip(), value.strip())
    return fields


def count_usable_cores() -> int:
    """Return the number of cores left by CPU affinity and the container's quota."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = parse_cpu_quota(_read_text("/sys/fs/cgroup/cpu.max"))
    return min(allowed, quota) if quota else allowed


def parse_cpu_quota(text: str) -> int | None:
    """Return the whole cores of a cgroup's `cpu.max` ("200000 100000"), at least one, or None without a quota."""
    parts = text.split()
    if len(parts) != 2 or not parts[0].isdigit():
        return None
    return max(1, int(parts[0]) // int(parts[1]))


def read_memory() -> tuple[int, int]:
    """Return total and available bytes, capped by the container's limit."""
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
            available = min(available, max(0, total - int(used or 0) + int(cached)))  # the kernel reclaims file pages
    return total, available


def _parse_kib(value: str | None) -> int:
    return int(value.split()[0]) * 1024 if value else 0


def _read_sysconf_memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 0


def _read_disk_free(path: Path) -> int:
    while not path.exists() and path != path.parent:
        path = path.parent
    return shutil.disk_usage(path).free


def _read_text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def release_free_memory() -> None:
    """Give freed memory back to the system, which glibc would keep. Call it in a thread: it takes milliseconds."""
    trim = _find_malloc_trim()
    if trim is not None:
        trim(0)


@lru_cache(maxsize=1)
def _find_malloc_trim() -> Any:
    import ctypes

    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):  # not glibc
        return None
