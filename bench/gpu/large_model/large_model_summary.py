"""What a study of a large model says, from its lines. Pure.

python -m bench.gpu.large_model.large_model_summary FOLDER/large.jsonl [--wanted 1500]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

LIMIT_S = 0.8  # of P95, for the rates that are searched
TARGET_TOKENS_PER_S = 1500.0  # output tok/s of one GPU, unless told otherwise

Line = Mapping[str, Any]


def summarize(lines: Sequence[Line], wanted: float = TARGET_TOKENS_PER_S) -> list[str]:
    """`wanted`: output tok/s of one GPU."""
    return [
        "", "Summary", *_summarize_transitions(lines), *_summarize_throughput(lines, wanted), *_summarize_rates(lines),
        *(f"LEFT OUT: {line['what']} ({line['needed_s']} s, {line['left_s']} s were left)" for line in _select(lines, "left out")),
        *(f"GONE: {line['system']}: {line['why'].splitlines()[0]}" for line in _select(lines, "gone")),
        *(f"FAILED: {line['part']}: {line['why'].splitlines()[0]}" for line in _select(lines, "failed")),
        *("the time was up in the middle of something" for _ in _select(lines, "time up")),
    ]  # fmt: skip


def _select(lines: Iterable[Line], event: str) -> list[Line]:
    return [line for line in lines if line["event"] == event]


def _summarize_transitions(lines: Sequence[Line]) -> list[str]:
    """To start, to fall asleep, to wake: every single time, since the first sleep makes the memory it sleeps in."""
    told = []
    for event in ("started", "asleep", "awake"):
        for system in ("offline", "ours"):
            times = [line["seconds"] for line in _select(lines, event) if line["system"] == system]
            if times:
                told.append(f"{system} {event} after " + ", ".join(f"{seconds:.2f}" for seconds in times) + " s")
    for line in _select(lines, "switches"):
        for switch in line["switches"]:
            phases = ", ".join(f"{name} {seconds:.2f}" for name, seconds in switch["phases"].items())
            told.append(f"ours from {switch['from']}: {switch['total_s']:.2f} s ({phases})")
    return told


def _summarize_throughput(lines: Sequence[Line], wanted: float) -> list[str]:
    runs = {
        system: {line["cycle"]: line for line in _select(lines, "closed") if line["system"] == system}
        for system in ("offline", "ours")
    }
    told = []
    for system, by_cycle in runs.items():
        if by_cycle:
            mean = fmean(line["output_tokens_per_s"] for line in by_cycle.values())
            told.append(
                f"{system}: {mean:,.0f} output tok/s on one GPU, n={len(by_cycle)}, {mean / wanted:.2f} times the {wanted:,.0f} "
                f"wanted of one GPU; eight of them, if each gave as much: {8 * mean:,.0f}{_format_energy(by_cycle.values())}"
            )
    cycles = sorted(runs["offline"].keys() & runs["ours"].keys())
    if cycles:
        theirs, ours = ([runs[name][cycle]["output_tokens_per_s"] for cycle in cycles] for name in ("offline", "ours"))
        told.append(
            f"ours / offline: {fmean(ours) / fmean(theirs):.3f}{_format_interval(theirs, ours)}, pairs: {len(cycles)}"
        )
    return told


def _format_interval(theirs: Sequence[float], ours: Sequence[float]) -> str:
    """Of the ratio; the host that measured may lack what it takes, and `large.jsonl` can be read on another."""
    try:
        from enginebay.lab.statistics.confidence_intervals import ratio_interval
    except ImportError as error:
        return f" (no interval here: {error})"
    ratio = ratio_interval(theirs, ours)
    known = ratio is not None and ratio.low is not None and ratio.high is not None
    return f" [{ratio.low:.3f}, {ratio.high:.3f}]" if ratio is not None and known else ""


def _format_energy(runs: Iterable[Line]) -> str:
    each = [run["gpu_energy_j"] / run["output_tokens"] for run in runs if "gpu_energy_j" in run]
    return f"; {fmean(each):.3f} GPU J per output token" if each else ""


def _summarize_rates(lines: Sequence[Line]) -> list[str]:
    told = []
    for line in _select(lines, "found"):
        what = f"P95 {line['latency']} under {LIMIT_S * 1e3:.0f} ms, {line['output']} tokens out"
        above = "; no higher rate was tried" if line["above"] is None else f"; missed at {line['above']:g}"
        if line["rate"] is None:
            alone = next((one["seconds"] for one in _select(lines, "alone") if one["output"] == line["output"]), None)
            why = "" if alone is None or line["latency"] != "e2e" else f" (alone it takes {alone:.3f} s)"
            told.append(f"{what}: no rate found{above if line['above'] else why}")
            continue
        last = [one for one in _select(lines, "window") if _belongs_to(one, line) and one["met"]][-1]
        told.append(
            f"{what}: {line['rate']:g} requests/s = {line['rate'] * line['output']:,.0f} output tok/s"
            f"{', confirmed' if line['confirmed'] else ', NOT confirmed'}{above}; P95 {last['p95_s'] * 1e3:.0f} ms "
            f"of {last['judged']} requests, in flight {last['in_flight'][0]:.0f} to {last['in_flight'][1]:.0f}"
        )
    return told


def _belongs_to(window: Line, found: Line) -> bool:
    return all(window[name] == found[name] for name in ("latency", "output", "rate"))


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("lines", type=Path, metavar="FILE")
    options.add_argument("--wanted", type=float, default=TARGET_TOKENS_PER_S, help="output tok/s of one GPU")
    given = options.parse_args()
    print("\n".join(summarize([json.loads(line) for line in given.lines.read_text().splitlines()], given.wanted)))
