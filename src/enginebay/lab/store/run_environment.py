"""Describe the host a run was measured on."""

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
    """Return the product name of each GPU; empty if there was none, or it is unknown."""
    return tuple(sorted(str(label).partition(_UUID_MARK)[0] for label in environment.get("gpu") or ()))


def has_other_gpus(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Return whether two runs used different GPU products. How many GPUs, if any, is up to the engine's settings."""
    a_products, b_products = set(list_gpu_products(a)), set(list_gpu_products(b))
    return bool(a_products and b_products) and a_products != b_products


def describe_environment(gpus: Sequence[str] = (), remote_host: str = "") -> dict[str, Any]:
    """Describe what of the server's host affects the figures; `gpus` as the meters name them.

    `remote_host`: the server's host if it is another one. Then only its name is known, and this host is the client's.
    """
    this_host = {
        "host": socket.gethostname(),
        "cpu": _describe_cpu(),
        "cores": _count_cores(),
        "memory_bytes": _read_memory_bytes(),
        "python": platform.python_version(),
        "os": platform.platform(),
    }
    host: dict[str, Any] = {"host": remote_host, "client": this_host} if remote_host else this_host
    return {**host, "gpu": list(gpus), "enginebay": __version__}


def _count_cores() -> int | None:
    """Return the number of cores this process may use."""
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
