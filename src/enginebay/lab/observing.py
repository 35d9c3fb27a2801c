"""The machine while a run lasts: its meters are read throughout, and asked afterwards what each window took."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from enginebay.lab.client.order import Target
from enginebay.lab.remote_meter import RemoteMeter, open_remote
from enginebay.meters.baseline import baseline
from enginebay.meters.conditions import conditions
from enginebay.meters.energy import Energy, measure, together
from enginebay.meters.find import find_meters, gpu_labels
from enginebay.meters.host import HOST, HostMeter, open_host
from enginebay.meters.own_gpus import family_of, gpus_of, uses_cuda
from enginebay.meters.problem import Problem
from enginebay.meters.sample import Absent, Meter, Sample, devices
from enginebay.meters.sampler import Sampler
from enginebay.meters.shares import others_share, peak_memory_bytes

_KINDS = {"gpu": "gpu:", "cpu": "cpu:"}  # what is added up under one name
CLIENT, SERVER = "client", "server"
INTERVAL_S = 0.1  # between two readings
_HERE = ("127.0.0.1", "localhost", "::1")


@dataclass(slots=True)
class Observation:
    """What the meters said."""

    samples: list[Sample] = field(default_factory=list)
    absent: list[Absent] = field(default_factory=list)
    cores: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)  # of GPUs: the product and its UUID
    reads_energy: bool = False
    elsewhere: str = ""  # the server's host, where it is not this one
    clock_error_s: float | None = None  # of meters on another clock: so far off their times may be
    sampler: Sampler | None = None  # while it lasts

    def window_soon(self) -> None:
        """A window begins in a moment: counters are read often, which shows when exactly they are updated."""
        if self.sampler is not None:
            self.sampler.burst()

    def energies(self, start_s: float, end_s: float, idle: tuple[float, float]) -> dict[str, Energy]:
        """Of each device that counts joules or watts; `idle`: a window with the engine loaded and nothing to do."""
        return {
            device: measure(self.samples, device, start_s, end_s, baseline(self.samples, device, *idle).power_w)
            for device in self._metered()
        }

    def idle_problems(self, idle: tuple[float, float]) -> dict[str, Sequence[Problem]]:
        return {device: baseline(self.samples, device, *idle).problems for device in self._metered()}

    def idle_gpu_busy(self, idle: tuple[float, float]) -> dict[str, float]:
        """How busy each GPU was while nothing was asked of the engine."""
        found: dict[str, float] = {}
        for device in devices(self.samples, "gpu:"):
            own = [
                one.utilisation for one in self.within(*idle) if one.device == device and one.utilisation is not None
            ]
            if own:
                found[device] = sum(own) / len(own)
        return found

    def _metered(self) -> list[str]:
        return [device for prefix in _KINDS.values() for device in devices(self.samples, prefix)]

    def others_busy(self, start_s: float, end_s: float) -> float | None:
        return others_share(self.samples, start_s, end_s, self.cores) if self.cores else None

    def memory(self, start_s: float, end_s: float) -> dict[str, int]:
        """The highest memory in use: the server's processes, and each GPU."""
        names = {f"tree:{SERVER}": "server_peak_memory_bytes"}
        names |= {device: f"{device.replace(':', '')}_peak_memory_bytes" for device in devices(self.samples, "gpu:")}
        found = {name: peak_memory_bytes(self.samples, device, start_s, end_s) for device, name in names.items()}
        return {name: value for name, value in found.items() if value is not None}

    def within(self, start_s: float, end_s: float) -> list[Sample]:
        return [sample for sample in self.samples if start_s <= sample.time_s <= end_s]

    def evenly(self, start_s: float, end_s: float) -> list[Sample]:
        """Those in a window without the extra ones of bursts, for whoever counts samples."""
        last: dict[str, float] = {}
        kept = []
        for sample in self.within(start_s, end_s):
            if sample.time_s - last.get(sample.device, -math.inf) >= INTERVAL_S / 2:
                last[sample.device] = sample.time_s
                kept.append(sample)
        return kept

    def reasons(self) -> dict[str, str]:
        return {one.meter: one.reason for one in self.absent}


def by_kind(energies: Mapping[str, Energy]) -> dict[str, Energy]:
    """Devices of one kind added up: all GPUs that the server uses, all processors."""
    kinds = {
        kind: {device: energy for device, energy in energies.items() if device.startswith(prefix)}
        for kind, prefix in _KINDS.items()
    }
    return {kind: replace(together(list(own.values())), devices=tuple(own)) for kind, own in kinds.items() if own}


@contextmanager
def observed(
    target: Target, server_pid: int | None, admin_headers: Mapping[str, str] | None = None
) -> Iterator[Observation]:
    """Read the meters of the server's machine while the block lasts; what they said is in the observation when it has ended.

    `server_pid`: of a server that is a child of this process. One that is ours and is not is asked for its own meters.
    """
    found = Observation()
    meters = _find_meters(found, target, server_pid, admin_headers or target.headers)
    found.sampler = Sampler(meters, INTERVAL_S)
    found.sampler.start()
    try:
        yield found
    finally:
        found.samples = list(found.sampler.stop())
        for meter in meters:
            if isinstance(meter, RemoteMeter):
                found.clock_error_s = meter.clock_error_s
                found.absent += _missed(meter)
            meter.close()


def _find_meters(
    found: Observation, target: Target, server_pid: int | None, headers: Mapping[str, str]
) -> Sequence[Meter]:
    if server_pid is not None:
        return _own_meters(found, {CLIENT: os.getpid(), SERVER: server_pid})
    host = urlsplit(target.url).hostname or ""
    remote, absent = open_remote(replace(target, headers=headers)) if target.ours else (None, [])
    if remote is not None:
        found.elsewhere = "" if remote.same_clock else host
        return _remote_meters(found, remote)
    if host in _HERE:
        meters = _own_meters(found, {CLIENT: os.getpid()})
        found.cores = 0  # whose processor time the server's is cannot be told
        found.absent += absent
        return meters
    found.elsewhere = host
    reason = absent[0].reason if absent else "the server is on another host"
    found.absent = [Absent("energy", reason), Absent("host", reason)]
    return ()


def _own_meters(found: Observation, trees: Mapping[str, int]) -> Sequence[Meter]:
    # A server that is not our child computes on GPUs that nobody tells us, unless there is one only, or we are told.
    pids = family_of(trees[SERVER]) if SERVER in trees else set[int]()
    gpus = gpus_of(pids, os.environ.get("CUDA_VISIBLE_DEVICES"), order=os.environ.get("CUDA_DEVICE_ORDER"))
    if isinstance(gpus, list) and pids and not uses_cuda(pids):
        gpus = Absent("nvml", "the server computes on no GPU")  # what one draws meanwhile is not the server's
    meters, found.absent = find_meters(trees, gpus)
    found.labels = gpu_labels(meters)
    found.cores = next((meter.cores for meter in meters if isinstance(meter, HostMeter)), 0)
    found.reads_energy = any(not isinstance(meter, HostMeter) for meter in meters)
    return meters


def _remote_meters(found: Observation, remote: RemoteMeter) -> Sequence[Meter]:
    """The server's own, and on the same machine also what this client takes of it."""
    found.absent, found.cores, found.reads_energy = list(remote.absent), remote.cores, remote.reads_energy
    found.labels = remote.names
    if not remote.same_clock:
        return (remote,)
    host, _ = open_host({CLIENT: os.getpid()})
    return (remote,) if host is None else (remote, _TreesOnly(host))


def _missed(remote: RemoteMeter) -> list[Absent]:
    failures = remote.failures
    return [Absent(remote.name, f"{len(failures)} readings failed, the last: {failures[-1]}")] if failures else []


class _TreesOnly:
    """A host's meter without the machine itself, which somebody else reads."""

    name = "client"

    def __init__(self, host: HostMeter) -> None:
        self._host = host

    def read(self) -> list[Sample]:
        return [sample for sample in self._host.read() if sample.device != HOST]

    def close(self) -> None:
        self._host.close()


def gpu_names(observation: Observation) -> Sequence[str]:
    """The product and UUID of each GPU; its number where the meter does not tell."""
    return [observation.labels.get(device, device) for device in devices(observation.samples, "gpu:")]


def device_figures(samples: Sequence[Sample], start_s: float, end_s: float) -> dict[str, Any]:
    """Utilisation, clocks, temperatures and throttling of each GPU over a window; what it does not tell is left out."""
    figures: dict[str, Any] = {}
    for device in devices(samples, "gpu:"):
        name, was = device.replace(":", ""), conditions(samples, device, start_s, end_s)
        told = {
            "mean_utilisation": was.utilisation,
            "mean_sm_clock_hz": was.sm_clock_hz,
            "lowest_sm_clock_hz": was.lowest_sm_clock_hz,
            "sm_clock_drift": was.sm_clock_drift,
            "mean_temperature_c": was.temperature_c,
            "temperature_drift_c": was.temperature_drift_c,
        }
        figures |= {f"{name}_{figure}": value for figure, value in told.items() if value is not None}
        figures[f"{name}_throttled"] = was.throttled  # reason: share of the window
    return figures
