"""The table of a study: means of every system under every load, and ours against each of the others by pairs of runs.

python -m bench.gpu.table FOLDER/runs.jsonl
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

from enginebay.lab.statistics.compare import pairs_by_cycle
from enginebay.lab.statistics.intervals import ratio_interval

Run = Mapping[str, Any]
_OURS = "ours"


@dataclass(frozen=True, slots=True)
class _Figure:
    title: str
    digits: int
    of: Callable[[Run], float | None]  # None: this run does not have it


def _known(name: str, scale: float = 1.0) -> Callable[[Run], float | None]:
    return lambda run: run[name] * scale if name in run else None


def _beside_the_engine(run: Run) -> float | None:
    return sum(used for kind, used in run["cores"].items() if kind != "engine") if "cores" in run else None


def _of_the_engine(run: Run) -> float | None:
    return _known("engine")(run.get("cores", {}))


def _joules(run: Run) -> float | None:
    return run["gpu_energy_j"] / run["output_tokens"] if run.get("output_tokens") and "gpu_energy_j" in run else None


_FIGURES = (
    _Figure("output tok/s", 0, _known("output_tokens_per_s")),
    _Figure("median TTFT, ms", 1, _known("ttft_median_s", 1e3)),
    _Figure("p95 TTFT, ms", 1, _known("ttft_p95_s", 1e3)),
    _Figure("cores but engine's", 2, _beside_the_engine),
    _Figure("cores of engine", 2, _of_the_engine),
    _Figure("GPU J/output token", 4, _joules),
)


def rows(runs: Iterable[Run]) -> list[str]:
    """A line for each load, figure and system. Pure."""
    measured = [run for run in runs if run["load"] != "warm-up"]
    found: dict[tuple[str, _Figure], dict[str, dict[int, float]]] = {}
    for load in dict.fromkeys(run["load"] for run in measured):
        for figure, run in product(_FIGURES, (run for run in measured if run["load"] == load)):
            if (value := figure.of(run)) is not None:
                by_system = found.setdefault((load, figure), {})
                by_system.setdefault(run["system"], {})[run["cycle"]] = value
    return [
        f"{load:<12}{figure.title:<20}{system:<26}{fmean(values.values()):>12,.{figure.digits}f}"
        f"  n={len(values)}{_against(by_system.get(_OURS), values, system)}"
        for (load, figure), by_system in found.items()
        for system, values in by_system.items()
    ]


def _against(ours: Mapping[int, float] | None, theirs: Mapping[int, float], system: str) -> str:
    if ours is None or system == _OURS:
        return ""
    mine, other = pairs_by_cycle(ours, theirs)
    ratio = ratio_interval(other, mine) if len(mine) > 1 else None
    if ratio is None or ratio.low is None or ratio.high is None:
        return ""
    return f"   ours / it {ratio.estimate:.3f} [{ratio.low:.3f}, {ratio.high:.3f}] of {len(mine)} pairs"


if __name__ == "__main__":
    print("\n".join(rows(json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines())))
