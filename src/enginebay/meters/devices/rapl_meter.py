"""CPU energy counters (RAPL) from /sys/class/powercap; AMD CPUs also appear under Intel's name."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from enginebay.meters.sample import Absent, Sample

POWERCAP = Path("/sys/class/powercap")
_ZONE_PREFIXES = ("package", "dram")  # core and uncore are parts of the package; psys includes it


@dataclass(frozen=True, slots=True)
class _Zone:
    device: str
    counter: Path
    wraps_at_j: float | None
    limit_w: float | None


class RaplMeter:
    """Energy of CPU packages, and of memory if counted separately."""

    name = "rapl"

    def __init__(self, zones: list[_Zone]) -> None:
        self._zones = tuple(zones)

    def read(self) -> list[Sample]:
        return [self._read_zone(zone) for zone in self._zones]

    def close(self) -> None:
        pass

    def _read_zone(self, zone: _Zone) -> Sample:
        before_s = time.monotonic()
        micro = _read_integer(zone.counter)
        after_s = time.monotonic()
        return Sample(
            time_s=(before_s + after_s) / 2,
            device=zone.device,
            energy_j=None if micro is None else micro / 1e6,
            wraps_at_j=zone.wraps_at_j,
            limit_w=zone.limit_w,
        )


def open_rapl(root: Path = POWERCAP) -> tuple[RaplMeter | None, list[Absent]]:
    """Open a meter of this machine's CPUs, or return why there is none."""
    folders = sorted(root.glob("intel-rapl:*"))  # intel-rapl-mmio:* repeats the same packages
    zones, unreadable = [], []
    for folder in folders:
        if not _read_zone_name(folder).startswith(_ZONE_PREFIXES):
            continue
        counter = folder / "energy_uj"
        try:
            int(counter.read_text())
        except PermissionError:
            unreadable.append(counter)
        except (OSError, ValueError):
            continue
        else:
            zones.append(_open_zone(folder))
    absent = [Absent("rapl", _explain_permission(unreadable))] if unreadable else []
    if zones:
        return RaplMeter(zones), absent
    return None, absent or [Absent("rapl", f"no CPU energy counters under {root}")]


def _open_zone(folder: Path) -> _Zone:
    highest_uj = _read_integer(folder / "max_energy_range_uj")
    limits = [_read_integer(path) for path in folder.glob("constraint_*_power_limit_uw")]
    limit_w = max((limit / 1e6 for limit in limits if limit), default=None)
    return _Zone(_format_device(folder), folder / "energy_uj", highest_uj / 1e6 if highest_uj else None, limit_w)


def _format_device(folder: Path) -> str:
    """Return cpu:package-0, cpu:dram-0: a memory zone is named after its package."""
    name = _read_zone_name(folder)
    return f"cpu:{name}" if "-" in name else f"cpu:{name}-{folder.name.split(':')[1]}"


def _read_zone_name(folder: Path) -> str:
    try:
        return (folder / "name").read_text().strip()
    except OSError:
        return ""


def _read_integer(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _explain_permission(counters: list[Path]) -> str:
    return (
        f"{counters[0]} is readable by root only: run as root, or allow reading until the next boot with "
        f"`sudo chmod a+r {counters[0].parent.parent}/intel-rapl:*/energy_uj`"
    )
