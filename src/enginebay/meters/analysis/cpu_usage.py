"""CPU time and peak memory from host samples."""

from __future__ import annotations

from collections.abc import Sequence

from enginebay.meters.analysis.interpolation import covers_window, interpolate
from enginebay.meters.devices.host_meter import HOST, TREE_PREFIX
from enginebay.meters.sample import Sample, list_devices, select_device


def measure_cpu_s(samples: Sequence[Sample], device: str, start_s: float, end_s: float) -> float | None:
    """Return the CPU time of the machine or a tree in a window; None if the samples do not cover it."""
    own = [(s.time_s, s.cpu_s) for s in select_device(samples, device) if s.cpu_s is not None]
    times, values = [time_s for time_s, _ in own], [value for _, value in own]
    if not covers_window(times, start_s, end_s):
        return None
    return interpolate(times, values, end_s) - interpolate(times, values, start_s)


def measure_cpu_share(samples: Sequence[Sample], device: str, start_s: float, end_s: float, cores: int) -> float | None:
    """Return the share of all cores that the device used, 0 to 1."""
    used_s = measure_cpu_s(samples, device, start_s, end_s)
    return None if used_s is None or end_s <= start_s else used_s / ((end_s - start_s) * cores)


def measure_other_cpu_share(samples: Sequence[Sample], start_s: float, end_s: float, cores: int) -> float | None:
    """Return the share of all cores used outside the followed trees."""
    total = measure_cpu_share(samples, HOST, start_s, end_s, cores)
    own = [measure_cpu_share(samples, tree, start_s, end_s, cores) for tree in list_devices(samples, TREE_PREFIX)]
    known = [share for share in own if share is not None]
    return None if total is None or len(known) < len(own) else max(total - sum(known), 0.0)


def find_peak_memory_bytes(samples: Sequence[Sample], device: str, start_s: float, end_s: float) -> int | None:
    """Return the highest memory use sampled in a window; peaks between samples are not seen."""
    seen = [s.memory_bytes for s in samples if s.device == device and start_s <= s.time_s <= end_s]
    return max((held for held in seen if held is not None), default=None)
