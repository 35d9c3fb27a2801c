"""Each engine behind `bay serve` and behind its own server, in interleaved pairs on the same cores.

    python -m bench.server.native_comparison                               all engines at 1, 8 and 32 streams
    python -m bench.server.native_comparison vllm --streams 8 --pairs 6    some

Both servers are loaded the whole time, with the same settings, and get the same prompts in each pair; prompts differ from
pair to pair, so that a prompt cache helps neither. Every answer has the same number of tokens, by the server's own usage.

The bars: output tokens/s at least 1.00 times the engine's own server (transformers at 32 streams: 1.5 times), p95 of the
time to the first token at most 1.05 times, no request lost.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence

from bench.server.bay_server import BayServer
from bench.server.loadgen import HttpWorkload, LoadResult, build_chat_body, percentile, run_workload
from bench.server.native_servers import MODEL, NATIVE_SERVERS, NativeServer
from bench.server.server_process import exit_on_sigterm
from bench.server.thresholds import check_at_least, check_at_most
from bench.worker_overhead import SETTINGS

_TOKENS = {1: 32, 8: 24, 32: 16}  # output tokens of each request, by how many run at once: every run takes seconds
_REQUESTS_EACH = {1: 6, 8: 2, 32: 2}  # requests of each stream
_SPEED_BAR = {("transformers", 32): 1.5}
_STORY = (
    "Tell the story of a small village by the sea where {number} fishermen lived. Say who they were, what they caught, "
    "why they quarrelled one winter, and how the village looked when the spring came back and the boats went out again."
)


Sides = dict[str, tuple[BayServer | NativeServer, str]]  # each server and its address


def make_prompts(pair: int, count: int) -> list[str]:
    """Different from their first words on, in this pair and between pairs."""
    return [f"{pair * 1000 + place} is the number. " + _STORY.format(number=place + 2) for place in range(count)]


def measure(side: BayServer | NativeServer, url: str, pair: int, streams: int, tokens: int) -> LoadResult:
    requests = streams * _REQUESTS_EACH.get(streams, 2)
    bodies = [
        build_chat_body(side.model, tokens, True, prompt, **build_extra_fields(side, tokens))
        for prompt in make_prompts(pair, requests)
    ]
    load = HttpWorkload(
        url=url,
        bodies=bodies,
        connections=streams,
        requests=requests,
        stream=True,
        tokens=tokens,
        by_usage=True,
        headers=side.headers,
        ends_with_done=side.ends_with_done,
        patience_s=180,
    )
    return run_workload(load)


def build_extra_fields(side: BayServer | NativeServer, tokens: int) -> dict[str, object]:
    """Greedy, with usage, and on past the model's end token, in the words this server knows."""
    common: dict[str, object] = {"temperature": 0, "stream_options": {"include_usage": True}}
    past_the_end = side.ignore_eos_fields(tokens) if isinstance(side, NativeServer) else {"ignore_eos": True}
    return common | past_the_end


def compare(kind: str, streams: Sequence[int], pairs: int, tokens: int | None) -> bool:
    ours = BayServer(f"bay serve, {kind}", MODEL, kind, SETTINGS[kind])
    own = NativeServer(kind, SETTINGS[kind])
    try:
        sides: Sides = {"ours": (ours, ours.start()), "own": (own, own.start())}
        results = [_measure_pairs(kind, sides, count, pairs, tokens or _TOKENS.get(count, 16)) for count in streams]
        return all(results)
    finally:
        own.stop()
        ours.stop()


def _measure_pairs(kind: str, sides: Sides, streams: int, pairs: int, tokens: int) -> bool:
    """All pairs at one number of streams; the first pair warms up."""
    speeds, waits, lost = [], [], 0
    for pair in range(-1, pairs):
        found = {}
        for name in ("ours", "own") if pair % 2 else ("own", "ours"):
            result = measure(*sides[name], pair + 1 + streams * 100, streams, tokens)
            found[name] = result
            lost += result.lost
            if result.lost:
                print(f"{kind}, {name}, {streams} streams: {result.lost} lost: {result.reasons[0]}", flush=True)
        if pair >= 0 and all(result.requests for result in found.values()):
            speeds.append((found["ours"].tokens_per_s, found["own"].tokens_per_s))
            waits.append((percentile(found["ours"].ttfts_s, 95), percentile(found["own"].ttfts_s, 95)))
    return _report(kind, streams, pairs, speeds, waits, lost)


def _report(
    kind: str,
    streams: int,
    pairs: int,
    speeds: Sequence[tuple[float, float]],
    waits: Sequence[tuple[float, float]],
    lost: int,
) -> bool:
    if len(speeds) < pairs:
        print(f"{kind}, {streams} streams: only {len(speeds)} of {pairs} pairs were answered; no ratio   MISSED")
        return False
    ours, own = (statistics.mean(pair[side] for pair in speeds) for side in (0, 1))
    bar = _SPEED_BAR.get((kind, streams), 1.0)
    good = check_at_least(
        bar, f"{kind}, {streams} streams, tok/s {ours:.0f} : {own:.0f}", [mine / theirs for mine, theirs in speeds]
    )
    ours, own = (statistics.mean(pair[side] for pair in waits) * 1000 for side in (0, 1))
    good &= check_at_most(
        1.05,
        f"{kind}, {streams} streams, p95 TTFT ms {ours:.0f} : {own:.0f}",
        [mine / theirs for mine, theirs in waits],
    )
    if lost:
        print(f"{kind}, {streams} streams: {lost} requests lost   MISSED")
    return good and not lost


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("engines", nargs="*", default=list(NATIVE_SERVERS), help=f"of {', '.join(NATIVE_SERVERS)}")
    options.add_argument("--streams", type=int, nargs="*", default=[1, 8, 32])
    options.add_argument("--pairs", type=int, default=5, choices=range(5, 11))
    options.add_argument("--tokens", type=int, help="output tokens of each request")
    given = options.parse_args()
    exit_on_sigterm()
    results = [compare(kind, given.streams, given.pairs, given.tokens) for kind in given.engines]
    sys.exit(0 if all(results) else 1)
