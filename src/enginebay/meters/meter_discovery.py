"""The meters that work on this machine, and why the others do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from enginebay.meters.devices.host_meter import open_host_meter
from enginebay.meters.devices.nvml_meter import NvmlMeter, open_nvml
from enginebay.meters.devices.rapl_meter import open_rapl
from enginebay.meters.sample import Absent, Meter


def find_meters(
    trees: Mapping[str, int] | None = None, gpus: Sequence[int] | Absent | None = None
) -> tuple[list[Meter], list[Absent]]:
    """Everything that can be read here. `trees`: process trees to follow, name to root; `gpus`: only these, or why none."""
    meters: list[Meter] = []
    absent: list[Absent] = []
    nvml: tuple[NvmlMeter | None, list[Absent]] = (None, [gpus]) if isinstance(gpus, Absent) else open_nvml(gpus)
    for meter, missing in (nvml, open_rapl(), open_host_meter(trees)):
        if meter is not None:
            meters.append(meter)
        absent.extend(missing)
    return meters, absent


def get_gpu_labels(meters: Sequence[Meter]) -> dict[str, str]:
    """Of each GPU that is read: the product's name and its UUID."""
    return {device: label for meter in meters if isinstance(meter, NvmlMeter) for device, label in meter.labels.items()}
