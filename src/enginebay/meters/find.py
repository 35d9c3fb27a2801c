"""The meters that work on this machine, and why the others do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from enginebay.meters.host import open_host
from enginebay.meters.nvml import open_nvml
from enginebay.meters.rapl import open_rapl
from enginebay.meters.sample import Absent, Meter


def find_meters(
    trees: Mapping[str, int] | None = None, gpus: Sequence[int] | None = None
) -> tuple[list[Meter], list[Absent]]:
    """Everything that can be read here. `trees`: process trees to follow, name to root; `gpus`: only these."""
    meters: list[Meter] = []
    absent: list[Absent] = []
    for meter, missing in (open_nvml(gpus), open_rapl(), open_host(trees)):
        if meter is not None:
            meters.append(meter)
        absent.extend(missing)
    return meters, absent
