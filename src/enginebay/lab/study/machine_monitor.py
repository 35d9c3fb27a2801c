"""The machine while a run lasts: its meters are read throughout, and asked afterwards what each window took."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from enginebay.lab.loadgen.sender_task import TargetServer
from enginebay.lab.study.remote_meter import RemoteMeter, open_remote_meter
from enginebay.meters.analysis.cpu_usage import find_peak_memory_bytes, measure_other_cpu_share
from enginebay.meters.analysis.device_conditions import summarize_conditions
from enginebay.meters.analysis.energy_problems import EnergyProblem
from enginebay.meters.analysis.idle_power import measure_idle_power
from enginebay.meters.analysis.window_energy import WindowEnergy, measure_energy, sum_energies
from enginebay.meters.devices.engine_gpu_meter import collect_process_tree, find_gpus_of, uses_cuda
from enginebay.meters.devices.host_meter import HOST, HostMeter, open_host_meter
from enginebay.meters.meter_discovery import find_meters, get_gpu_labels
from enginebay.meters.meter_sampler import MeterSampler
from enginebay.meters.sample import Absent, Meter, Sample, list_devices

_DEVICE_PREFIXES = {"gpu": "gpu:", "cpu": "cpu:"}  # what is added up under one name
CLIENT, SERVER = "client", "server"
INTERVAL_S = 0.1  # between two readings
_LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")


@dataclass(slots=True)
class MachineReadings:
    """What the meters said."""

    samples: list[Sample] = field(default_factory=list)
    absent: list[Absent] = field(default_factory=list)
    cores: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)  # of GPUs: the product and its UUID
    reads_energy: bool = False
    remote_host: str = ""  # the server's host, where it is not this one
    clock_error_s: float | None = None  # of meters on another clock: so far off their times may be
    sampler: MeterSampler | None = None  # while it lasts

    def expect_window(self) -> None:
        """A window begins in a moment: counters are read often, which shows when exactly they are updated."""
        if self.sampler is not None:
            self.sampler.burst()

    def measure_energies(self, start_s: float, end_s: float, idle: tuple[float, float]) -> dict[str, WindowEnergy]:
        """Of each device that counts joules or watts; `idle`: a window with the engine loaded and nothing to do."""
        return {
            device: measure_energy(
                self.samples, device, start_s, end_s, measure_idle_power(self.samples, device, *idle).power_w
            )
            for device in self._metered_devices()
        }

    def find_idle_problems(self, idle: tuple[float, float]) -> dict[str, Sequence[EnergyProblem]]:
        return {device: measure_idle_power(self.samples, device, *idle).problems for device in self._metered_devices()}

    def mean_idle_gpu_utilisation(self, idle: tuple[float, float]) -> dict[str, float]:
        """How busy each GPU was while nothing was asked of the engine."""
        found: dict[str, float] = {}
        for device in list_devices(self.samples, "gpu:"):
            own = [
                one.utilisation
                for one in self.samples_within(*idle)
                if one.device == device and one.utilisation is not None
            ]
            if own:
                found[device] = sum(own) / len(own)
        return found

    def _metered_devices(self) -> list[str]:
        return [device for prefix in _DEVICE_PREFIXES.values() for device in list_devices(self.samples, prefix)]

    def measure_others_busy(self, start_s: float, end_s: float) -> float | None:
        return measure_other_cpu_share(self.samples, start_s, end_s, self.cores) if self.cores else None

    def peak_memory(self, start_s: float, end_s: float) -> dict[str, int]:
        """The highest memory in use: the server's processes, and each GPU."""
        names = {f"tree:{SERVER}": "server_peak_memory_bytes"}
        names |= {
            device: f"{device.replace(':', '')}_peak_memory_bytes" for device in list_devices(self.samples, "gpu:")
        }
        found = {name: find_peak_memory_bytes(self.samples, device, start_s, end_s) for device, name in names.items()}
        return {name: value for name, value in found.items() if value is not None}

    def samples_within(self, start_s: float, end_s: float) -> list[Sample]:
        return [sample for sample in self.samples if start_s <= sample.time_s <= end_s]

    def thin_bursts(self, start_s: float, end_s: float) -> list[Sample]:
        """Those in a window without the extra ones of bursts, for whoever counts samples."""
        last: dict[str, float] = {}
        kept = []
        for sample in self.samples_within(start_s, end_s):
            if sample.time_s - last.get(sample.device, -math.inf) >= INTERVAL_S / 2:
                last[sample.device] = sample.time_s
                kept.append(sample)
        return kept

    def absence_reasons(self) -> dict[str, str]:
        return {one.meter: one.reason for one in self.absent}


def sum_by_kind(energies: Mapping[str, WindowEnergy]) -> dict[str, WindowEnergy]:
    """Devices of one kind added up: all GPUs that the server uses, all processors."""
    kinds = {
        kind: {device: energy for device, energy in energies.items() if device.startswith(prefix)}
        for kind, prefix in _DEVICE_PREFIXES.items()
    }
    return {kind: replace(sum_energies(list(own.values())), devices=tuple(own)) for kind, own in kinds.items() if own}


@contextmanager
def monitor_machine(
    target: TargetServer, server_pid: int | None, admin_headers: Mapping[str, str] | None = None
) -> Iterator[MachineReadings]:
    """Read the meters of the server's machine while the block lasts; what they said is in the observation when it has ended.

    `server_pid`: of a server that is a child of this process. One that is ours and is not is asked for its own meters.
    """
    found = MachineReadings()
    meters = _open_meters(found, target, server_pid, admin_headers or target.headers)
    found.sampler = MeterSampler(meters, INTERVAL_S)
    found.sampler.start()
    try:
        yield found
    finally:
        found.samples = list(found.sampler.stop())
        for meter in meters:
            if isinstance(meter, RemoteMeter):
                found.clock_error_s = meter.clock_error_s
                found.absent += _describe_failures(meter)
            meter.close()


def _open_meters(
    readings: MachineReadings, target: TargetServer, server_pid: int | None, headers: Mapping[str, str]
) -> Sequence[Meter]:
    if server_pid is not None:
        return _open_local_meters(readings, {CLIENT: os.getpid(), SERVER: server_pid})
    host = urlsplit(target.url).hostname or ""
    remote, absent = open_remote_meter(replace(target, headers=headers)) if target.is_enginebay else (None, [])
    if remote is not None:
        readings.remote_host = "" if remote.same_clock else host
        return _use_remote_meters(readings, remote)
    if host in _LOCAL_HOSTS:
        meters = _open_local_meters(readings, {CLIENT: os.getpid()})
        readings.cores = 0  # whose processor time the server's is cannot be told
        readings.absent += absent
        return meters
    readings.remote_host = host
    reason = absent[0].reason if absent else "the server is on another host"
    readings.absent = [Absent("energy", reason), Absent("host", reason)]
    return ()


def _open_local_meters(readings: MachineReadings, trees: Mapping[str, int]) -> Sequence[Meter]:
    # A server that is not our child computes on GPUs that nobody tells us, unless there is one only, or we are told.
    pids = collect_process_tree(trees[SERVER]) if SERVER in trees else set[int]()
    gpus = find_gpus_of(pids, os.environ.get("CUDA_VISIBLE_DEVICES"), order=os.environ.get("CUDA_DEVICE_ORDER"))
    if isinstance(gpus, list) and pids and not uses_cuda(pids):
        gpus = Absent("nvml", "the server computes on no GPU")  # what one draws meanwhile is not the server's
    meters, readings.absent = find_meters(trees, gpus)
    readings.labels = get_gpu_labels(meters)
    readings.cores = next((meter.cores for meter in meters if isinstance(meter, HostMeter)), 0)
    readings.reads_energy = any(not isinstance(meter, HostMeter) for meter in meters)
    return meters


def _use_remote_meters(readings: MachineReadings, remote: RemoteMeter) -> Sequence[Meter]:
    """The server's own, and on the same machine also what this client takes of it."""
    readings.absent, readings.cores, readings.reads_energy = list(remote.absent), remote.cores, remote.reads_energy
    readings.labels = remote.names
    if not remote.same_clock:
        return (remote,)
    host, _ = open_host_meter({CLIENT: os.getpid()})
    return (remote,) if host is None else (remote, _ProcessTreesOnly(host))


def _describe_failures(remote: RemoteMeter) -> list[Absent]:
    failures = remote.failures
    return [Absent(remote.name, f"{len(failures)} readings failed, the last: {failures[-1]}")] if failures else []


class _ProcessTreesOnly:
    """A host's meter without the machine itself, which somebody else reads."""

    name = "client"

    def __init__(self, host: HostMeter) -> None:
        self._host = host

    def read(self) -> list[Sample]:
        return [sample for sample in self._host.read() if sample.device != HOST]

    def close(self) -> None:
        self._host.close()


def list_gpu_names(readings: MachineReadings) -> Sequence[str]:
    """The product and UUID of each GPU; its number where the meter does not tell."""
    return [readings.labels.get(device, device) for device in list_devices(readings.samples, "gpu:")]


def summarize_gpus(samples: Sequence[Sample], start_s: float, end_s: float) -> dict[str, Any]:
    """Utilisation, clocks, temperatures and throttling of each GPU over a window; what it does not tell is left out."""
    figures: dict[str, Any] = {}
    for device in list_devices(samples, "gpu:"):
        name, was = device.replace(":", ""), summarize_conditions(samples, device, start_s, end_s)
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
