"""All figures of runs repeated over cycles: their intervals, and how two engines compare in each. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from enginebay.lab.measures.flat_figures import flatten_figures
from enginebay.lab.statistics.confidence_intervals import ConfidenceInterval, mean_interval
from enginebay.lab.statistics.paired_comparison import PairedComparison, compare_pairs, pair_by_cycle


def compute_cycle_intervals(runs: Sequence[Mapping[str, Any]]) -> dict[str, ConfidenceInterval]:
    """The mean over cycles of each figure that a run has; an interval's count says how many had it."""
    figures = [flatten_figures(measures) for measures in runs]
    names = dict.fromkeys(name for one in figures for name in one)
    return {name: mean_interval([one[name] for one in figures if name in one]) for name in names}


def compare_cycles(
    a: Mapping[int, Mapping[str, Any]], b: Mapping[int, Mapping[str, Any]]
) -> dict[str, PairedComparison]:
    """The measures of two engines by cycle, in each figure that both have in a common cycle."""
    pairs_a, pairs_b = pair_by_cycle(a, b)
    pairs = [(flatten_figures(x), flatten_figures(y)) for x, y in zip(pairs_a, pairs_b, strict=True)]
    names = dict.fromkeys(name for x, y in pairs for name in x if name in y)
    found = {}
    for name in names:
        both = [(x[name], y[name]) for x, y in pairs if name in x and name in y]
        found[name] = compare_pairs([x for x, _ in both], [y for _, y in both])
    return found
