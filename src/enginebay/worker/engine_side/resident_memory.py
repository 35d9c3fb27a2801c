"""Resident memory of a process tree."""

from __future__ import annotations

import os
from pathlib import Path


def read_resident_bytes(pid: int | None = None) -> int:
    """Return the resident memory of a process and its descendants; 0 if the system does not report it."""
    root = os.getpid() if pid is None else pid
    return sum(map(_read_process_bytes, list_process_tree(root)))


def list_process_tree(root: int) -> list[int]:
    """Return the process and its descendants, parents first."""
    pids = [root]
    for pid in pids:
        try:
            tasks = list(Path(f"/proc/{pid}/task").iterdir())
        except OSError:
            continue
        for task in tasks:
            try:
                pids.extend(int(child) for child in (task / "children").read_text().split())
            except OSError:
                continue
    return pids


def _read_process_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0
