"""The host a run was measured on."""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from enginebay import __version__

_UUID_MARK = " GPU-"


def list_gpu_products(environment: Mapping[str, Any]) -> tuple[str, ...]:
    """What they are, one name for each GPU; empty where it was none, or nobody knows."""
    return tuple(sorted(str(label).partition(_UUID_MARK)[0] for label in environment.get("gpu") or ()))


def has_other_gpus(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether two runs had GPUs of different kinds. How many of them, or none at all, is a matter of the engine's settings."""
    x, y = set(list_gpu_products(a)), set(list_gpu_products(b))
    return bool(x and y) and x != y


def describe_environment(gpus: Sequence[str] = (), elsewhere: str = "") -> dict[str, Any]:
    """What of the server's host has a bearing on the numbers; `gpus` as the meters name them.

    `elsewhere`: the name of another host than this one. Of that one nothing else is known, and this one is the client's.
    """
    here = {
        "host": socket.gethostname(),
        "cpu": _describe_cpu(),
        "cores": _count_cores(),
        "memory_bytes": _read_memory_bytes(),
        "python": platform.python_version(),
        "os": platform.platform(),
    }
    told: dict[str, Any] = {"host": elsewhere, "client": here} if elsewhere else here
    return {**told, "gpu": list(gpus), "enginebay": __version__}


def _count_cores() -> int | None:
    """Those that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        return os.cpu_count()


def _describe_cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    named = facts.get("model name") or facts.get("Model")
    part = f"{platform.machine()} implementer {facts.get('CPU implementer')} part {facts.get('CPU part')}"
    return named or (part if "CPU part" in facts else platform.processor() or platform.machine())


def _read_memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return None
