"""Main memory this process may still allocate: free system memory, limited by its control groups."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

_UNKNOWN_BYTES = 8 * 1024**3


class _CgroupFiles(NamedTuple):
    """File names of one control group version."""

    limit: str
    used: str
    reclaimable: str  # key in memory.stat: file pages that are reclaimed before an allocation fails


_V1 = _CgroupFiles("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = _CgroupFiles("memory.max", "memory.current", "inactive_file")


def get_free_bytes(root: Path = Path("/")) -> int:
    """Return the memory that can be allocated without swapping or an OOM kill; all physical memory if unknown."""
    known = [_read_available_bytes(root), *_iter_cgroup_headrooms(root)]
    return min((headroom for headroom in known if headroom is not None), default=_read_physical_bytes())


def compute_headroom(limit: str, used: str, reclaimable: int) -> int | None:
    """Return the bytes left in a group, or None if it has no limit. Version 1 reports "no limit" as a huge number."""
    try:
        return max(0, int(limit) - max(0, int(used) - reclaimable))
    except ValueError:  # "max"
        return None


def _iter_cgroup_headrooms(root: Path) -> Iterator[int | None]:
    """Yield the headroom of this process's group and of each ancestor: all their limits apply."""
    mounted = root / "sys/fs/cgroup"
    for line in (_read_text(root / "proc/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if "memory" in controllers.split(","):
            yield from _iter_ancestor_headrooms(mounted / "memory", group, _V1)
        elif number == "0" and not controllers:
            yield from _iter_ancestor_headrooms(mounted, group, _V2)


def _iter_ancestor_headrooms(top: Path, group: str, files: _CgroupFiles) -> Iterator[int | None]:
    """Yield the headroom of a group and its ancestors, skipping missing folders.

    In a container the path may be the host's, with only the top visible.
    """
    inner = PurePosixPath("/", group).relative_to("/")
    for folder in (top / inner, *(top / above for above in inner.parents)):
        limit, used = _read_text(folder / files.limit), _read_text(folder / files.used)
        if limit is not None and used is not None:
            yield compute_headroom(limit, used, _read_stat(folder / "memory.stat", files.reclaimable))


def _read_stat(path: Path, name: str) -> int:
    pairs = (line.split() for line in (_read_text(path) or "").splitlines())
    return next((int(pair[1]) for pair in pairs if len(pair) == 2 and pair[0] == name and pair[1].isdigit()), 0)


def _read_available_bytes(root: Path) -> int | None:
    lines = (_read_text(root / "proc/meminfo") or "").splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _read_physical_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return _UNKNOWN_BYTES


def _read_text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
