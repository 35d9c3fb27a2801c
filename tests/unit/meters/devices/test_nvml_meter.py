"""GPUs by NVML, with a fake driver behind the real module's names."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from enginebay.meters.devices.nvml_meter import THROTTLE_REASONS, decode_throttle_reasons, open_nvml_meter


class Driver:
    """Two GPUs; calls in `refused` are unsupported."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.refused: set[str] = set()
        self.energy_mj = {0: 5_000_000, 1: 9_000_000}
        self.instant = SimpleNamespace(
            nvmlReturn=pynvml.NVML_SUCCESS,
            valueType=pynvml.NVML_VALUE_TYPE_UNSIGNED_INT,
            value=SimpleNamespace(uiVal=412_500),
        )
        self.shut = 0
        answers: dict[str, Callable[..., Any]] = {
            "nvmlInit": lambda: None,
            "nvmlDeviceGetCount": lambda: 2,
            "nvmlDeviceGetHandleByIndex": self._handle,
            "nvmlDeviceGetTotalEnergyConsumption": lambda gpu: self.energy_mj[gpu],
            "nvmlDeviceGetFieldValues": lambda gpu, fields: [self.instant for _ in fields],
            "nvmlDeviceGetPowerUsage": lambda gpu: 398_000,
            "nvmlDeviceGetEnforcedPowerLimit": lambda gpu: 700_000,
            "nvmlDeviceGetUtilizationRates": lambda gpu: SimpleNamespace(gpu=87, memory=40),
            "nvmlDeviceGetMemoryInfo": lambda gpu: SimpleNamespace(used=64 << 30, total=141 << 30),
            "nvmlDeviceGetClockInfo": lambda gpu, kind: {pynvml.NVML_CLOCK_SM: 1980}[kind],
            "nvmlDeviceGetTemperature": lambda gpu, sensor: {pynvml.NVML_TEMPERATURE_GPU: 61}[sensor],
            "nvmlDeviceGetCurrentClocksEventReasons": lambda gpu: (
                pynvml.nvmlClocksEventReasonGpuIdle | pynvml.nvmlClocksEventReasonSwPowerCap
            ),
            "nvmlDeviceGetCurrentClocksThrottleReasons": lambda gpu: pynvml.nvmlClocksThrottleReasonHwSlowdown,
            "nvmlDeviceGetName": lambda gpu: "NVIDIA H200",
            "nvmlDeviceGetUUID": lambda gpu: f"GPU-{gpu}",
            "nvmlShutdown": self._shutdown,
        }
        for name, answer in answers.items():
            monkeypatch.setattr(pynvml, name, self._guarded(name, answer))

    def _guarded(self, name: str, answer: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            if name in self.refused:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
            return answer(*args)

        return call

    def _handle(self, index: int) -> int:
        if index not in self.energy_mj:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return index

    def _shutdown(self) -> None:
        self.shut += 1


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    return Driver(monkeypatch)


def test_a_gpu_reports_everything_in_si_units(driver: Driver) -> None:
    meter, absent = open_nvml_meter()
    assert meter is not None and not absent
    first, second = meter.read()
    assert (first.device, first.energy_j, second.device, second.energy_j) == ("gpu:0", 5000.0, "gpu:1", 9000.0)
    assert (first.power_w, first.limit_w, first.utilisation) == (412.5, 700.0, 0.87)
    assert (first.memory_bytes, first.sm_clock_hz, first.temperature_c) == (64 << 30, 1.98e9, 61.0)
    assert first.throttle == ("power_cap",)
    assert meter.labels["gpu:1"] == "NVIDIA H200 GPU-1"
    driver.energy_mj[0] = 5_000_700
    assert meter.read()[0].energy_j == 5000.7
    meter.close()
    assert driver.shut == 1


def test_only_the_selected_gpus_are_read(driver: Driver) -> None:
    meter, _ = open_nvml_meter([1])
    assert meter is not None and [sample.device for sample in meter.read()] == ["gpu:1"]


def test_a_missing_gpu_is_reported(driver: Driver) -> None:
    meter, absent = open_nvml_meter([7])
    assert meter is None
    assert "Invalid Argument" in absent[0].reason
    assert driver.shut == 1


def test_unsupported_figures_are_absent_with_a_reason(driver: Driver) -> None:
    driver.refused = {"nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetUtilizationRates"}
    meter, absent = open_nvml_meter([0])
    assert meter is not None
    sample = meter.read()[0]
    assert sample.energy_j is None and sample.utilisation is None and sample.power_w == 412.5
    assert [missing.meter for missing in absent] == ["nvml gpu:0 energy", "nvml gpu:0 utilisation"]
    assert "Not Supported" in absent[0].reason


@pytest.mark.parametrize(
    "field", [{"nvmlReturn": pynvml.NVML_ERROR_NOT_SUPPORTED}, {"valueType": pynvml.NVML_VALUE_TYPE_DOUBLE}]
)
def test_older_gpus_give_the_mean_power(driver: Driver, field: dict[str, int]) -> None:
    vars(driver.instant).update(field)
    meter, absent = open_nvml_meter([0])
    assert meter is not None and not absent
    assert meter.read()[0].power_w == 398.0


def test_an_older_package_without_the_field_gives_the_mean_power(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(pynvml, "NVML_FI_DEV_POWER_INSTANT")
    meter, _ = open_nvml_meter([0])
    assert meter is not None and meter.read()[0].power_w == 398.0


def test_older_drivers_report_throttling_by_its_old_name(driver: Driver) -> None:
    driver.refused = {"nvmlDeviceGetCurrentClocksEventReasons"}
    meter, absent = open_nvml_meter([0])
    assert meter is not None and not absent
    assert meter.read()[0].throttle == ("hardware_slowdown",)


def test_a_gpu_that_stops_answering_gives_samples_without_figures(driver: Driver) -> None:
    meter, _ = open_nvml_meter([0])
    driver.refused = {name for name in dir(pynvml) if name.startswith("nvmlDevice")} | {"nvmlShutdown"}
    assert meter is not None
    sample = meter.read()[0]
    assert (sample.energy_j, sample.power_w, sample.memory_bytes, sample.throttle) == (None, None, None, ())
    meter.close()


def test_no_driver_no_package_and_no_gpu_have_different_reasons(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: 0)
    assert "finds no GPU" in open_nvml_meter()[1][0].reason
    driver.refused = {"nvmlInit"}
    assert "cannot be initialized" in open_nvml_meter()[1][0].reason
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "nvidia-ml-py" in open_nvml_meter()[1][0].reason


def test_every_reason_for_lower_clocks_has_a_name() -> None:
    known = pynvml.nvmlClocksThrottleReasonAll & ~pynvml.nvmlClocksThrottleReasonGpuIdle
    assert sum(THROTTLE_REASONS) == known
    assert decode_throttle_reasons(pynvml.nvmlClocksThrottleReasonSwThermalSlowdown | 0x80) == (
        "thermal_software",
        "power_brake",
    )
    assert decode_throttle_reasons(pynvml.nvmlClocksThrottleReasonGpuIdle) == ()
