"""The table of switches, the bars, and where the time of ours went."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from bench.server.thresholds import check_at_most
from bench.switch.bay_switching import SwitchTiming
from bench.worker_overhead import T95
from enginebay.cli.output.console import print_table
from enginebay.fleet.lifecycle.switch_history import PHASES

AWAKE_BAR_S = 1.0  # from asleep, or kept: every single switch is faster
STANDBY_BARS = {"vllm": 0.5}  # of the bare start; where importing is not most of it, there is none
COLD_BAR = 1.0


@dataclass(frozen=True, slots=True)
class SwitchComparison:
    """One engine at one depth: pairs of a switch of ours and one of the bare server."""

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


def print_comparison_table(found: Sequence[SwitchComparison]) -> None:
    """Medians in seconds; phases of ours beside them. What no phase accounts for is the server's and the client's."""
    columns = ["engine", "depth", "ours s", "spread", "bare s", "ratio", *(name.replace("_", " ") for name in PHASES)]
    print()
    print_table([*columns, "rest"], [_build_row(one) for one in found])


def _build_row(one: SwitchComparison) -> list[str]:
    median = statistics.median
    cells = [one.kind, one.depth, f"{median(one.ours):.3f}", f"{min(one.ours):.3f} to {max(one.ours):.3f}"]
    cells += [f"{median(one.bare):.3f}", f"{median(one.ratios):.3f}"]
    for phase in PHASES:
        spent = [mine.record["phases"].get(phase) for mine, _ in one.pairs]
        known = [seconds for seconds in spent if seconds is not None]
        cells.append(f"{median(known):.3f}" if known else "-")
    return [*cells, f"{median(_compute_rest(mine) for mine, _ in one.pairs):.3f}"]


def _compute_rest(mine: SwitchTiming) -> float:
    return mine.seconds - float(sum(mine.record["phases"].values()))


def print_slowest(found: Sequence[SwitchComparison]) -> None:
    """As `bay switches` tells it, of each engine and depth."""
    print("\nthe slowest of ours:")
    for one in found:
        mine = max((mine for mine, _ in one.pairs), key=lambda it: it.seconds)
        phases = ", ".join(f"{name.replace('_', ' ')} {spent:.3f}" for name, spent in mine.record["phases"].items())
        print(f"{one.name}: {mine.seconds:.3f} s: {phases}, rest {_compute_rest(mine):.3f}")


def judge(found: Sequence[SwitchComparison]) -> bool:
    """Whether every bar is met. A ratio needs pairs enough for an interval: with fewer it is not judged."""
    print()
    verdicts = [_judge_comparison(one) for one in found]  # each is printed, whatever the one before it says
    return all(verdicts)


def _judge_comparison(one: SwitchComparison) -> bool:
    if one.depth == "asleep":
        slowest = max(one.ours)
        met = slowest < AWAKE_BAR_S
        print(f"{f'{one.name}: the slowest, s':<60}{slowest:>8.2f}   under {AWAKE_BAR_S}: {'met' if met else 'MISSED'}")
        return met
    what = f"{one.name}, s {statistics.median(one.ours):.2f} : {statistics.median(one.bare):.2f}"
    bar = COLD_BAR if one.depth == "cold" else STANDBY_BARS.get(one.kind)
    if len(one.pairs) - 1 not in T95:
        print(f"{what:<60}{statistics.mean(one.ratios):>8.2f}   not judged: {len(one.pairs)} pairs give no interval")
        return True
    if bar is None:
        print(f"{what:<60}{statistics.mean(one.ratios):>8.2f}   no bar")
        return True
    return check_at_most(bar, what, one.ratios)
