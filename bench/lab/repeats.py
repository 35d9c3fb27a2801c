"""The whole lab, live on the fake engine: does it find a difference that is there, and none that is not?

    python -m bench.lab.repeats

Forty comparisons of an engine with itself, of five paired cycles each: at most 5 may differ. Then an engine that was made 5% slower must be
found slower. Servers are started once; order alternates from cycle to cycle as in a study.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from enginebay.lab.client.launch import fire
from enginebay.lab.client.order import Target, share_out
from enginebay.lab.measures.measures import measure
from enginebay.lab.requests import Request
from enginebay.lab.served import config_bytes, served
from enginebay.lab.statistics.compare import compare

REPEATS, CYCLES, MOST_ALARMS = 40, 5, 5
STEP_S, SLOWDOWN = 0.01, 1.05
STREAMS, TOKENS, REQUESTS = 8, 16, 64
FIGURE = "tpot_s"


@contextmanager
def engine(step_s: float) -> Iterator[Target]:
    """`bay serve` with the fake engine, one step taking so long."""
    with tempfile.TemporaryDirectory(prefix="bench-lab-") as folder:
        config = Path(folder) / "serve.yaml"
        config.write_bytes(config_bytes({"engine": "fake", "models": {"toy": {}}, "fake": {"step_s": step_s}}))
        with served(["toy", "--engine", "fake", "--config", str(config)], Path(folder) / "log") as child:
            yield Target(child.url, "toy", child.headers)


def run(target: Target, seed: int) -> float:
    """One run's mean time per output token."""
    requests = [Request(tuple(65 + (seed * 31 + number * 7 + place) % 26 for place in range(16)), 16, TOKENS)
                for number in range(REQUESTS)]  # fmt: skip
    fired = fire(share_out(target, requests, None, STREAMS, 1), requests)
    figures = measure(fired.records, fired.tokens, fired.window_s)
    if figures["errors"]:
        raise SystemExit(f"requests failed: {figures['errors_by_code']}")
    return float(figures[FIGURE]["mean"])


def pairs(a: Target, b: Target, seed: int) -> tuple[list[float], list[float]]:
    """Paired cycles on the same prompts, in alternating order."""
    found: dict[str, list[float]] = {"a": [], "b": []}
    for cycle in range(CYCLES):
        sides = [("a", a), ("b", b)]
        for name, target in sides if cycle % 2 else reversed(sides):
            found[name].append(run(target, seed * CYCLES + cycle))
    return found["a"], found["b"]


def main() -> int:
    with ExitStack() as stack:
        first, second, slow = (stack.enter_context(engine(step)) for step in (STEP_S, STEP_S, STEP_S * SLOWDOWN))
        for target in (first, second, slow):
            run(target, 999)
        alarms = 0
        for repeat in range(REPEATS):
            found = compare(*pairs(first, second, repeat))
            alarms += found.differs
            print(f"\rA/A {repeat + 1}/{REPEATS}: {alarms} differ", end="", flush=True)
        print(
            f"\nA/A: {alarms} of {REPEATS} differ (at most {MOST_ALARMS}): {'met' if alarms <= MOST_ALARMS else 'MISSED'}"
        )
        found = compare(*pairs(first, slow, REPEATS))
    ratio = found.ratio
    seen = found.differs and found.difference.estimate > 0
    said = f"{ratio.estimate:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]" if ratio and ratio.low and ratio.high else "?"
    print(f"a slowdown of {SLOWDOWN - 1:.0%}: measured {said}: {'found, met' if seen else 'MISSED'}")
    return 0 if seen and alarms <= MOST_ALARMS else 1


if __name__ == "__main__":
    sys.exit(main())
