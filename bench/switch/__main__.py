"""From a request for the model that is not awake to the first token of its answer, beside killing and starting the
engine's own server.

    make bench-switch
    python -m bench.switch --engines llamacpp --depths cold --pairs 2      a quick look

Ours is `bay serve` with two names of the same model, of which one may be awake, so that every request for the other is a
switch: from `asleep` (its worker was kept), from `standby` (nothing but a process with the library imported) or from
`cold` (nothing). Bare is the engine's own server with the same model and settings: SIGKILL, start, the first token. Both
are timed by the client that streams the answer, and take turns. Before each measurement the other side is at rest, and
the standby, which starts after each switch that took the last one, is ready again: the time for that is not counted.

The bars: from asleep every switch under 1 s; from standby at most half of the bare start on vllm; from cold no slower
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

_PROMPT = "Say {number}."  # short: it is the switch that is measured, not the prompt


def compare(kind: str, depth: str, pairs: int) -> SwitchComparison:
    """Interleaved pairs of one engine at one depth. Each has loaded the model once before the first."""
    ours, bare = BaySwitching(kind, depth), NativeRestart(kind)
    found: list[tuple[SwitchTiming, float]] = []
    try:
        bare.start()
        ours.start()
        for pair in range(pairs):
            prompt = _PROMPT.format(number=pair + 2)
            if pair % 2:
                theirs, mine = bare.switch(prompt), ours.switch(prompt)
            else:
                mine, theirs = ours.switch(prompt), bare.switch(prompt)
            found.append((mine, theirs))
            print_pair(kind, depth, pair + 1, mine, theirs)
        return SwitchComparison(kind, depth, found)
    finally:
        bare.stop()
        ours.stop()


def main(kinds: Sequence[str], depths: Sequence[str], pairs: int) -> int:
    print("each side waits for the other to be at rest, and for the standby, if there is one, to be ready", flush=True)
    found = [compare(kind, depth, pairs) for kind in kinds for depth in depths]
    print_comparison_table(found)
    print_slowest(found)
    return 0 if judge(found) else 1


if __name__ == "__main__":
    options = argparse.ArgumentParser(
        description="How long a switch takes, beside a bare restart of the engine's server."
    )
    options.add_argument("--engines", nargs="+", choices=NATIVE_SERVERS, default=["llamacpp", "transformers", "vllm"])
    options.add_argument("--depths", nargs="+", choices=START_STATES, default=START_STATES)
    options.add_argument("--pairs", type=int, default=5, choices=range(1, 11), help="fewer than 5 judge no ratio")
    given = options.parse_args()
    exit_on_sigterm()
    sys.exit(main(given.engines, given.depths, given.pairs))
