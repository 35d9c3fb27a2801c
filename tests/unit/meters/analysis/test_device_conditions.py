"""Utilization, clocks and temperature of a device."""

from __future__ import annotations

import pytest

from enginebay.meters.analysis.device_conditions import DeviceConditions, summarize_conditions
from enginebay.meters.sample import Sample


def heating(time_s: float) -> Sample:
    """Heats up by a degree per second; throttles from second 8."""
    late = time_s >= 8
    return Sample(
        time_s,
        "gpu:0",
        utilisation=0.5 if late else 1.0,
        memory_bytes=int(time_s) << 20,
        sm_clock_hz=1.5e9 if late else 2.0e9,
        temperature_c=50 + time_s,
        throttle=("thermal_software",) if late else (),
    )


def test_a_window_is_summed_up_over_time() -> None:
    found = summarize_conditions([heating(n / 10) for n in range(-20, 120)], "gpu:0", 0.0, 10.0)
    assert found.utilisation == pytest.approx(0.9)
    assert found.sm_clock_hz == pytest.approx(1.9e9)
    assert found.lowest_sm_clock_hz == 1.5e9
    assert found.sm_clock_drift == pytest.approx(-0.25)
    assert found.temperature_c == pytest.approx(54.95)
    assert found.temperature_drift_c == pytest.approx(8.0)
    assert found.peak_memory_bytes == 9 << 20
    assert found.throttled == pytest.approx({"thermal_software": 0.2})


def test_a_burst_of_samples_counts_no_more_than_its_time() -> None:
    times = sorted({n / 10 for n in range(101)} | {9 + n / 1000 for n in range(500)})
    found = summarize_conditions([heating(time_s) for time_s in times], "gpu:0", 0.0, 10.0)
    assert found.utilisation == pytest.approx(0.9)


def test_what_was_not_read_is_not_there() -> None:
    assert summarize_conditions([heating(1.0)], "gpu:1", 0.0, 10.0) == DeviceConditions()
    assert summarize_conditions([heating(20.0)], "gpu:0", 0.0, 10.0) == DeviceConditions()
    bare = summarize_conditions(
        [Sample(0.0, "cpu:package-0", energy_j=5.0), Sample(1.0, "cpu:package-0")], "cpu:package-0", 0, 1
    )
    assert bare == DeviceConditions()
