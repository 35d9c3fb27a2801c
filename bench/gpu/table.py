"""The table of a study: means of every system under every load, and ours against each of the others by pairs of runs.

python -m bench.gpu.table FOLDER/runs.jsonl
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from enginebay.lab.statistics.compare import pairs_by_cycle
from enginebay.lab.statistics.intervals import ratio_interval

_FIGURES = {"output_tokens_per_s": "output tok/s", "ttft_median_s": "median TTFT", "ttft_p95_s": "p95 TTFT"}
_OURS = "ours"


def rows(runs: Iterable[Mapping[str, Any]]) -> list[str]:
    """A line for each load, figure and system."""
    found: dict[tuple[str, str], dict[str, dict[int, float]]] = {}
    for run in runs:
        for figure in _FIGURES:
            if figure in run and run["load"] != "warm-up":
                by_system = found.setdefault((run["load"], figure), {})
                by_system.setdefault(run["system"], {})[run["cycle"]] = run[figure]
    return [
        f"{load:<12}{_FIGURES[figure]:<14}{system:<26}{fmean(values.values()):>12,.3f}"
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
