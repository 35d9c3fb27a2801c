"""Sample the server machine's meters during a run, and answer questions about any window of it afterwards."""

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
from enginebay.meters.devices.engine_gpu_meter import find_gpus_of, uses_cuda
from enginebay.meters.devices.host_meter import HOST, HostMeter, open_host_meter
from enginebay.meters.devices.proc_files import list_process_tree
from enginebay.meters.meter_discovery import find_meters, get_gpu_labels
from enginebay.meters.meter_sampler import MeterSampler
from enginebay.meters.sample import Absent, Meter, Sample, list_devices
from enginebay.util.http_policy import build_token_headers

_DEVICE_PREFIXES = {"gpu": "gpu:", "cpu": "cpu:"}  # devices that are summed under one name
CLIENT, SERVER = "client", "server"
INTERVAL_S = 0.1  # between two samples
_LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")


@dataclass(slots=True)
class MachineReadings:
    """The samples of a run's meters."""

    samples: list[Sample] = field(default_factory=list)
    absent: list[Absent] = field(default_factory=list)
    cores: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)  # GPU product and UUID, by device
    reads_energy: bool = False
    remote_host: str = ""  # the server's host, if it is another one
    clock_error_s: float | None = None  # largest error of sample times from another clock
    sampler: MeterSampler | None = None  # while sampling

    def expect_window(self) -> None:
        """Sample in a burst: a window is about to begin, and this shows when exactly the energy counters update."""
        if self.sampler is not None:
            self.sampler.burst()

    def measure_energies(self, start_s: float, end_s: float, idle: tuple[float, float]) -> dict[str, WindowEnergy]:
        """Return the energy of each metered device. `idle`: a window with the engine loaded and idle."""
        return {
            device: measure_energy(
                self.samples, device, start_s, end_s, measure_idle_power(self.samples, device, *idle).power_w
            )
            for device in self._metered_devices()
        }

    def find_idle_problems(self, idle: tuple[float, float]) -> dict[str, Sequence[EnergyProblem]]:
        return {device: measure_idle_power(self.samples, device, *idle).problems for device in self._metered_devices()}

    def mean_idle_gpu_utilisation(self, idle: tuple[float, float]) -> dict[str, float]:
        """Return the mean utilisation of each GPU while the engine was idle."""
        means: dict[str, float] = {}
        for device in list_devices(self.samples, "gpu:"):
            values = [
                sample.utilisation
                for sample in self.samples_within(*idle)
                if sample.device == device and sample.utilisation is not None
            ]
            if values:
                means[device] = sum(values) / len(values)
        return means

    def _metered_devices(self) -> list[str]:
        return [device for prefix in _DEVICE_PREFIXES.values() for device in list_devices(self.samples, prefix)]

    def measure_others_busy(self, start_s: float, end_s: float) -> float | None:
        return measure_other_cpu_share(self.samples, start_s, end_s, self.cores) if self.cores else None

    def peak_memory(self, start_s: float, end_s: float) -> dict[str, int]:
        """Return the peak memory of the server's processes and of each GPU."""
        names = {f"tree:{SERVER}": "server_peak_memory_bytes"}
        names |= {gpu: f"{gpu.replace(':', '')}_peak_memory_bytes" for gpu in list_devices(self.samples, "gpu:")}
        peaks = {name: find_peak_memory_bytes(self.samples, device, start_s, end_s) for device, name in names.items()}
        return {name: value for name, value in peaks.items() if value is not None}

    def samples_within(self, start_s: float, end_s: float) -> list[Sample]:
        return [sample for sample in self.samples if start_s <= sample.time_s <= end_s]

    def thin_bursts(self, start_s: float, end_s: float) -> list[Sample]:
        """Return the samples of a window without the extra ones of bursts, so that samples can be counted."""
        last_s: dict[str, float] = {}
        thinned = []
        for sample in self.samples_within(start_s, end_s):
            if sample.time_s - last_s.get(sample.device, -math.inf) >= INTERVAL_S / 2:
                last_s[sample.device] = sample.time_s
                thinned.append(sample)
        return thinned

    def absence_reasons(self) -> dict[str, str]:
        return {absent.meter: absent.reason for absent in self.absent}


def sum_by_kind(energies: Mapping[str, WindowEnergy]) -> dict[str, WindowEnergy]:
    """Sum energies per kind of device: all GPUs that the server uses, all CPUs."""
    kinds = {
        kind: {device: energy for device, energy in energies.items() if device.startswith(prefix)}
        for kind, prefix in _DEVICE_PREFIXES.items()
    }
    return {kind: replace(sum_energies(list(of.values())), devices=tuple(of)) for kind, of in kinds.items() if of}


@contextmanager
def monitor_machine(
    target: TargetServer, server_pid: int | None, admin_headers: Mapping[str, str] | None = None
) -> Iterator[MachineReadings]:
    """Sample the meters of the server's machine while the block lasts. The samples are complete when it ends.

    `server_pid`: of a server that is a child of this process. Any other Enginebay server reports its own meters.
    """
    readings = MachineReadings()
    headers = {**(admin_headers or target.headers), **build_token_headers(target.url)}
    meters = _open_meters(readings, target, server_pid, headers)
    readings.sampler = MeterSampler(meters, INTERVAL_S)
    readings.sampler.start()
    try:
        yield readings
    finally:
        readings.samples = list(readings.sampler.stop())
        for meter in meters:
            if isinstance(meter, RemoteMeter):
                readings.clock_error_s = meter.clock_error_s
                readings.absent += _describe_failures(meter)
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
        readings.cores = 0  # the server's share of CPU time is unknown
        readings.absent += absent
        return meters
    readings.remote_host = host
    reason = absent[0].reason if absent else "the server is on another host"
    readings.absent = [Absent("energy", reason), Absent("host", reason)]
    return ()


def _open_local_meters(readings: MachineReadings, trees: Mapping[str, int]) -> Sequence[Meter]:
    # The GPUs of a server that is not a child are unknown, unless there is only one or CUDA_VISIBLE_DEVICES names them.
    pids = list_process_tree(trees[SERVER]) if SERVER in trees else []
    gpus = find_gpus_of(pids, os.environ.get("CUDA_VISIBLE_DEVICES"), order=os.environ.get("CUDA_DEVICE_ORDER"))
    if isinstance(gpus, list) and pids and not uses_cuda(pids):
        gpus = Absent("nvml", "the server uses no GPU")  # any power drawn is not the server's
    meters, readings.absent = find_meters(trees, gpus)
    readings.labels = get_gpu_labels(meters)
    readings.cores = next((meter.cores for meter in meters if isinstance(meter, HostMeter)), 0)
    readings.reads_energy = any(not isinstance(meter, HostMeter) for meter in meters)
    return meters


def _use_remote_meters(readings: MachineReadings, remote: RemoteMeter) -> Sequence[Meter]:
    """Use the server's meters; on the same machine, also meter this client's processes."""
    readings.absent, readings.cores, readings.reads_energy = list(remote.absent), remote.cores, remote.reads_energy
    readings.labels = remote.names
    if not remote.same_clock:
        return (remote,)
    host, _ = open_host_meter({CLIENT: os.getpid()})
    return (remote,) if host is None else (remote, _ProcessTreesOnly(host))


def _describe_failures(remote: RemoteMeter) -> list[Absent]:
    failures = remote.failures
    return [Absent(remote.name, f"{len(failures)} readings failed, the last with: {failures[-1]}")] if failures else []


class _ProcessTreesOnly:
    """A host meter without the machine's own samples, which the server reports."""

    name = "client"

    def __init__(self, host: HostMeter) -> None:
        self._host = host

    def read(self) -> list[Sample]:
        return [sample for sample in self._host.read() if sample.device != HOST]

    def close(self) -> None:
        self._host.close()


def list_gpu_names(readings: MachineReadings) -> Sequence[str]:
    """Return the product and UUID of each GPU, or its device name if the meter has no label."""
    return [readings.labels.get(device, device) for device in list_devices(readings.samples, "gpu:")]


def summarize_gpus(samples: Sequence[Sample], start_s: float, end_s: float) -> dict[str, Any]:
    """Return utilisation, clocks, temperatures and throttling of each GPU over a window, without unknown figures."""
    figures: dict[str, Any] = {}
    for device in list_devices(samples, "gpu:"):
        name, conditions = device.replace(":", ""), summarize_conditions(samples, device, start_s, end_s)
        values = {
            "mean_utilisation": conditions.utilisation,
            "mean_sm_clock_hz": conditions.sm_clock_hz,
            "lowest_sm_clock_hz": conditions.lowest_sm_clock_hz,
            "sm_clock_drift": conditions.sm_clock_drift,
            "mean_temperature_c": conditions.temperature_c,
            "temperature_drift_c": conditions.temperature_drift_c,
        }
        figures |= {f"{name}_{figure}": value for figure, value in values.items() if value is not None}
        figures[f"{name}_throttled"] = conditions.throttled  # reason: share of the window
    return figures
