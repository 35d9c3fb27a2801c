"""Compare each engine behind `bay serve` and behind its own server, in interleaved pairs on the same cores.

    python -m bench.server.native_comparison                               all engines at 1, 8 and 32 streams
    python -m bench.server.native_comparison vllm --streams 8 --pairs 6    some

Both servers stay loaded with the same settings and get the same prompts in each pair; prompts differ between pairs, so that a
prefix cache helps neither. Every response has the same number of tokens by the server's own usage.

Targets: output tokens/s at least 1.00 times the engine's own server (transformers at 32 streams: 1.5 times), p95 TTFT at most
1.05 times, no request lost.
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

_TOKENS = {1: 32, 8: 24, 32: 16}  # output tokens per request by streams, so that a run takes seconds
_REQUESTS_EACH = {1: 6, 8: 2, 32: 2}  # requests per stream
_SPEED_TARGET = {("transformers", 32): 1.5}
_STORY = (
    "Tell the story of a small village by the sea where {number} fishermen lived. Say who they were, what they caught, "
    "why they quarrelled one winter, and how the village looked when the spring came back and the boats went out again."
)


Sides = dict[str, tuple[BayServer | NativeServer, str]]  # each server and its URL


def make_prompts(pair: int, count: int) -> list[str]:
    """Make prompts that differ from their first word on, within a pair and between pairs."""
    return [f"{pair * 1000 + index} is the number. " + _STORY.format(number=index + 2) for index in range(count)]


def measure(side: BayServer | NativeServer, url: str, pair: int, streams: int, tokens: int) -> LoadResult:
    requests = streams * _REQUESTS_EACH.get(streams, 2)
    bodies = [
        build_chat_body(side.model, tokens, True, prompt, **build_extra_fields(side, tokens))
        for prompt in make_prompts(pair, requests)
    ]
    workload = HttpWorkload(
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
    return run_workload(workload)


def build_extra_fields(side: BayServer | NativeServer, tokens: int) -> dict[str, object]:
    """Return the fields for greedy sampling, usage, and generation past EOS, as this server names them."""
    common: dict[str, object] = {"temperature": 0, "stream_options": {"include_usage": True}}
    ignore_eos = side.ignore_eos_fields(tokens) if isinstance(side, NativeServer) else {"ignore_eos": True}
    return common | ignore_eos


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
    """Measure all pairs at one number of streams; the first pair warms up."""
    speeds, ttfts, lost = [], [], 0
    for pair in range(-1, pairs):
        results = {}
        for name in ("ours", "own") if pair % 2 else ("own", "ours"):
            result = measure(*sides[name], pair + 1 + streams * 100, streams, tokens)
            results[name] = result
            lost += result.lost
            if result.lost:
                print(f"{kind}, {name}, {streams} streams: {result.lost} lost: {result.reasons[0]}", flush=True)
        if pair >= 0 and all(result.requests for result in results.values()):
            speeds.append((results["ours"].tokens_per_s, results["own"].tokens_per_s))
            ttfts.append((percentile(results["ours"].ttfts_s, 95), percentile(results["own"].ttfts_s, 95)))
    return _report(kind, streams, pairs, speeds, ttfts, lost)


def _report(
    kind: str,
    streams: int,
    pairs: int,
    speeds: Sequence[tuple[float, float]],
    ttfts: Sequence[tuple[float, float]],
    lost: int,
) -> bool:
    if len(speeds) < pairs:
        print(f"{kind}, {streams} streams: only {len(speeds)} of {pairs} pairs succeeded; no ratio   MISSED")
        return False
    ours, own = (statistics.mean(pair[side] for pair in speeds) for side in (0, 1))
    target = _SPEED_TARGET.get((kind, streams), 1.0)
    good = check_at_least(
        target, f"{kind}, {streams} streams, tok/s {ours:.0f} : {own:.0f}", [mine / theirs for mine, theirs in speeds]
    )
    ours, own = (statistics.mean(pair[side] for pair in ttfts) * 1000 for side in (0, 1))
    good &= check_at_most(
        1.05,
        f"{kind}, {streams} streams, p95 TTFT ms {ours:.0f} : {own:.0f}",
        [mine / theirs for mine, theirs in ttfts],
    )
    if lost:
        print(f"{kind}, {streams} streams: {lost} requests lost   MISSED")
    return good and not lost


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("engines", nargs="*", default=list(NATIVE_SERVERS), help=f"any of {', '.join(NATIVE_SERVERS)}")
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 8, 32])
    parser.add_argument("--pairs", type=int, default=5, choices=range(5, 11))
    parser.add_argument("--tokens", type=int, help="output tokens per request")
    args = parser.parse_args()
    exit_on_sigterm()
    results = [compare(kind, args.streams, args.pairs, args.tokens) for kind in args.engines]
    sys.exit(0 if all(results) else 1)
