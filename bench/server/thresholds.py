"""Is a bar met? It is when the 95% interval reaches it; whether it does so as a whole is said too."""

from __future__ import annotations

from collections.abc import Sequence

from bench.worker_overhead import compute_interval

MET, REACHED, MISSED = "met", "met by the interval", "MISSED"


def judge_interval(low: float, high: float, bar: float, wants_more: bool) -> str:
    """`met` when the whole interval is on the right side, `MISSED` when all of it is on the other. Pure."""
    if not wants_more:
        low, high, bar = -high, -low, -bar
    if low >= bar:
        return MET
    return REACHED if high >= bar else MISSED


def check_at_least(bar: float, what: str, values: Sequence[float]) -> bool:
    return _print_check(bar, what, values, wants_more=True)


def check_at_most(bar: float, what: str, values: Sequence[float]) -> bool:
    return _print_check(bar, what, values, wants_more=False)


def _print_check(bar: float, what: str, values: Sequence[float], wants_more: bool) -> bool:
    mean, low, high = compute_interval(list(values))
    found = judge_interval(low, high, bar, wants_more)
    words = "at least" if wants_more else "at most"
    print(f"{what:<60}{mean:>8.2f}   {f'[{low:.2f}, {high:.2f}]':<19}   {words} {bar}: {found}", flush=True)
    return found != MISSED
