"""Time from a request for a model that is not awake to its first token, compared with a restart of the engine's server.

    make bench-switch
    python -m bench.switch --engines llamacpp --depths cold --pairs 2      a quick run

Ours is `bay serve` with two names of the same model and max_awake 1, so every request for the other name is a switch:
from `asleep` (its worker is kept), from `standby` (a process with the library imported) or from `cold` (nothing). Bare
is the engine's own server with the same model and settings: SIGKILL, start, first token. The streaming client times
both, and they take turns. Before each measurement the other side is idle and the standby is ready again; that time does
not count.

Targets: from asleep every switch under 1 s; from standby at most half of the bare start on vllm; from cold no slower
than the bare start, within the 95% interval of the ratio.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from bench.server.native_servers import NATIVE_SERVERS
from bench.server.server_process import exit_on_sigterm
from bench.switch.bay_switching import START_STATES, BaySwitching, SwitchTiming
from bench.switch.native_restart import NativeRestart
from bench.switch.switch_report import SwitchComparison, judge, print_comparison_table, print_pair, print_slowest

_PROMPT = "Say {number}."  # short: only the switch is measured


def compare(kind: str, depth: str, pairs: int) -> SwitchComparison:
    """Measure interleaved pairs of one engine and start state. Each has loaded the model once before."""
    ours, bare = BaySwitching(kind, depth), NativeRestart(kind)
    timings: list[tuple[SwitchTiming, float]] = []
    try:
        bare.start()
        ours.start()
        for pair in range(pairs):
            prompt = _PROMPT.format(number=pair + 2)
            if pair % 2:
                theirs, mine = bare.switch(prompt), ours.switch(prompt)
            else:
                mine, theirs = ours.switch(prompt), bare.switch(prompt)
            timings.append((mine, theirs))
            print_pair(kind, depth, pair + 1, mine, theirs)
        return SwitchComparison(kind, depth, timings)
    finally:
        bare.stop()
        ours.stop()


def main(kinds: Sequence[str], depths: Sequence[str], pairs: int) -> int:
    print("each side waits until the other is idle and its standby is ready", flush=True)
    comparisons = [compare(kind, depth, pairs) for kind in kinds for depth in depths]
    print_comparison_table(comparisons)
    print_slowest(comparisons)
    return 0 if judge(comparisons) else 1


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="Compare a model switch with a restart of the engine's own server.")
    options.add_argument("--engines", nargs="+", choices=NATIVE_SERVERS, default=["llamacpp", "transformers", "vllm"])
    options.add_argument("--depths", nargs="+", choices=START_STATES, default=START_STATES)
    options.add_argument("--pairs", type=int, default=5, choices=range(1, 11), help="ratios are judged with at least 5")
    arguments = options.parse_args()
    exit_on_sigterm()
    sys.exit(main(arguments.engines, arguments.depths, arguments.pairs))
