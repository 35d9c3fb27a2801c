"""How long llamacpp's threads wait for each other by spinning: what we set beside other counts, in interleaved pairs.

    make bench-spinning                 10000 beside what we set
    python -m bench.thread_spinning COUNT ...

On an idle machine, where longer is faster if anything, and beside a process that keeps one core busy, where a thread that
spins may keep the one it waits for from running. The bar: no slower when idle (the 95% interval of the ratio reaches 0.97),
faster beside the busy one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

from bench.worker_overhead import SETTINGS, InProcessEngine, compute_interval
from enginebay.config.loader import load_config
from enginebay.fleet.lifecycle.launch_plan import LaunchPlan, make_launch_plan

_SPINCOUNT_VARIABLE = "GOMP_SPINCOUNT"
_PROMPT = list(range(300, 324))
_PAIRS, _TURNS = 10, 3


@contextmanager
def busy_process() -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def measure_speeds(plan: LaunchPlan, count: str | None) -> tuple[float, float]:
    """Tokens a second, idle and beside the busy process."""
    env = {name: value for name, value in os.environ.items() if name != _SPINCOUNT_VARIABLE}
    engine = InProcessEngine(plan, env if count is None else {**env, _SPINCOUNT_VARIABLE: count})
    try:
        engine.run(_PROMPT, 1)  # warms up
        idle = median(engine.run(_PROMPT, 1) for _ in range(_TURNS))
        with busy_process():
            return idle, engine.run(_PROMPT, 1)
    finally:
        engine.close()


def compare(plan: LaunchPlan, count: str) -> bool:
    found = []
    for pair in range(_PAIRS):
        order = (None, count) if pair % 2 else (count, None)
        pair_of = {one: measure_speeds(plan, one) for one in order}
        found.append((pair_of[None], pair_of[count]))
    good = True
    for at, name in enumerate(("idle", "beside a busy process")):
        mean, low, high = compute_interval([ours[at] / other[at] for ours, other in found])
        met = high >= 0.97 if not at else low > 1
        ours, other = (sum(one[side][at] for one in found) / len(found) for side in (0, 1))
        print(
            f"{count:>8}{ours:>10.1f}{other:>10.1f}{mean:>8.2f}   [{low:.2f}, {high:.2f}]   {'met' if met else 'MISSED'}   {name}"
        )
        good &= met
    return good


def main(counts: list[str]) -> int:
    plan = make_launch_plan("smollm2", engine="llamacpp", config=load_config(None), settings=SETTINGS["llamacpp"])
    print(f"{'count':>8}{'ours':>10}{'with it':>10}{'ratio':>8}   95% interval, tok/s of one stream")
    good = [compare(plan, count) for count in counts]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["10000"]))
