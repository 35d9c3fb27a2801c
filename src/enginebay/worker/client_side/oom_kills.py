"""How often the system has killed for want of memory: what tells such a death from any other SIGKILL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath


def read_oom_kills(root: Path = Path("/")) -> int | None:
    """How many processes of this one's control group were killed for want of memory; None where that is not told."""
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
    """Files that may hold the count: of the process's own group, then of the top, which in a container is its own."""
    mounted = root / "sys/fs/cgroup"
    places = ((mounted / "memory", "memory.oom_control"), (mounted, "memory.events"))
    try:
        groups = (root / "proc/self/cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        groups = []
    for line in groups:
        number, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        inner = PurePosixPath("/", group).relative_to("/")
        if "memory" in controllers.split(","):
            yield places[0][0] / inner, places[0][1]
        elif number == "0" and not controllers:
            yield places[1][0] / inner, places[1][1]
    yield from reversed(places)
