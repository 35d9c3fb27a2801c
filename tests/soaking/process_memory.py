"""What the processes of a server hold, over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

import psutil


def is_worker(process: psutil.Process) -> bool:
    try:
        return any(word.endswith("worker/bootstrap.py") for word in process.cmdline())
    except psutil.NoSuchProcess:  # it has just ended
        return False


@dataclass
class WatchedProcess:
    """One process and what has been seen of it."""

    name: str
    process: psutil.Process
    resident: list[tuple[float, int]] = field(default_factory=list)  # when, in seconds from the start, and bytes

    def sample(self, now_s: float) -> None:
        self.resident.append((now_s, int(self.process.memory_info().rss)))

    def read_cpu_s(self) -> float:
        spent = self.process.cpu_times()
        return float(spent.user + spent.system)

    def count_files(self) -> int:
        return int(self.process.num_fds())


def watch_processes(server_pid: int) -> list[WatchedProcess]:
    """The server and its workers."""
    server = psutil.Process(server_pid)
    workers = [one for one in server.children(recursive=True) if is_worker(one)]
    return [WatchedProcess("server", server), *(WatchedProcess("worker", one) for one in workers)]


def compute_first_and_last(samples: Sequence[tuple[float, int]], warm_s: float) -> tuple[float, float]:
    """Medians of the first and the last fifth of what was seen once it was warm."""
    warm = [value for when, value in samples if when >= warm_s]
    fifth = max(1, len(warm) // 5)
    return median(warm[:fifth]), median(warm[-fifth:])
