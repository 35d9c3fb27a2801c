"""CPU time and memory of the machine and of process trees."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from enginebay.meters.analysis.cpu_usage import (
    find_peak_memory_bytes,
    measure_cpu_s,
    measure_cpu_share,
    measure_other_cpu_share,
)
from enginebay.meters.devices.host_meter import HostMeter, open_host_meter
from enginebay.meters.devices.proc_files import read_boot_id, read_machine_usage, read_process_usage
from enginebay.meters.sample import Sample

TICK = os.sysconf("SC_CLK_TCK")


class Proc:
    """A folder like /proc with a few processes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.machine(busy_s=10.0)

    def machine(self, busy_s: float) -> None:
        ticks = int(busy_s * TICK)
        (self.root / "stat").write_text(f"cpu  {ticks} 0 0 999999 55 0 0 0 0 0\ncpu0 1\ncpu1 1\nintr 5\n")
        (self.root / "meminfo").write_text("MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 400 kB\n")

    def process(
        self,
        pid: int,
        cpu: float,
        reaped: float = 0.0,
        kib: int = 100,
        started: int = 1,
        children: tuple[int, ...] = (),
    ) -> None:
        folder = self.root / str(pid)
        (folder / "task" / str(pid)).mkdir(parents=True, exist_ok=True)
        times = f"{int(cpu * TICK)} 0 {int(reaped * TICK)} 0"
        (folder / "stat").write_text(f"{pid} (a) b (c)) S 1 1 1 0 -1 0 0 0 0 0 {times} 20 0 1 0 {started} 0\n")
        (folder / "status").write_text(f"Name: x\nVmHWM: {kib * 2} kB\nVmRSS: {kib} kB\n")
        (folder / "task" / str(pid) / "children").write_text(" ".join(map(str, children)) + " ")

    def end(self, pid: int) -> None:
        (self.root / str(pid)).rename(self.root / f"ended-{pid}-{time.monotonic_ns()}")


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


def test_a_start_of_the_machine_has_a_name(tmp_path: Path) -> None:
    place = tmp_path / "sys/kernel/random"
    place.mkdir(parents=True)
    assert read_boot_id(tmp_path) is None
    (place / "boot_id").write_text("0caa-1\n")
    assert read_boot_id(tmp_path) == "0caa-1"


def read(meter: HostMeter, device: str) -> Sample:
    return next(sample for sample in meter.read() if sample.device == device)


def meter_of(proc: Proc, **trees: int) -> HostMeter:
    meter, absent = open_host_meter(trees, proc.root)
    assert meter is not None and not absent
    return meter


def test_the_machine_is_busy_with_what_is_not_idle(proc: Proc) -> None:
    machine = read_machine_usage(proc.root)
    assert machine is not None
    assert (machine.busy_s, machine.cores, machine.memory_bytes) == (10.0, 2, 600 * 1024)


def test_a_tree_is_a_process_with_all_its_descendants(proc: Proc) -> None:
    proc.process(10, cpu=1.0, children=(11,))
    proc.process(11, cpu=2.0, children=(12,))
    proc.process(12, cpu=4.0)
    proc.process(99, cpu=50.0)
    sample = read(meter_of(proc, server=10), "tree:server")
    assert sample.cpu_s == 7.0
    assert (sample.memory_bytes, sample.peak_memory_bytes) == (300 * 1024, 600 * 1024)


def test_a_tree_inside_another_is_counted_once(proc: Proc) -> None:
    proc.process(10, cpu=1.0, children=(11,))
    proc.process(11, cpu=2.0, children=(12,))
    proc.process(12, cpu=4.0)
    meter = meter_of(proc, client=10)
    assert read(meter, "tree:client").cpu_s == 7.0
    meter = meter_of(proc, client=10, server=11)
    assert read(meter, "tree:client").cpu_s == 1.0
    assert read(meter, "tree:server").cpu_s == 6.0


def test_an_ended_child_leaves_its_time_to_its_parent(proc: Proc) -> None:
    proc.process(10, cpu=1.0, children=(11,))
    proc.process(11, cpu=5.0)
    meter = meter_of(proc, server=10)
    assert read(meter, "tree:server").cpu_s == 6.0
    proc.end(11)
    proc.process(10, cpu=1.5, reaped=5.0)
    assert read(meter, "tree:server").cpu_s == 6.5


def test_an_orphan_still_belongs_to_its_tree_and_time_never_falls(proc: Proc) -> None:
    proc.process(10, cpu=1.0, children=(11,))
    proc.process(11, cpu=5.0)
    meter = meter_of(proc, server=10)
    read(meter, "tree:server")
    proc.end(10)
    assert read(meter, "tree:server").cpu_s == 6.0
    proc.process(11, cpu=7.0)
    assert read(meter, "tree:server").cpu_s == 7.0


def test_a_later_process_with_the_same_number_is_another(proc: Proc) -> None:
    proc.process(10, cpu=1.0)
    meter = meter_of(proc, server=10)
    read(meter, "tree:server")
    proc.end(10)
    assert read(meter, "tree:server").memory_bytes == 0
    proc.process(10, cpu=30.0, started=2)
    sample = read(meter, "tree:server")
    assert (sample.cpu_s, sample.memory_bytes) == (1.0, 0)


def test_shares_are_of_the_whole_machine(proc: Proc) -> None:
    proc.process(10, cpu=0.0)
    meter = meter_of(proc, server=10)
    assert read(meter, "host").utilisation is None, "a share needs two readings"
    time.sleep(0.06)
    proc.machine(busy_s=1000.0)
    assert read(meter, "host").utilisation == 1.0


def test_a_system_without_proc_has_no_host_meter(tmp_path: Path) -> None:
    meter, absent = open_host_meter(proc=tmp_path)
    assert meter is None
    assert "no CPU times in" in absent[0].reason


def test_who_kept_the_processors_busy() -> None:
    samples = [Sample(float(t), "host", cpu_s=50 + 1.5 * t, memory_bytes=t) for t in range(11)]
    samples += [Sample(float(t), "tree:server", cpu_s=1.0 * t) for t in range(11)]
    samples += [Sample(float(t), "tree:client", cpu_s=3 + 0.2 * t) for t in range(11)]
    assert measure_cpu_s(samples, "tree:server", 2.5, 7.5) == pytest.approx(5.0)
    assert measure_cpu_share(samples, "host", 2.5, 7.5, 2) == pytest.approx(0.75)
    assert measure_other_cpu_share(samples, 2.5, 7.5, 2) == pytest.approx(0.15)
    assert find_peak_memory_bytes(samples, "host", 2.5, 7.5) == 7
    assert find_peak_memory_bytes(samples, "gpu:0", 2.5, 7.5) is None
    assert measure_other_cpu_share(samples, 2.5, 17.5, 2) is None
    assert measure_cpu_share(samples, "host", 3.0, 3.0, 2) is None


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc here")
def test_a_real_process_is_read() -> None:
    code = "b = bytearray(30_000_000)\nfor n in range(0, len(b), 4096): b[n] = 1\nprint('up', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline() == b"up\n"
        meter, _ = open_host_meter({"us": os.getpid(), "child": child.pid})
        assert meter is not None
        sample = read(meter, "tree:child")
        assert sample.memory_bytes is not None and sample.memory_bytes > 30_000_000
        assert sample.peak_memory_bytes is not None and sample.peak_memory_bytes >= sample.memory_bytes
        child.communicate(b"\n")
    assert read_process_usage(child.pid) is None
    assert read(meter, "tree:child").memory_bytes == 0
