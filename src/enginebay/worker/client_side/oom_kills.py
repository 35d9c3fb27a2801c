"""The cgroup's OOM kill count, which distinguishes an OOM kill from any other SIGKILL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath


def read_oom_kills(root: Path = Path("/")) -> int | None:
    """Return the number of OOM kills in this process's cgroup; None if the kernel does not report it."""
    for folder, name in _list_counter_files(root):
        try:
            lines = (folder / name).read_text(encoding="ascii", errors="replace").splitlines()
        except OSError:
            continue
        for line in lines:
            key, _, value = line.partition(" ")
            if key == "oom_kill" and value.strip().isdigit():
                return int(value)
    return None


def _list_counter_files(root: Path) -> Iterator[tuple[Path, str]]:
    """Yield files that may hold the count: of the process's own cgroup, then of the root (a container's own)."""
    mounted = root / "sys/fs/cgroup"
    roots = ((mounted / "memory", "memory.oom_control"), (mounted, "memory.events"))
    try:
        groups = (root / "proc/self/cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        groups = []
    for line in groups:
        number, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        inner = PurePosixPath("/", group).relative_to("/")
        if "memory" in controllers.split(","):
            yield roots[0][0] / inner, roots[0][1]
        elif number == "0" and not controllers:
            yield roots[1][0] / inner, roots[1][1]
    yield from reversed(roots)
