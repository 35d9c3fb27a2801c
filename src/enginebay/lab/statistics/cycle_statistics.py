"""Intervals over cycles and engine comparisons, for all figures of repeated runs. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from enginebay.lab.measures.flat_figures import flatten_figures
from enginebay.lab.statistics.confidence_intervals import ConfidenceInterval, mean_interval
from enginebay.lab.statistics.paired_comparison import PairedComparison, compare_pairs, pair_by_cycle


def compute_cycle_intervals(runs: Sequence[Mapping[str, Any]]) -> dict[str, ConfidenceInterval]:
    """Return the mean over cycles of each figure; an interval's count is the number of runs that have it."""
    figures = [flatten_figures(measures) for measures in runs]
    names = dict.fromkeys(name for run in figures for name in run)
    return {name: mean_interval([run[name] for run in figures if name in run]) for name in names}


def compare_cycles(
    a: Mapping[int, Mapping[str, Any]], b: Mapping[int, Mapping[str, Any]]
) -> dict[str, PairedComparison]:
    """Compare two engines' measures by cycle, in each figure that both have in a common cycle."""
    pairs_a, pairs_b = pair_by_cycle(a, b)
    pairs = [(flatten_figures(x), flatten_figures(y)) for x, y in zip(pairs_a, pairs_b, strict=True)]
    names = dict.fromkeys(name for x, y in pairs for name in x if name in y)
    comparisons = {}
    for name in names:
        both = [(x[name], y[name]) for x, y in pairs if name in x and name in y]
        comparisons[name] = compare_pairs([x for x, _ in both], [y for _, y in both])
    return comparisons
