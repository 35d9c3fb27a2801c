"""Discover the meters that work on this machine, and why others do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from enginebay.meters.devices.host_meter import open_host_meter
from enginebay.meters.devices.nvml_meter import NvmlMeter, open_nvml_meter
from enginebay.meters.devices.rapl_meter import open_rapl
from enginebay.meters.sample import Absent, Meter


def find_meters(
    trees: Mapping[str, int] | None = None, gpus: Sequence[int] | Absent | None = None
) -> tuple[list[Meter], list[Absent]]:
    """Open all meters. `trees`: process trees to follow, name to root; `gpus`: GPU indexes, or why there are none."""
    meters: list[Meter] = []
    absent: list[Absent] = []
    nvml: tuple[NvmlMeter | None, list[Absent]] = (None, [gpus]) if isinstance(gpus, Absent) else open_nvml_meter(gpus)
    for meter, missing in (nvml, open_rapl(), open_host_meter(trees)):
        if meter is not None:
            meters.append(meter)
        absent.extend(missing)
    return meters, absent


def get_gpu_labels(meters: Sequence[Meter]) -> dict[str, str]:
    """Return the product name and UUID of each metered GPU."""
    return {device: label for meter in meters if isinstance(meter, NvmlMeter) for device, label in meter.labels.items()}
