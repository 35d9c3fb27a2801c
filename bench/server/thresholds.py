"""Check figures against targets: a target is met when the 95% interval reaches it."""

from __future__ import annotations

from collections.abc import Sequence

from bench.worker_overhead import compute_interval

MET, REACHED, MISSED = "met", "met by the interval", "MISSED"


def judge_interval(low: float, high: float, target: float, higher_is_better: bool) -> str:
    """Return `MET` if the whole interval meets the target, `MISSED` if none of it does, else `REACHED`. Pure."""
    if not higher_is_better:
        low, high, target = -high, -low, -target
    if low >= target:
        return MET
    return REACHED if high >= target else MISSED


def check_at_least(target: float, name: str, values: Sequence[float]) -> bool:
    return _print_check(target, name, values, higher_is_better=True)


def check_at_most(target: float, name: str, values: Sequence[float]) -> bool:
    return _print_check(target, name, values, higher_is_better=False)


def _print_check(target: float, name: str, values: Sequence[float], higher_is_better: bool) -> bool:
    mean, low, high = compute_interval(list(values))
    verdict = judge_interval(low, high, target, higher_is_better)
    words = "at least" if higher_is_better else "at most"
    print(f"{name:<60}{mean:>8.2f}   {f'[{low:.2f}, {high:.2f}]':<19}   {words} {target}: {verdict}", flush=True)
    return verdict != MISSED
