"""Compare spin counts of llamacpp's threads: the engine's own setting against others, in interleaved pairs.

    make bench-spinning                 10000 against the engine's setting
    python -m bench.thread_spinning COUNT ...

Runs on an idle machine, where spinning longer helps if anything, and beside a process that keeps one core busy, where a spinning
thread may block the thread it waits for. Targets: not slower when idle (the 95% interval of the ratio reaches 0.97), faster
beside the busy process.
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
    """Return tokens/s, idle and beside the busy process."""
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
    pairs = []
    for pair in range(_PAIRS):
        order = (None, count) if pair % 2 else (count, None)
        speeds = {setting: measure_speeds(plan, setting) for setting in order}
        pairs.append((speeds[None], speeds[count]))
    good = True
    for condition, name in enumerate(("idle", "beside a busy process")):
        mean, low, high = compute_interval([ours[condition] / other[condition] for ours, other in pairs])
        met = high >= 0.97 if not condition else low > 1
        ours, other = (sum(pair[side][condition] for pair in pairs) / len(pairs) for side in (0, 1))
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
