"""CPU and memory of the machine and of process trees."""

from __future__ import annotations

import time
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path

from enginebay.meters.devices import proc_files
from enginebay.meters.sample import Absent, Sample

HOST = "host"
TREE_PREFIX = "tree:"
_MIN_INTERVAL_S = 0.05  # the OS counts in steps of 10 ms, so shares over less are meaningless


class HostMeter:
    """CPU time and memory of the machine (device "host") and of process trees ("tree:NAME")."""

    name = "host"

    def __init__(self, cores: int, trees: Mapping[str, int], proc: Path = proc_files.PROC) -> None:
        self.cores = cores
        self._proc = proc
        self._trees = {name: _ProcessTree(pid, proc) for name, pid in trees.items()}
        self._previous: dict[str, tuple[float, float]] = {}  # by device: time and CPU time of the last reading

    def read(self) -> list[Sample]:
        samples = []
        roots = {tree.root for tree in self._trees.values()}
        now_s, machine = time.monotonic(), proc_files.read_machine_usage(self._proc)
        if machine is not None:
            samples.append(self._build_sample(now_s, HOST, machine.busy_s, machine.memory_bytes, None))
        for name, tree in self._trees.items():
            now_s = time.monotonic()
            cpu_s, resident, peak = tree.read(roots - {tree.root})
            samples.append(self._build_sample(now_s, TREE_PREFIX + name, cpu_s, resident, peak))
        return samples

    def close(self) -> None:
        pass

    def _build_sample(self, now_s: float, device: str, cpu_s: float, memory: int | None, peak: int | None) -> Sample:
        before_s, before_cpu_s = self._previous.setdefault(device, (now_s, cpu_s))
        share = None
        if now_s - before_s >= _MIN_INTERVAL_S:
            share = min(max((cpu_s - before_cpu_s) / ((now_s - before_s) * self.cores), 0.0), 1.0)
            self._previous[device] = (now_s, cpu_s)
        return Sample(now_s, device, utilisation=share, memory_bytes=memory, cpu_s=cpu_s, peak_memory_bytes=peak)


def open_host_meter(
    trees: Mapping[str, int] | None = None, proc: Path = proc_files.PROC
) -> tuple[HostMeter | None, list[Absent]]:
    """Open a meter of this machine that follows these process trees."""
    machine = proc_files.read_machine_usage(proc)
    if machine is None or machine.cores == 0:
        return None, [Absent("host", f"no CPU times in {proc}/stat")]
    return HostMeter(machine.cores, trees or {}, proc), []


class _ProcessTree:
    """A process and its descendants. A member stays one until it ends, even if its parent is gone."""

    def __init__(self, root: int, proc: Path) -> None:
        self.root = root
        self._proc = proc
        self._start_times: dict[int, int] = {}  # by pid, of members and the root
        self._cpu_s = 0.0

    def read(self, others: AbstractSet[int]) -> tuple[float, int, int]:
        """Return CPU time, which never falls, resident memory and its peak; shared pages count once per process.

        A descendant that is the root of another tree belongs to that tree.
        """
        members = self._find_members(others)
        # Keep the root's, so that a later process with the same pid is not mistaken for it.
        root_started = {self.root: self._start_times[self.root]} if self.root in self._start_times else {}
        self._start_times = root_started | {pid: process.started for pid, process in members.items()}
        # The CPU time of an unreaped member is lost; hold the sum until the others catch up.
        self._cpu_s = max(self._cpu_s, sum(process.cpu_s for process in members.values()))
        resident = sum(process.resident_bytes for process in members.values())
        return self._cpu_s, resident, sum(process.peak_bytes for process in members.values())

    def _find_members(self, others: AbstractSet[int]) -> dict[int, proc_files.ProcessUsage]:
        members: dict[int, proc_files.ProcessUsage] = {}
        waiting = [self.root, *self._start_times]
        while waiting:
            pid = waiting.pop()
            if pid in members or pid in others:
                continue
            process = proc_files.read_process_usage(pid, self._proc)
            if process is None or self._start_times.get(pid, process.started) != process.started:
                continue
            members[pid] = process
            waiting.extend(proc_files.list_children(pid, self._proc))
        return members
