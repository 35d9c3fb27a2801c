"""Discovery of meters."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from enginebay.meters.meter_discovery import find_meters, get_gpu_labels
from enginebay.meters.sample import Absent, Sample, list_devices, select_device


def test_what_is_not_read_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    meters, absent = find_meters({"us": os.getpid()})
    names = {meter.name for meter in meters} | {missing.meter for missing in absent}
    assert {"nvml", "rapl", "host"} <= names
    assert all(missing.reason for missing in absent)
    for meter in meters:
        assert meter.read()
        meter.close()


def test_gpus_that_may_not_be_read_are_absent_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)  # would be another reason
    meters, absent = find_meters(gpus=Absent("nvml", "whose it is"))
    assert [missing.reason for missing in absent if missing.meter == "nvml"] == ["whose it is"]
    assert get_gpu_labels(meters) == {}


def test_importing_needs_only_the_standard_library() -> None:
    code = (
        "import sys; before = set(sys.modules)\n"
        "import enginebay.meters.meter_discovery, enginebay.meters.meter_sampler, enginebay.meters.analysis.phase_energy, enginebay.meters.analysis.idle_power\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(new - set(sys.stdlib_module_names) - {'enginebay'}))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_samples_of_one_device_are_in_order() -> None:
    samples = [Sample(2.0, "gpu:1"), Sample(1.0, "gpu:0"), Sample(0.5, "gpu:1"), Sample(2.0, "gpu:1", power_w=5.0)]
    assert list_devices(samples, "gpu:") == ["gpu:0", "gpu:1"]
    assert select_device(samples, "gpu:1") == [samples[2], samples[3]]
