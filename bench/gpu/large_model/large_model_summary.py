"""Summarize the event log of a large-model study. Pure.

python -m bench.gpu.large_model.large_model_summary FOLDER/large.jsonl [--wanted 1500]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

LIMIT_S = 0.8  # P95 objective of the rate search
TARGET_TOKENS_PER_S = 1500.0  # default target for one GPU

Line = Mapping[str, Any]


def summarize(lines: Sequence[Line], target: float = TARGET_TOKENS_PER_S) -> list[str]:
    """Return the summary's lines. `target`: output tok/s of one GPU."""
    return [
        "", "Summary", *_summarize_transitions(lines), *_summarize_throughput(lines, target), *_summarize_rates(lines),
        *(f"SKIPPED: {line['what']} (needs {line['needed_s']} s, {line['left_s']} s left)" for line in _select(lines, "left out")),
        *(f"RETIRED: {line['system']}: {line['why'].splitlines()[0]}" for line in _select(lines, "gone")),
        *(f"FAILED: {line['part']}: {line['why'].splitlines()[0]}" for line in _select(lines, "failed")),
        *("time ran out during a part" for _ in _select(lines, "time up")),
    ]  # fmt: skip


def _select(lines: Iterable[Line], event: str) -> list[Line]:
    return [line for line in lines if line["event"] == event]


def _summarize_transitions(lines: Sequence[Line]) -> list[str]:
    """List every start, sleep and wake: the first sleep also allocates the memory it sleeps in."""
    summary = []
    for event in ("started", "asleep", "awake"):
        for system in ("offline", "ours"):
            times = [line["seconds"] for line in _select(lines, event) if line["system"] == system]
            if times:
                summary.append(f"{system} {event} after " + ", ".join(f"{seconds:.2f}" for seconds in times) + " s")
    for line in _select(lines, "switches"):
        for switch in line["switches"]:
            phases = ", ".join(f"{name} {seconds:.2f}" for name, seconds in switch["phases"].items())
            summary.append(f"ours from {switch['from']}: {switch['total_s']:.2f} s ({phases})")
    return summary


def _summarize_throughput(lines: Sequence[Line], target: float) -> list[str]:
    runs = {
        system: {line["cycle"]: line for line in _select(lines, "closed") if line["system"] == system}
        for system in ("offline", "ours")
    }
    summary = []
    for system, by_cycle in runs.items():
        if by_cycle:
            mean = fmean(line["output_tokens_per_s"] for line in by_cycle.values())
            summary.append(
                f"{system}: {mean:,.0f} output tok/s on one GPU, n={len(by_cycle)}, {mean / target:.2f} times the target "
                f"of {target:,.0f}; on eight GPUs at the same rate: {8 * mean:,.0f}{_format_energy(by_cycle.values())}"
            )
    cycles = sorted(runs["offline"].keys() & runs["ours"].keys())
    if cycles:
        theirs, ours = ([runs[name][cycle]["output_tokens_per_s"] for cycle in cycles] for name in ("offline", "ours"))
        summary.append(
            f"ours / offline: {fmean(ours) / fmean(theirs):.3f}{_format_interval(theirs, ours)}, pairs: {len(cycles)}"
        )
    return summary


def _format_interval(theirs: Sequence[float], ours: Sequence[float]) -> str:
    """Return the ratio's interval. Needs the lab's packages; without them, summarize `large.jsonl` on another host."""
    try:
        from enginebay.lab.statistics.confidence_intervals import ratio_interval
    except ImportError as error:
        return f" (no interval: {error})"
    ratio = ratio_interval(theirs, ours)
    if ratio is None or ratio.low is None or ratio.high is None:
        return ""
    return f" [{ratio.low:.3f}, {ratio.high:.3f}]"


def _format_energy(runs: Iterable[Line]) -> str:
    each = [run["gpu_energy_j"] / run["output_tokens"] for run in runs if "gpu_energy_j" in run]
    return f"; {fmean(each):.3f} GPU J per output token" if each else ""


def _summarize_rates(lines: Sequence[Line]) -> list[str]:
    summary = []
    for line in _select(lines, "found"):
        objective = f"P95 {line['latency']} under {LIMIT_S * 1e3:.0f} ms, {line['output']} tokens out"
        above = "; no higher rate tried" if line["above"] is None else f"; missed at {line['above']:g}"
        if line["rate"] is None:
            alone = next(
                (other["seconds"] for other in _select(lines, "alone") if other["output"] == line["output"]), None
            )
            why = "" if alone is None or line["latency"] != "e2e" else f" ({alone:.3f} s without other load)"
            summary.append(f"{objective}: no rate found{above if line['above'] else why}")
            continue
        last = [window for window in _select(lines, "window") if _belongs_to(window, line) and window["met"]][-1]
        summary.append(
            f"{objective}: {line['rate']:g} requests/s = {line['rate'] * line['output']:,.0f} output tok/s"
            f"{', confirmed' if line['confirmed'] else ', NOT confirmed'}{above}; P95 {last['p95_s'] * 1e3:.0f} ms "
            f"of {last['judged']} requests, in flight {last['in_flight'][0]:.0f} to {last['in_flight'][1]:.0f}"
        )
    return summary


def _belongs_to(window: Line, found: Line) -> bool:
    return all(window[name] == found[name] for name in ("latency", "output", "rate"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("lines", type=Path, metavar="FILE")
    parser.add_argument("--wanted", type=float, default=TARGET_TOKENS_PER_S, help="target output tok/s of one GPU")
    args = parser.parse_args()
    print("\n".join(summarize([json.loads(line) for line in args.lines.read_text().splitlines()], args.wanted)))
