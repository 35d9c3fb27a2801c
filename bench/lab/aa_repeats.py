"""Test the whole lab on the fake engine: it must detect a real difference, and none between equal engines.

    python -m bench.lab.aa_repeats

Forty A/A comparisons of five paired cycles each: at most 5 may differ. Then an engine made 5% slower must be detected.
Servers start once; the order alternates from cycle to cycle as in a study.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from enginebay.lab.loadgen.sender_pool import run_loadgen
from enginebay.lab.loadgen.sender_task import TargetServer, split_into_tasks
from enginebay.lab.measures.run_measures import compute_measures
from enginebay.lab.statistics.paired_comparison import compare_pairs
from enginebay.lab.study.bay_server import encode_config, run_bay_server
from enginebay.lab.workload.request_records import Request

REPEATS, CYCLES, MAX_ALARMS = 40, 5, 5
STEP_S, SLOWDOWN = 0.01, 1.05
STREAMS, TOKENS, REQUESTS = 8, 16, 64
FIGURE = "tpot_s"


@contextmanager
def serve_fake(step_s: float) -> Iterator[TargetServer]:
    """Run `bay serve` with the fake engine and this step time."""
    with tempfile.TemporaryDirectory(prefix="bench-lab-") as folder:
        config = Path(folder) / "serve.yaml"
        config.write_bytes(encode_config({"engine": "fake", "models": {"toy": {}}, "fake": {"step_s": step_s}}))
        with run_bay_server(["toy", "--engine", "fake", "--config", str(config)], Path(folder) / "log") as child:
            yield TargetServer(child.url, "toy", child.headers)


def measure_run(target: TargetServer, seed: int) -> float:
    """Return one run's mean time per output token."""
    requests = [Request(tuple(65 + (seed * 31 + number * 7 + position) % 26 for position in range(16)), 16, TOKENS)
                for number in range(REQUESTS)]  # fmt: skip
    result = run_loadgen(split_into_tasks(target, requests, None, STREAMS, 1), requests)
    figures = compute_measures(result.records, result.tokens, result.window_s)
    if figures["errors"]:
        raise SystemExit(f"requests failed: {figures['errors_by_code']}")
    return float(figures[FIGURE]["mean"])


def measure_pairs(a: TargetServer, b: TargetServer, seed: int) -> tuple[list[float], list[float]]:
    """Measure paired cycles on the same prompts, in alternating order."""
    values: dict[str, list[float]] = {"a": [], "b": []}
    for cycle in range(CYCLES):
        sides = [("a", a), ("b", b)]
        for name, target in sides if cycle % 2 else reversed(sides):
            values[name].append(measure_run(target, seed * CYCLES + cycle))
    return values["a"], values["b"]


def main() -> int:
    with ExitStack() as stack:
        first, second, slow = (stack.enter_context(serve_fake(step)) for step in (STEP_S, STEP_S, STEP_S * SLOWDOWN))
        for target in (first, second, slow):
            measure_run(target, 999)
        alarms = 0
        for repeat in range(REPEATS):
            comparison = compare_pairs(*measure_pairs(first, second, repeat))
            alarms += comparison.differs
            print(f"\rA/A {repeat + 1}/{REPEATS}: {alarms} differ", end="", flush=True)
        print(
            f"\nA/A: {alarms} of {REPEATS} differ (at most {MAX_ALARMS}): {'met' if alarms <= MAX_ALARMS else 'MISSED'}"
        )
        comparison = compare_pairs(*measure_pairs(first, slow, REPEATS))
    ratio = comparison.ratio
    detected = comparison.differs and comparison.difference.estimate > 0
    measured = (
        f"{ratio.estimate:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]" if ratio and ratio.low and ratio.high else "?"
    )
    print(f"slowdown of {SLOWDOWN - 1:.0%}: measured {measured}: {'detected, met' if detected else 'MISSED'}")
    return 0 if detected and alarms <= MAX_ALARMS else 1


if __name__ == "__main__":
    sys.exit(main())
