"""Seconds of processor time that a process and all below it have used, by what they are."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def read_cpu_times(root: int) -> dict[str, float]:
    """Seconds by kind of process: server, worker, engine, and whatever else there is."""
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            fields = (place / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(place.name)] = int(fields[1])
        used[int(place.name)] = (int(fields[11]) + int(fields[12])) / _TICKS
    found: dict[str, float] = {}
    for pid in used:
        above = pid
        while above not in (root, 0) and above in parents:
            above = parents[above]
        if above == root:
            kind = _classify_process(pid, pid == root)
            found[kind] = found.get(kind, 0.0) + used[pid]
    return found


def _classify_process(pid: int, is_root: bool) -> str:
    try:
        name = Path(f"/proc/{pid}/comm").read_text().strip()
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return "gone"
    if "Engine" in name or b"EngineCore" in command:
        return "engine"
    if b"worker/bootstrap.py" in command:
        return "worker"
    return "root" if is_root else name
