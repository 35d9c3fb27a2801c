"""Print a throughput study as a table: means per system and load, and paired ratios of `ours` to the others.

python -m bench.gpu.throughput_table FOLDER/runs.jsonl
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from enginebay.lab.statistics.confidence_intervals import ratio_interval
from enginebay.lab.statistics.paired_comparison import pair_by_cycle

RunRecord = Mapping[str, Any]
_OURS = "ours"


@dataclass(frozen=True, slots=True)
class _Figure:
    title: str
    digits: int
    read: Callable[[RunRecord], float | None]  # None: not in this run


def _read_field(name: str, scale: float = 1.0) -> Callable[[RunRecord], float | None]:
    return lambda run: run[name] * scale if name in run else None


def _sum_other_cores(run: RunRecord) -> float | None:
    return sum(used for kind, used in run["cores"].items() if kind != "engine") if "cores" in run else None


def _read_engine_cores(run: RunRecord) -> float | None:
    return _read_field("engine")(run.get("cores", {}))


def _compute_energy_per_token(run: RunRecord) -> float | None:
    return run["gpu_energy_j"] / run["output_tokens"] if run.get("output_tokens") and "gpu_energy_j" in run else None


_FIGURES = (
    _Figure("output tok/s", 0, _read_field("output_tokens_per_s")),
    _Figure("median TTFT, ms", 1, _read_field("ttft_median_s", 1e3)),
    _Figure("p95 TTFT, ms", 1, _read_field("ttft_p95_s", 1e3)),
    _Figure("cores, non-engine", 2, _sum_other_cores),
    _Figure("cores, engine", 2, _read_engine_cores),
    _Figure("GPU J/output token", 4, _compute_energy_per_token),
)


def build_rows(runs: Iterable[RunRecord]) -> list[str]:
    """Return a line for each load, figure and system. Pure."""
    measured = [run for run in runs if run["load"] != "warm-up"]
    table: dict[tuple[str, _Figure], dict[str, dict[int, float]]] = {}
    for load in dict.fromkeys(run["load"] for run in measured):
        for figure, run in product(_FIGURES, (run for run in measured if run["load"] == load)):
            if (value := figure.read(run)) is not None:
                by_system = table.setdefault((load, figure), {})
                by_system.setdefault(run["system"], {})[run["cycle"]] = value
    return [
        f"{load:<12}{figure.title:<20}{system:<26}{fmean(values.values()):>12,.{figure.digits}f}"
        f"  n={len(values)}{_format_ratio(by_system.get(_OURS), values, system)}"
        for (load, figure), by_system in table.items()
        for system, values in by_system.items()
    ]


def _format_ratio(ours: Mapping[int, float] | None, theirs: Mapping[int, float], system: str) -> str:
    if ours is None or system == _OURS:
        return ""
    mine, other = pair_by_cycle(ours, theirs)
    ratio = ratio_interval(other, mine) if len(mine) > 1 else None
    if ratio is None or ratio.low is None or ratio.high is None:
        return ""
    return f"   ours / it {ratio.estimate:.3f} [{ratio.low:.3f}, {ratio.high:.3f}] of {len(mine)} pairs"


if __name__ == "__main__":
    print("\n".join(build_rows(json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines())))
