"""How much memory this worker really holds."""

from __future__ import annotations

import os
from pathlib import Path


def read_resident_bytes(pid: int | None = None) -> int:
    """Resident memory of a process and all its descendants; 0 where the system does not tell."""
    root = os.getpid() if pid is None else pid
    return sum(_read_process_bytes(one) for one in list_process_tree(root))


def list_process_tree(root: int) -> list[int]:
    """The process and its descendants, parents first."""
    found = [root]
    for one in found:
        try:
            tasks = list(Path(f"/proc/{one}/task").iterdir())
        except OSError:
            continue
        for task in tasks:
            try:
                found.extend(int(child) for child in (task / "children").read_text().split())
            except OSError:
                continue
    return found


def _read_process_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0
