"""Resident memory and open files of a server's processes over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

import psutil


def is_worker(process: psutil.Process) -> bool:
    try:
        return any(word.endswith("worker/bootstrap.py") for word in process.cmdline())
    except psutil.NoSuchProcess:  # just exited
        return False


@dataclass
class WatchedProcess:
    """One process and its memory samples."""

    name: str
    process: psutil.Process
    resident: list[tuple[float, int]] = field(default_factory=list)  # seconds from the start, bytes

    def sample(self, now_s: float) -> None:
        self.resident.append((now_s, int(self.process.memory_info().rss)))

    def read_cpu_s(self) -> float:
        spent = self.process.cpu_times()
        return float(spent.user + spent.system)

    def count_files(self) -> int:
        return int(self.process.num_fds())


def watch_processes(server_pid: int) -> list[WatchedProcess]:
    """Watch the server and its workers."""
    server = psutil.Process(server_pid)
    workers = [child for child in server.children(recursive=True) if is_worker(child)]
    return [WatchedProcess("server", server), *(WatchedProcess("worker", worker) for worker in workers)]


def compute_first_and_last(samples: Sequence[tuple[float, int]], warm_s: float) -> tuple[float, float]:
    """Return the medians of the first and the last fifth of the samples after `warm_s`."""
    warm = [value for when, value in samples if when >= warm_s]
    fifth = max(1, len(warm) // 5)
    return median(warm[:fifth]), median(warm[-fifth:])
