"""CPU time of a process tree by kind of process."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def read_cpu_times(root: int) -> dict[str, float]:
    """Return CPU seconds by kind: root, worker, engine, or the name of any other process."""
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(folder.name)] = int(fields[1])
        used[int(folder.name)] = (int(fields[11]) + int(fields[12])) / _TICKS
    totals: dict[str, float] = {}
    for pid in used:
        ancestor = pid
        while ancestor not in (root, 0) and ancestor in parents:
            ancestor = parents[ancestor]
        if ancestor == root:
            kind = _classify_process(pid, pid == root)
            totals[kind] = totals.get(kind, 0.0) + used[pid]
    return totals


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
