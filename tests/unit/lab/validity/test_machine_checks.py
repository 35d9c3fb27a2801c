from __future__ import annotations

from dataclasses import dataclass

import pytest

from enginebay.lab.validity.machine_checks import machine_busy, thermal_drift, throttled
from enginebay.lab.validity.verdict import FINE, UNKNOWN, Finding, Reason
from enginebay.meters.devices.nvml_meter import THROTTLE_REASONS
from enginebay.meters.sample import Sample
from tests.unit.lab.validity.judged_runs import make_closed_loop, make_open_loop, make_record


def severity(finding: Finding) -> str:
    return finding.severity if isinstance(finding, Reason) else finding.value


@dataclass(frozen=True)
class Course:
    """A device over the window: temperature and clock change linearly."""

    warmth: tuple[float, float] = (60.0, 60.0)
    clock: tuple[float, float] = (1.5e9, 1.5e9)
    throttle: tuple[str, ...] = ()
    throttled: int = 0  # how many of the samples
    device: str = "gpu:0"

    def samples(self, count: int = 200) -> list[Sample]:
        shares = [index / (count - 1) for index in range(count)]
        return [
            Sample(
                index * 0.1,
                self.device,
                temperature_c=self.warmth[0] + share * (self.warmth[1] - self.warmth[0]),
                sm_clock_hz=self.clock[0] + share * (self.clock[1] - self.clock[0]),
                throttle=self.throttle if index < self.throttled else (),
            )
            for index, share in enumerate(shares)
        ]


@pytest.mark.parametrize(
    ("share", "expected"), [(0.01, "fine"), (0.1, "informative"), (0.2, "invalid"), (None, "unknown")]
)
def test_others_on_the_cores(share: float | None, expected: str) -> None:
    assert severity(machine_busy(make_open_loop(others_busy=share))) == expected


@pytest.mark.parametrize(("share", "expected"), [(0.0, "fine"), (0.05, "informative"), (0.3, "invalid")])
def test_others_on_a_gpu(share: float, expected: str) -> None:
    found = machine_busy(make_open_loop(others_busy=0.0, idle_gpu_busy={"gpu:0": 0.0, "gpu:1": share}))
    assert severity(found) == expected
    assert not isinstance(found, Reason) or "gpu:1" in found.message


@pytest.mark.parametrize(
    ("in_flight", "expected"),
    [
        (0.0, "fine"),
        (2.0, "fine"),
        (4.0, "fine"),
        (4.1, "fine"),
        (4.4, "informative"),
        (7.0, "invalid"),
        (None, "unknown"),
    ],
)
def test_others_at_the_server(in_flight: float | None, expected: str) -> None:
    """Four are in flight. The server counts less because of network time, which is no fault."""
    assert severity(machine_busy(make_closed_loop(server_in_flight=in_flight))) == expected


def test_a_server_may_notice_the_end_of_short_requests_late() -> None:
    quick = [make_record(index, index / 100, 0.01, sent_s=index / 100) for index in range(1000)]
    assert machine_busy(make_open_loop(quick, window_s=10.0, server_in_flight=1.4)) is FINE
    assert severity(machine_busy(make_open_loop(quick, window_s=10.0, server_in_flight=1.9))) == "invalid"
    assert machine_busy(make_open_loop(quick, window_s=None, server_in_flight=9.0)) is UNKNOWN


@pytest.mark.parametrize(
    ("course", "expected"),
    [
        (Course(), "fine"),
        (Course(warmth=(60, 65)), "fine"),
        (Course(warmth=(50, 70)), "informative"),
        (Course(warmth=(70, 50)), "informative"),
        (Course(warmth=(50, 70), clock=(1.5e9, 1.4e9)), "invalid"),
        (Course(warmth=(60, 61), clock=(1.5e9, 1.2e9)), "fine"),  # the load fell, not the device
    ],
)
def test_devices_that_grow_warm(course: Course, expected: str) -> None:
    steady = Course(device="gpu:1")
    assert severity(thermal_drift(make_open_loop(samples=[*steady.samples(), *course.samples()]))) == expected


def test_too_few_temperature_samples() -> None:
    assert thermal_drift(make_open_loop()) is UNKNOWN
    assert thermal_drift(make_open_loop(samples=[Sample(index / 10, "host") for index in range(100)])) is UNKNOWN
    assert thermal_drift(make_open_loop(samples=Course(warmth=(20, 90)).samples(5))) is UNKNOWN


@pytest.mark.parametrize(
    ("names", "count", "expected"),
    [
        (("thermal_hardware",), 0, "fine"),
        (("hardware_slowdown",), 20, "invalid"),
        (("thermal_hardware",), 1, "informative"),
        (("thermal_software",), 20, "invalid"),
        (("power_brake",), 20, "invalid"),
        (("power_cap",), 200, "fine"),
        (("clocks_set", "sync_boost"), 200, "fine"),
    ],
)
def test_devices_that_were_slowed_down(names: tuple[str, ...], count: int, expected: str) -> None:
    assert set(names) <= set(THROTTLE_REASONS.values())  # the meter's own words
    course = Course(throttle=names, throttled=count)
    assert severity(throttled(make_open_loop(samples=course.samples()))) == expected


def test_a_meter_that_does_not_look_at_throttling() -> None:
    assert throttled(make_open_loop(samples=[Sample(0.0, "cpu:package-0", energy_j=1.0)])) is UNKNOWN
    assert throttled(make_open_loop()) is UNKNOWN
    assert throttled(make_open_loop(samples=[*Course().samples(), Sample(0.0, "host")])) is FINE
