"""The machine while a run lasts: its meters are read throughout, and asked afterwards what each window took."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from enginebay.meters.baseline import baseline
from enginebay.meters.energy import Energy, measure, together
from enginebay.meters.find import find_meters
from enginebay.meters.host import HostMeter
from enginebay.meters.problem import Problem
from enginebay.meters.sample import Absent, Sample, devices
from enginebay.meters.sampler import Sampler
from enginebay.meters.shares import others_share, peak_memory_bytes

_KINDS = {"gpu": "gpu:", "cpu": "cpu:"}  # what is added up under one name
CLIENT, SERVER = "client", "server"
_HERE = ("127.0.0.1", "localhost", "::1")


@dataclass(slots=True)
class Observation:
    """What the meters said."""

    samples: list[Sample] = field(default_factory=list)
    absent: list[Absent] = field(default_factory=list)
    cores: int = 0
    reads_energy: bool = False

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

    def reasons(self) -> dict[str, str]:
        return {one.meter: one.reason for one in self.absent}


def by_kind(energies: Mapping[str, Energy]) -> dict[str, Energy]:
    """Devices of one kind added up: all GPUs, all processors."""
    kinds = {
        kind: [energy for device, energy in energies.items() if device.startswith(prefix)]
        for kind, prefix in _KINDS.items()
    }
    return {kind: together(own) for kind, own in kinds.items() if own}


@contextmanager
def observed(url: str, server_pid: int | None) -> Iterator[Observation]:
    """Read this machine's meters while the block lasts; they are in the observation when it has ended."""
    found = Observation()
    if server_pid is None and urlsplit(url).hostname not in _HERE:
        found.absent = [
            Absent("energy", "the server is on another host"),
            Absent("host", "the server is on another host"),
        ]
        yield found
        return
    trees = {CLIENT: os.getpid()} | ({SERVER: server_pid} if server_pid is not None else {})
    meters, found.absent = find_meters(trees)
    found.cores = next((meter.cores for meter in meters if isinstance(meter, HostMeter)), 0)
    if server_pid is None:
        found.cores = 0  # whose processor time the server's is cannot be told
    found.reads_energy = any(not isinstance(meter, HostMeter) for meter in meters)
    sampler = Sampler(meters)
    sampler.start()
    try:
        yield found
    finally:
        found.samples = list(sampler.stop())
        for meter in meters:
            meter.close()


def gpu_names(observation: Observation) -> Sequence[str]:
    return devices(observation.samples, "gpu:")


def device_figures(samples: Sequence[Sample]) -> dict[str, Any]:
    """Utilisation, clocks and temperatures of each GPU over a window."""
    figures: dict[str, Any] = {}
    for device in devices(samples, "gpu:"):
        own = [sample for sample in samples if sample.device == device]
        name = device.replace(":", "")
        for field_name, figure in (
            ("utilisation", "mean_utilisation"),
            ("sm_clock_hz", "mean_sm_clock_hz"),
            ("temperature_c", "mean_temperature_c"),
        ):
            values = [getattr(sample, field_name) for sample in own if getattr(sample, field_name) is not None]
            if values:
                figures[f"{name}_{figure}"] = sum(values) / len(values)
        temperatures = [sample.temperature_c for sample in own if sample.temperature_c is not None]
        if temperatures:
            figures[f"{name}_temperature_drift_c"] = temperatures[-1] - temperatures[0]
        figures[f"{name}_throttle"] = sorted({reason for sample in own for reason in sample.throttle})
    return figures
