"""Routing between replicas: the time of a decision, and what it gains over random and least-load routing.

    make bench-router
    python -m bench.router --parts decision simulation      without a real engine
    python -m bench.router --rounds 10                      more of them

1. The processor time of one decision with 1,000 replicas, by session, by prefix and by least load, each with its update
   of the loads. Hashing the prompt comes on top of a decision by prefix, and is printed beside it.
2. Multi-turn conversations on simulated replicas with prefix caches; the router is the real one.
3. The same on two llama.cpp replicas behind `bay serve`, against random routing by the same server.

Targets: a decision under 20 µs; at least 1.25 times the cached tokens of random and of least-load routing, and at most
0.8 times their mean time to first token, while the busiest replica is at most a tenth above the bound, 1.25 times the
mean rounded up. It can be above it for a moment, when requests end elsewhere.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from bench.router.decision_time import PROMPT_TOKENS, measure_decisions, measure_hashing
from bench.router.real_replicas import ConversationTally, RealReplicas
from bench.router.simulated_replicas import POLICIES, SimulationResult, TraceShape, simulate
from bench.server.server_process import exit_on_sigterm
from bench.server.thresholds import check_at_least, check_at_most

PARTS = ("decision", "simulation", "llamacpp")
_REPLICAS = 1000
_CACHE_TOKENS = 200_000
_SHAPES = {16: TraceShape(600, 15, 6), 64: TraceShape(2400, 60, 6), 1000: TraceShape(6000, 300, 2, think_s=3.0)}
_PEERS = ("at random", "by least load")


def judge_decisions(rounds: int) -> bool:
    print(f"one decision with {_REPLICAS} replicas, in µs of processor time", flush=True)
    timings = measure_decisions(_REPLICAS, rounds)
    met = [check_at_most(20.0, f"by {name}", values) for name, values in timings.items()]
    hashing = measure_hashing(rounds)
    mean = sum(hashing) / len(hashing)
    print(f"hashing a prompt: {mean:.1f} µs per 1,024 tokens, {mean * PROMPT_TOKENS / 1024:.1f} µs for {PROMPT_TOKENS}")
    return all(met)


def judge_simulation(rounds: int) -> bool:
    met = True
    for replicas, shape in _SHAPES.items():
        results = {
            name: [simulate(policy, replicas, shape, _CACHE_TOKENS, seed) for seed in range(rounds)]
            for name, policy in POLICIES.items()
        }
        _print_simulation(replicas, shape, results)
        ours = results["by prefix"]
        for peer in _PEERS:
            theirs = results[peer]
            cached = [one.hit_rate / other.hit_rate for one, other in zip(ours, theirs, strict=True)]
            ttft = [one.mean_ttft_s / other.mean_ttft_s for one, other in zip(ours, theirs, strict=True)]
            met &= check_at_least(1.25, f"{replicas} replicas: cached tokens over {peer}", cached)
            met &= check_at_most(0.8, f"{replicas} replicas: mean TTFT over {peer}", ttft)
        spread = [one.mean_excess for one in ours]
        met &= check_at_most(1.1, f"{replicas} replicas: busiest replica over the bound", spread)
    return met


def _print_simulation(replicas: int, shape: TraceShape, results: dict[str, list[SimulationResult]]) -> None:
    print(f"\n{replicas} simulated replicas, {shape.conversations} conversations of {shape.turns} turns")
    print(f"{'routed':<16}{'cached':>8}{'TTFT':>10}{'p95':>10}{'busiest/mean':>14}")
    for name, runs in results.items():
        hit_rate, ttft, p95, spread = (
            sum(values) / len(runs)
            for values in zip(
                *((run.hit_rate, run.mean_ttft_s, run.p95_ttft_s, run.mean_imbalance) for run in runs), strict=True
            )
        )
        print(f"{name:<16}{hit_rate:>8.1%}{ttft * 1e3:>7.0f} ms{p95 * 1e3:>7.0f} ms{spread:>14.2f}", flush=True)


def judge_llamacpp(rounds: int) -> bool:
    server = RealReplicas()
    pairs: list[tuple[ConversationTally, ConversationTally]] = []
    try:
        server.start()
        for number in range(rounds):
            first = server.converse(at_random=bool(number % 2))
            second = server.converse(at_random=not number % 2)
            pairs.append((second, first) if number % 2 else (first, second))
    finally:
        server.stop()
    print("\ntwo llama.cpp replicas, multi-turn conversations")
    for name, tallies in zip(("by prefix", "at random"), zip(*pairs, strict=True), strict=True):
        hit_rate = sum(tally.hit_rate for tally in tallies) / rounds
        ttft = sum(tally.mean_ttft_s for tally in tallies) / rounds
        shares = [tally.replicas.count("talk") / len(tally.replicas) for tally in tallies]
        print(f"{name:<16}{hit_rate:>8.1%} cached{ttft * 1e3:>7.0f} ms TTFT, first replica {sum(shares) / rounds:.0%}")
    ratios = [ours.mean_ttft_s / theirs.mean_ttft_s for ours, theirs in pairs]
    return check_at_most(0.8, "2 llama.cpp replicas: mean TTFT over at random", ratios)


def main(parts: Sequence[str], rounds: int) -> int:
    judges = {"decision": judge_decisions, "simulation": judge_simulation, "llamacpp": judge_llamacpp}
    met = [judges[part](rounds) for part in parts]
    return 0 if all(met) else 1


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="Measure routing between the replicas of a model.")
    options.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    options.add_argument("--rounds", type=int, default=5, choices=range(5, 11))
    arguments = options.parse_args()
    exit_on_sigterm()
    sys.exit(main(arguments.parts, arguments.rounds))
