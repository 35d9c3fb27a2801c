"""The host a run was measured on."""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from enginebay import __version__


def environment(gpus: Sequence[str] = (), elsewhere: str = "") -> dict[str, Any]:
    """What of the server's host has a bearing on the numbers; `gpus` as the meters name them.

    `elsewhere`: the name of another host than this one. Of that one nothing else is known, and this one is the client's.
    """
    here = {
        "host": socket.gethostname(),
        "cpu": _cpu(),
        "cores": _cores(),
        "memory_bytes": _memory(),
        "python": platform.python_version(),
        "os": platform.platform(),
    }
    told: dict[str, Any] = {"host": elsewhere, "client": here} if elsewhere else here
    return {**told, "gpu": list(gpus), "enginebay": __version__}


def _cores() -> int | None:
    """Those that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        return os.cpu_count()


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    named = facts.get("model name") or facts.get("Model")
    part = f"{platform.machine()} implementer {facts.get('CPU implementer')} part {facts.get('CPU part')}"
    return named or (part if "CPU part" in facts else platform.processor() or platform.machine())


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return None
