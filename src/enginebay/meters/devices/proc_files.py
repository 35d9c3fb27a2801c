"""CPU time and memory from /proc; None or empty if unavailable."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class MachineUsage:
    """Totals over all cores of the machine."""

    busy_s: float  # excludes idle and I/O wait; includes steal time
    cores: int
    memory_bytes: int | None  # in use, without reclaimable memory


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """One process. The time of its children is included once it has reaped them."""

    started: int  # start time, which distinguishes a reused pid
    cpu_s: float
    resident_bytes: int
    peak_bytes: int


def read_machine_usage(proc: Path = PROC) -> MachineUsage | None:
    try:
        lines = (proc / "stat").read_text().splitlines()
        ticks = [int(field) for field in lines[0].split()[1:9]]
    except (OSError, ValueError, IndexError):
        return None
    if len(ticks) < 8 or not lines[0].startswith("cpu "):
        return None
    user, nice, system, _idle, _waiting, interrupts, soft_interrupts, stolen = ticks
    busy = user + nice + system + interrupts + soft_interrupts + stolen
    cores = sum(1 for line in lines if line.startswith("cpu") and line[3:4].isdigit())
    return MachineUsage(busy / _get_tick_rate(), cores, _read_memory_in_use(proc))


def read_process_usage(pid: int, proc: Path = PROC) -> ProcessUsage | None:
    """Return the usage of a process; None if it has ended."""
    try:
        # The second field is the program's name in parentheses and may contain anything.
        fields = (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
        status = (proc / str(pid) / "status").read_text()
        ticks = sum(int(field) for field in fields[11:15])
        return ProcessUsage(
            int(fields[19]), ticks / _get_tick_rate(), _parse_kib(status, "VmRSS"), _parse_kib(status, "VmHWM")
        )
    except (OSError, ValueError, IndexError):
        return None


def list_children(pid: int, proc: Path = PROC) -> list[int]:
    """Return the children of all threads of a process."""
    children: list[int] = []
    try:
        tasks = list((proc / str(pid) / "task").iterdir())
    except OSError:
        return children
    for task in tasks:
        try:
            children.extend(int(child) for child in (task / "children").read_text().split())
        except (OSError, ValueError):
            continue
    return children


def list_process_tree(root: int, proc: Path = PROC) -> list[int]:
    """Return the process and its descendants, parents first."""
    pids = [root]
    for pid in pids:  # grows on the way
        pids += list_children(pid, proc)
    return pids


def read_resident_bytes(pid: int | str = "self", proc: Path = PROC) -> int:
    """Return the resident memory of one process; 0 if it has ended or the system does not report it."""
    try:
        return int((proc / str(pid) / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


def read_boot_id(proc: Path = PROC) -> str | None:
    """Return an id of this boot, the same in all containers of the machine."""
    try:
        return (proc / "sys/kernel/random/boot_id").read_text().strip() or None
    except OSError:
        return None


def _read_memory_in_use(proc: Path) -> int | None:
    try:
        text = (proc / "meminfo").read_text()
    except OSError:
        return None
    total, available = _parse_kib(text, "MemTotal"), _parse_kib(text, "MemAvailable")
    return total - available if total and available else None


def _parse_kib(text: str, key: str) -> int:
    """Return a size from `Key:   123 kB` lines in bytes; 0 if missing, as for a process that is ending."""
    for line in text.splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    return 0


def _get_tick_rate() -> int:
    return os.sysconf("SC_CLK_TCK")
