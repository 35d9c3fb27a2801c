"""Report of the switch benchmark: table, targets and phases."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from bench.server.thresholds import check_at_most
from bench.switch.bay_switching import SwitchTiming
from bench.worker_overhead import T95
from enginebay.cli.output.console import print_table
from enginebay.fleet.lifecycle.switch_history import PHASES

ASLEEP_TARGET_S = 1.0  # every single switch from asleep is faster
STANDBY_TARGETS = {"vllm": 0.5}  # share of the bare start; only where the import dominates
COLD_TARGET = 1.0


@dataclass(frozen=True, slots=True)
class SwitchComparison:
    """One engine and start state: pairs of our switch and one of the bare server."""

    kind: str
    depth: str
    pairs: Sequence[tuple[SwitchTiming, float]]

    @property
    def name(self) -> str:
        return f"{self.kind}, {self.depth}"

    @property
    def ours(self) -> list[float]:
        return [mine.seconds for mine, _ in self.pairs]

    @property
    def bare(self) -> list[float]:
        return [theirs for _, theirs in self.pairs]

    @property
    def ratios(self) -> list[float]:
        return [mine / theirs for mine, theirs in zip(self.ours, self.bare, strict=True)]


def print_pair(kind: str, depth: str, pair: int, mine: SwitchTiming, theirs: float) -> None:
    print(f"{kind}, {depth}, pair {pair}: ours {mine.seconds:.3f} s, bare {theirs:.3f} s", flush=True)


def print_comparison_table(comparisons: Sequence[SwitchComparison]) -> None:
    """Print medians in seconds with our phases. `rest` is the time of server and client."""
    columns = ["engine", "depth", "ours s", "spread", "bare s", "ratio", *(name.replace("_", " ") for name in PHASES)]
    print()
    print_table([*columns, "rest"], [_build_row(comparison) for comparison in comparisons])


def _build_row(comparison: SwitchComparison) -> list[str]:
    median = statistics.median
    cells = [
        comparison.kind,
        comparison.depth,
        f"{median(comparison.ours):.3f}",
        f"{min(comparison.ours):.3f} to {max(comparison.ours):.3f}",
    ]
    cells += [f"{median(comparison.bare):.3f}", f"{median(comparison.ratios):.3f}"]
    for phase in PHASES:
        spent = [mine.record["phases"].get(phase) for mine, _ in comparison.pairs]
        known = [seconds for seconds in spent if seconds is not None]
        cells.append(f"{median(known):.3f}" if known else "-")
    return [*cells, f"{median(_compute_rest(mine) for mine, _ in comparison.pairs):.3f}"]


def _compute_rest(mine: SwitchTiming) -> float:
    return mine.seconds - float(sum(mine.record["phases"].values()))


def print_slowest(comparisons: Sequence[SwitchComparison]) -> None:
    """Print the slowest switch per engine and start state, as in `bay switches`."""
    print("\nour slowest switches:")
    for comparison in comparisons:
        mine = max((mine for mine, _ in comparison.pairs), key=lambda it: it.seconds)
        phases = ", ".join(f"{name.replace('_', ' ')} {spent:.3f}" for name, spent in mine.record["phases"].items())
        print(f"{comparison.name}: {mine.seconds:.3f} s: {phases}, rest {_compute_rest(mine):.3f}")


def judge(comparisons: Sequence[SwitchComparison]) -> bool:
    """Return whether every target is met. A ratio with too few pairs for an interval is not judged."""
    print()
    verdicts = [_judge_comparison(comparison) for comparison in comparisons]  # a list: print all
    return all(verdicts)


def _judge_comparison(comparison: SwitchComparison) -> bool:
    if comparison.depth == "asleep":
        slowest = max(comparison.ours)
        met = slowest < ASLEEP_TARGET_S
        print(
            f"{f'{comparison.name}: the slowest, s':<60}{slowest:>8.2f}   under {ASLEEP_TARGET_S}: {'met' if met else 'MISSED'}"
        )
        return met
    label = f"{comparison.name}, s {statistics.median(comparison.ours):.2f} : {statistics.median(comparison.bare):.2f}"
    target = COLD_TARGET if comparison.depth == "cold" else STANDBY_TARGETS.get(comparison.kind)
    if len(comparison.pairs) - 1 not in T95:
        print(
            f"{label:<60}{statistics.mean(comparison.ratios):>8.2f}   not judged: {len(comparison.pairs)} pairs give no interval"
        )
        return True
    if target is None:
        print(f"{label:<60}{statistics.mean(comparison.ratios):>8.2f}   no target")
        return True
    return check_at_most(target, label, comparison.ratios)
