"""Which meters a run uses, and the figures from their samples."""

from __future__ import annotations

import os
from itertools import pairwise
from time import monotonic, sleep

import pytest

from enginebay.lab.loadgen.sender_task import TargetServer
from enginebay.lab.study import machine_monitor
from enginebay.lab.study.machine_monitor import (
    SERVER,
    MachineReadings,
    list_gpu_names,
    monitor_machine,
    sum_by_kind,
    summarize_gpus,
)
from enginebay.meters.analysis.window_energy import WindowEnergy
from enginebay.meters.sample import Absent, Meter, Sample, list_devices
from tests.unit.lab.study.test_remote_meter import FAR_S, Host, serving

NOT_OURS = TargetServer("http://127.0.0.1:9", "m")


def test_a_child_is_monitored_with_this_machines_meters() -> None:
    with monitor_machine(NOT_OURS, os.getppid()) as found:
        sleep(0.15)
    assert {"host", "tree:client", "tree:server"} <= set(list_devices(found.samples))
    assert found.cores == os.cpu_count() and found.clock_error_s is None


@pytest.mark.parametrize("child", [True, False])
def test_only_the_servers_own_gpus_are_read(monkeypatch: pytest.MonkeyPatch, child: bool) -> None:
    asked: list[tuple[set[int], str | None]] = []

    def gpus_of(pids: set[int], environment: str | None, *, order: str | None) -> list[int]:
        asked.append((pids, environment))
        assert order == "PCI_BUS_ID"
        return [3]

    def find_meters(trees: dict[str, int], gpus: list[int]) -> tuple[list[Meter], list[Absent]]:
        assert gpus == [3] and (SERVER in trees) == child
        return [], []

    monkeypatch.setattr(machine_monitor, "find_gpus_of", gpus_of)
    monkeypatch.setattr(machine_monitor, "find_meters", find_meters)
    monkeypatch.setattr(machine_monitor, "uses_cuda", lambda pids: True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    with monitor_machine(NOT_OURS, os.getpid() if child else None):
        pass
    ((pids, environment),) = asked
    assert environment == "3" and (os.getpid() in pids) == child


def test_a_gpu_that_the_server_does_not_use_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_monitor, "find_gpus_of", lambda pids, environment, order: [0])
    with monitor_machine(NOT_OURS, os.getpid()) as found:  # this process uses none
        pass
    assert found.absence_reasons()["nvml"] == "the server uses no GPU"


def test_energy_names_its_devices_and_a_gpu_without_a_label_its_number() -> None:
    assert sum_by_kind({"gpu:2": WindowEnergy(5.0), "gpu:3": WindowEnergy(7.0)})["gpu"].devices == ("gpu:2", "gpu:3")
    found = MachineReadings(samples=[Sample(1.0, "gpu:2"), Sample(1.0, "gpu:3")], labels={"gpu:3": "NVIDIA H200 GPU-a"})
    assert list_gpu_names(found) == ["gpu:2", "NVIDIA H200 GPU-a"]


def test_the_cpu_share_of_an_unknown_server_is_unknown() -> None:
    with monitor_machine(NOT_OURS, None) as found:
        sleep(0.15)
    assert "tree:server" not in list_devices(found.samples) and "host" in list_devices(found.samples)
    assert found.measure_others_busy(found.samples[0].time_s, found.samples[-1].time_s) is None


def test_an_unknown_server_on_another_host_is_not_monitored() -> None:
    with monitor_machine(TargetServer("http://192.0.2.1:9", "m"), None) as found:
        pass
    assert not found.samples and found.absence_reasons()["energy"] == "the server is on another host"
    assert found.remote_host == "192.0.2.1"


def test_a_bay_server_on_this_machine_reports_its_meters_and_the_client_is_metered_here() -> None:
    with serving(Host()) as target, monitor_machine(target, None) as found:
        sleep(0.15)
    names = list_devices(found.samples)
    assert names == ["gpu:0", "host", "tree:client"]
    assert {sample.cpu_s for sample in found.samples if sample.device == "host"} == {5.0}  # only the server's
    assert found.cores == 4 and found.reads_energy and found.clock_error_s == 0.0
    assert found.absence_reasons() == {"rapl": "not here"}
    assert list_gpu_names(found) == ["NVIDIA H200 GPU-a"]


def test_a_bay_server_on_another_host_reports_only_its_meters() -> None:
    before_s = monotonic()
    with serving(Host(FAR_S)) as target, monitor_machine(target, None) as found:
        sleep(0.15)
    assert list_devices(found.samples) == ["gpu:0", "host"]
    assert found.clock_error_s is not None and 0 < found.clock_error_s < 1
    assert all(before_s - 1 < sample.time_s < monotonic() + 1 for sample in found.samples)


def test_meters_use_the_admin_key() -> None:
    host = Host()
    with serving(host) as target, monitor_machine(target, None, {"Authorization": "Bearer admin"}):
        pass
    assert {key for _, key, _ in host.asked} == {"Bearer admin"}


def test_without_its_meters_a_bay_server_is_monitored_like_any_other_and_the_reason_is_given() -> None:
    host = Host()
    host.status = 403
    with serving(host) as target, monitor_machine(target, None) as found:
        sleep(0.15)
    assert "tree:client" in list_devices(found.samples) and found.cores == 0
    assert "admin scope" in found.absence_reasons()["server meters"]


def test_failed_readings_are_reported() -> None:
    host = Host()
    with serving(host) as target, monitor_machine(target, None) as found:
        sleep(0.15)
        host.status = 503
        sleep(0.15)
    assert "the last with: /admin/meters returned 503" in found.absence_reasons()["server meters"]
    assert "gpu:0" in list_devices(found.samples)


class FakeSampler:
    """A fake sampler that counts bursts."""

    def __init__(self) -> None:
        self.bursts = 0

    def burst(self) -> None:
        self.bursts += 1


def test_before_a_window_counters_are_read_often() -> None:
    sampler = FakeSampler()
    MachineReadings(sampler=sampler).expect_window()  # type: ignore[arg-type]
    assert sampler.bursts == 1


def test_a_burst_counts_no_more_than_other_times() -> None:
    times = sorted([n / 10 for n in range(50)] + [1 + n / 200 for n in range(100)])
    samples = [Sample(time_s, device) for time_s in times for device in ("gpu:0", "gpu:1")]
    found = MachineReadings(samples=samples)
    assert len(found.samples_within(1.0, 3.0)) > 200
    for device in ("gpu:0", "gpu:1"):
        kept = [sample.time_s for sample in found.thin_bursts(1.0, 3.0) if sample.device == device]
        assert 20 <= len(kept) <= 35 and kept[0] == 1.0
        assert all(b - a >= 0.049 for a, b in pairwise(kept))


def test_expecting_a_window_without_a_sampler_does_nothing() -> None:
    MachineReadings().expect_window()


def _hot(time_s: float) -> Sample:
    late = time_s >= 8
    return Sample(
        time_s, "gpu:1", utilisation=0.5 if late else 1.0, sm_clock_hz=1.5e9 if late else 2.0e9,
        temperature_c=50 + time_s, throttle=("thermal_software",) if late else (),
    )  # fmt: skip


def test_figures_of_a_device_are_over_the_time_of_the_window() -> None:
    times = [n / 10 for n in range(-20, 120)] + [9 + n / 1000 for n in range(500)]  # and a burst
    figures = summarize_gpus([_hot(time_s) for time_s in times], 0.0, 10.0)
    assert figures == {
        "gpu1_mean_utilisation": pytest.approx(0.9),
        "gpu1_mean_sm_clock_hz": pytest.approx(1.9e9),
        "gpu1_lowest_sm_clock_hz": 1.5e9,
        "gpu1_sm_clock_drift": pytest.approx(-0.25),
        "gpu1_mean_temperature_c": pytest.approx(54.95, abs=0.05),
        "gpu1_temperature_drift_c": pytest.approx(8.0, abs=0.1),
        "gpu1_throttled": pytest.approx({"thermal_software": 0.2}),
    }


def test_unknown_values_give_no_figure() -> None:
    assert summarize_gpus([Sample(1.0, "gpu:0", energy_j=5.0)], 0.0, 2.0) == {"gpu0_throttled": {}}
    assert summarize_gpus([Sample(1.0, "host", cpu_s=5.0)], 0.0, 2.0) == {}
