"""Print the runs of a comparison as one Markdown table.

    python -m bench.gpu.compare_table --runs DIR [STUDY...]

Means over cycles with 95% intervals; ratios are paired, against the first engine with the same load.
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
    """Return Markdown lines, a row for each engine and settings under one load. Reads the response files for parity."""
    groups = group_runs(runs)
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
    for group in groups:
        first = next(other for other in groups if has_same_workload(group, other))
        (mean,) = aggregate_runs(group.runs)
        comparison = None if first is group else compare_groups(first, group)
        figures = [_format_figure(mean["figures"].get(name), scale) for _, name, scale in _COLUMNS]
        against_first = (
            ["", ""]
            if comparison is None
            else [_format_ratio(comparison["figures"]), _format_parity(comparison["parity"])]
        )
        counted = f"{len(group.counted)} of {len(group.runs)}"
        lines.append(
            _format_line([mean["label"], mean["model"], counted, *figures, *against_first, _summarize_verdict(group)])
        )
    return lines


def _format_line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _format_figure(figure: Mapping[str, Any] | None, scale: float) -> str:
    if figure is None:
        return "–"
    low, high = figure["low"], figure["high"]
    ends = "" if low is None or high is None else f" [{_format_number(low * scale)}, {_format_number(high * scale)}]"
    return f"{_format_number(figure['estimate'] * scale)}{ends}"


def _format_ratio(figures: Mapping[str, Mapping[str, Any]]) -> str:
    throughput = figures.get("output_tokens_per_s")
    return "–" if throughput is None else _format_figure(throughput["ratio"], 1.0)


def _format_number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _format_parity(parity: Mapping[str, Any] | None) -> str:
    if parity is None:
        return "–"
    distance = parity["logprob_distance"]
    nats = "" if distance is None else f"{distance:.2g} nats, "
    return f"{nats}{parity['identical_answers']:.0%} identical"


def _summarize_verdict(group: RunGroup) -> str:
    """Return the worst status, and each reason with its number of runs."""
    reasons: dict[str, int] = {}
    for run in group.runs:
        for code in {str(reason["code"]) for reason in run.reasons}:
            reasons[code] = reasons.get(code, 0) + 1
    why = ", ".join(f"{code} ({count})" for code, count in reasons.items())
    return group.status + (f": {why}" if why else "")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("studies", nargs="*", metavar="STUDY")
    parser.add_argument("--runs", type=Path, required=True)
    args = parser.parse_args()
    runs, problems = list_runs(args.runs)
    selected = [run for run in runs if not args.studies or run.study_id in args.studies]
    print("\n".join(build_table(selected)) if selected else "no runs")
    for problem in problems:
        print(problem.message)
    return int(not selected)


if __name__ == "__main__":
    sys.exit(main())
