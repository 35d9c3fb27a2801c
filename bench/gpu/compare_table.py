"""The runs of a comparison as one table, for a document and for the end of a log.

    python -m bench.gpu.compare_table --runs DIR [STUDY...]

Means over the cycles with 95% intervals; the ratio is by pairs, against the first engine that had the same load.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from enginebay.lab.statistics.run_comparison import compare_groups
from enginebay.lab.statistics.run_groups import RunGroup, aggregate_runs, group_runs, has_same_workload
from enginebay.lab.store.run_reader import Run, list_runs

_COLUMNS = (
    ("output tok/s", "output_tokens_per_s", 1.0),
    ("median TTFT, ms", "ttft_s.median", 1e3),
    ("median ITL, ms", "itl_s.median", 1e3),
    ("median TPOT, ms", "tpot_s.median", 1e3),
    ("GPU J/output token", "gpu_j_per_output_token", 1.0),
)


def build_table(runs: Sequence[Run]) -> list[str]:
    """Lines of Markdown, a row for each engine with its settings under one load. Pure but for the answers' files."""
    found = group_runs(runs)
    head = [
        "",
        "model",
        "runs counted",
        *(title for title, _, _ in _COLUMNS),
        "tok/s / first",
        "parity with first",
        "verdict",
    ]
    lines = [_format_line(head), _format_line(["---"] * len(head))]
    for point in found:
        first = next(other for other in found if has_same_workload(point, other))
        (mean,) = aggregate_runs(point.runs)
        against = None if first is point else compare_groups(first, point)
        figures = [_format_figure(mean["figures"].get(name), scale) for _, name, scale in _COLUMNS]
        beside = ["", ""] if against is None else [_format_ratio(against["figures"]), _format_parity(against["parity"])]
        counted = f"{len(point.counted)} of {len(point.runs)}"
        lines.append(
            _format_line([mean["label"], mean["model"], counted, *figures, *beside, _summarize_verdict(point)])
        )
    return lines


def _format_line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _format_figure(found: Mapping[str, Any] | None, scale: float) -> str:
    if found is None:
        return "–"
    low, high = found["low"], found["high"]
    ends = "" if low is None or high is None else f" [{_format_number(low * scale)}, {_format_number(high * scale)}]"
    return f"{_format_number(found['estimate'] * scale)}{ends}"


def _format_ratio(figures: Mapping[str, Mapping[str, Any]]) -> str:
    found = figures.get("output_tokens_per_s")
    return "–" if found is None else _format_figure(found["ratio"], 1.0)


def _format_number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _format_parity(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return "–"
    distance = found["logprob_distance"]
    nats = "" if distance is None else f"{distance:.2g} nats, "
    return f"{nats}{found['identical_answers']:.0%} identical"


def _summarize_verdict(point: RunGroup) -> str:
    """The worst of its runs, and every reason for it with the number of runs that have it."""
    reasons: dict[str, int] = {}
    for run in point.runs:
        for code in {str(reason["code"]) for reason in run.reasons}:
            reasons[code] = reasons.get(code, 0) + 1
    why = ", ".join(f"{code} ({count})" for code, count in reasons.items())
    return point.status + (f": {why}" if why else "")


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("studies", nargs="*", metavar="STUDY")
    options.add_argument("--runs", type=Path, required=True)
    given = options.parse_args()
    runs, problems = list_runs(given.runs)
    chosen = [run for run in runs if not given.studies or run.study_id in given.studies]
    print("\n".join(build_table(chosen)) if chosen else "there are no runs")
    for problem in problems:
        print(problem.message)
    return int(not chosen)


if __name__ == "__main__":
    sys.exit(main())
