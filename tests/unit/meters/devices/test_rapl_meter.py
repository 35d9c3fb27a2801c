"""RAPL counters, from folders like the kernel's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from enginebay.meters.analysis.window_energy import measure_energy
from enginebay.meters.devices.rapl_meter import open_rapl

RANGE = 262_143_328_850


def zone(root: Path, folder: str, name: str, energy: int = 5_000_000, **files: int) -> Path:
    place = root / folder
    place.mkdir(parents=True)
    (place / "name").write_text(f"{name}\n")
    for file, value in {"energy_uj": energy, **files}.items():
        (place / file).write_text(f"{value}\n")
    return place


def test_packages_and_memory_are_read_once_each(tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0", 5_000_000, max_energy_range_uj=RANGE)
    zone(tmp_path, "intel-rapl:0:0", "core")
    zone(tmp_path, "intel-rapl:0:1", "dram", 1_500_000)
    zone(tmp_path, "intel-rapl:1", "package-1", 7_000_000)
    zone(tmp_path, "intel-rapl:2", "psys")
    zone(tmp_path, "intel-rapl-mmio:0", "package-0")
    (tmp_path / "intel-rapl").mkdir()
    meter, absent = open_rapl(tmp_path)
    assert meter is not None and not absent
    found = {sample.device: sample for sample in meter.read()}
    assert {device: sample.energy_j for device, sample in found.items()} == {
        "cpu:package-0": 5.0,
        "cpu:dram-0": 1.5,
        "cpu:package-1": 7.0,
    }
    assert found["cpu:package-0"].wraps_at_j == pytest.approx(262143.328850)
    assert found["cpu:package-1"].wraps_at_j is None


def test_the_highest_limit_counts(tmp_path: Path) -> None:
    limits = {"constraint_0_power_limit_uw": 125_000_000, "constraint_1_power_limit_uw": 241_000_000}
    zone(tmp_path, "intel-rapl:0", "package-0", **limits)
    meter, _ = open_rapl(tmp_path)
    assert meter is not None and meter.read()[0].limit_w == 241.0


def test_the_counter_may_start_again_while_it_is_read(tmp_path: Path) -> None:
    package = zone(tmp_path, "intel-rapl:0", "package-0", 0, max_energy_range_uj=RANGE)
    meter, _ = open_rapl(tmp_path)
    assert meter is not None
    samples = []
    for step in range(30):
        (package / "energy_uj").write_text(str((RANGE - 100_000 + step * 10_000) % RANGE))
        samples += meter.read()
    energy = measure_energy(samples, "cpu:package-0", samples[0].time_s, samples[-1].time_s)
    assert energy.counter_j == pytest.approx(0.29)
    assert "wrapped" in {problem.code for problem in energy.problems}


@contextmanager
def as_nobody() -> Iterator[None]:
    """Drop root's read access."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(before)


def test_counters_for_root_only_are_absent_for_a_reason() -> None:
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # pytest's own folders are closed to others
        package = zone(Path(folder), "intel-rapl:0", "package-0")
        (package / "energy_uj").chmod(0)
        with as_nobody():
            meter, absent = open_rapl(Path(folder))
        assert meter is None
        assert "root only" in absent[0].reason and "chmod a+r" in absent[0].reason


def test_a_machine_without_counters_has_no_rapl_meter(tmp_path: Path) -> None:
    meter, absent = open_rapl(tmp_path / "nothing")
    assert meter is None
    assert "no CPU energy counters" in absent[0].reason


def test_a_counter_that_goes_away_gives_samples_without_energy(tmp_path: Path) -> None:
    package = zone(tmp_path, "intel-rapl:0", "package-0")
    meter, _ = open_rapl(tmp_path)
    (package / "energy_uj").unlink()
    assert meter is not None and [sample.energy_j for sample in meter.read()] == [None]
