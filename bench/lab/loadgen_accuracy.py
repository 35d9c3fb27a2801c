"""The load client against a server whose delays are known, and beside the load clients of others.

    python -m bench.lab.loadgen_accuracy                 all of it
    python -m bench.lab.loadgen_accuracy accuracy poisson

accuracy   at half of the client's own ceiling, measured latencies are within 1 ms or 2% of the configured ones
poisson    500 requests/s in an open loop: the rate is held within 1%, and p99 of the send lag is under 5 ms
peers      the same server under `vllm bench serve` and guidellm: how many streamed tokens/s each of us sustains
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import fmean

from bench.lab.loadgen_comparison import compare_with_peers
from enginebay.lab.loadgen.calibration import calibrate, default_process_count, run_calibration_server
from enginebay.lab.loadgen.sender_pool import LoadgenResult, run_loadgen
from enginebay.lab.loadgen.sender_task import TargetServer, split_into_tasks
from enginebay.lab.measures.distribution import summarize
from enginebay.lab.profiles import arrivals
from enginebay.lab.workload.request_records import Request

TTFT_S, ITL_S, TOKENS = 0.1, 0.02, 64
RATE, SECONDS = 500.0, 20.0
PAIRS = 5


def send_requests(url: str, count: int, tokens: int, times: Sequence[float] | None, concurrency: int) -> LoadgenResult:
    requests = [Request((1, 2, 3), 3, tokens)] * count
    orders = split_into_tasks(TargetServer(url, "known"), requests, times, concurrency, default_process_count())
    fired = run_loadgen(orders, requests)
    wrong = [record for record in fired.records if record.error]
    if wrong:
        raise SystemExit(f"{len(wrong)} of {count} requests failed: {wrong[0].error} {wrong[0].detail}")
    return fired


def check_accuracy() -> bool:
    """Every percentile that is published, against what the server was told to do."""
    ceiling = calibrate()
    print(f"ceiling: {ceiling.tokens_per_s:,.0f} streamed tokens/s, {ceiling.requests_per_s:,.0f} requests/s")
    rate = ceiling.tokens_per_s / 2 / TOKENS
    met = True
    with run_calibration_server(TTFT_S, ITL_S) as url:
        times = arrivals.constant(rate, int(rate * 10))
        fired = send_requests(url, len(times), TOKENS, times, 64)
        tokens = sum(record.output_tokens or 0 for record in fired.records)
        print(f"at {rate:,.0f} requests/s of {TOKENS} tokens: {tokens / fired.window_s:,.0f} tokens/s")
        whole_s = TTFT_S + ITL_S * (TOKENS - 1)
        ttfts = [record.first_s - record.sent_s for record in fired.records if record.first_s is not None]
        wholes = [record.last_s - record.sent_s for record in fired.records if record.last_s is not None]
        gaps = [b - a for own in fired.tokens.values() for a, b in pairwise(own)]
        for name, values, wanted_s in (
            ("TTFT", ttfts, TTFT_S),
            ("ITL", gaps, ITL_S),
            ("to the last token", wholes, whole_s),
        ):
            met &= _check_within(name, values, wanted_s)
    return met


def _check_within(name: str, values: Sequence[float], wanted_s: float) -> bool:
    found = summarize(values)
    allowed_s = max(0.001, 0.02 * wanted_s)
    met = True
    for part in ("mean", "median", "p90", "p95", "p99"):
        off_s = getattr(found, part) - wanted_s
        fine = abs(off_s) <= allowed_s
        met &= fine
        print(f"{name:<20}{part:<8}{getattr(found, part) * 1e3:9.3f} ms, configured {wanted_s * 1e3:9.3f} ms,"
              f" off by {off_s * 1e3:+.3f} ms (at most {allowed_s * 1e3:.1f}): {'met' if fine else 'MISSED'}")  # fmt: skip
    return met


def check_poisson() -> bool:
    """Five times, so that it was not luck."""
    met = True
    with run_calibration_server(0.02, 0.002) as url:
        for seed in range(PAIRS):
            times = arrivals.poisson(RATE, int(RATE * SECONDS), seed)
            fired = send_requests(url, len(times), 16, times, 64)
            sent = sorted(record.sent_s for record in fired.records)
            asked = (len(times) - 1) / (times[-1] - times[0])
            held = (len(sent) - 1) / (sent[-1] - sent[0])
            lag_s = summarize([record.sent_s - record.intended_s for record in fired.records]).p99
            fine = abs(held / asked - 1) <= 0.01 and abs(held / RATE - 1) <= 0.01 and lag_s < 0.005
            met &= fine
            print(f"asked {asked:.2f} requests/s, sent {held:.2f}; p99 of the send lag {lag_s * 1e3:.2f} ms:"
                  f" {'met' if fine else 'MISSED'}")  # fmt: skip
    return met


def check_peers() -> bool:
    return compare_with_peers(PAIRS)


PARTS: dict[str, Callable[[], bool]] = {"accuracy": check_accuracy, "poisson": check_poisson, "peers": check_peers}

if __name__ == "__main__":
    chosen = sys.argv[1:] or list(PARTS)
    results = []
    for part in chosen:
        print(f"== {part}", flush=True)
        results.append(PARTS[part]())
    print(f"{fmean(results):.0%} of the parts met their bar")
    sys.exit(0 if all(results) else 1)
