"""Check the load generator against a server with known delays, and compare it with others.

    python -m bench.lab.loadgen_accuracy                 all of it
    python -m bench.lab.loadgen_accuracy accuracy poisson

accuracy   at half of the client's own ceiling, measured latencies are within 1 ms or 2% of the configured ones
poisson    500 requests/s in an open loop: the rate is within 1%, and the p99 send lag is under 5 ms
peers      the same server under `vllm bench serve` and guidellm: how many streamed tokens/s each sustains
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
    tasks = split_into_tasks(TargetServer(url, "known"), requests, times, concurrency, default_process_count())
    result = run_loadgen(tasks, requests)
    failed = [record for record in result.records if record.error]
    if failed:
        raise SystemExit(f"{len(failed)} of {count} requests failed: {failed[0].error} {failed[0].detail}")
    return result


def check_accuracy() -> bool:
    """Compare every published percentile with the configured delays."""
    ceiling = calibrate()
    print(f"ceiling: {ceiling.tokens_per_s:,.0f} streamed tokens/s, {ceiling.requests_per_s:,.0f} requests/s")
    rate = ceiling.tokens_per_s / 2 / TOKENS
    met = True
    with run_calibration_server(TTFT_S, ITL_S) as url:
        times = arrivals.constant(rate, int(rate * 10))
        result = send_requests(url, len(times), TOKENS, times, 64)
        tokens = sum(record.output_tokens or 0 for record in result.records)
        print(f"at {rate:,.0f} requests/s of {TOKENS} tokens: {tokens / result.window_s:,.0f} tokens/s")
        total_s = TTFT_S + ITL_S * (TOKENS - 1)
        ttfts = [record.first_s - record.sent_s for record in result.records if record.first_s is not None]
        totals = [record.last_s - record.sent_s for record in result.records if record.last_s is not None]
        gaps = [b - a for times in result.tokens.values() for a, b in pairwise(times)]
        for name, values, configured_s in (
            ("TTFT", ttfts, TTFT_S),
            ("ITL", gaps, ITL_S),
            ("to the last token", totals, total_s),
        ):
            met &= _check_within(name, values, configured_s)
    return met


def _check_within(name: str, values: Sequence[float], configured_s: float) -> bool:
    summary = summarize(values)
    allowed_s = max(0.001, 0.02 * configured_s)
    met = True
    for statistic in ("mean", "median", "p90", "p95", "p99"):
        off_s = getattr(summary, statistic) - configured_s
        is_met = abs(off_s) <= allowed_s
        met &= is_met
        print(f"{name:<20}{statistic:<8}{getattr(summary, statistic) * 1e3:9.3f} ms, configured {configured_s * 1e3:9.3f} ms,"
              f" off by {off_s * 1e3:+.3f} ms (at most {allowed_s * 1e3:.1f}): {'met' if is_met else 'MISSED'}")  # fmt: skip
    return met


def check_poisson() -> bool:
    """Check five times, to rule out luck."""
    met = True
    with run_calibration_server(0.02, 0.002) as url:
        for seed in range(PAIRS):
            times = arrivals.poisson(RATE, int(RATE * SECONDS), seed)
            result = send_requests(url, len(times), 16, times, 64)
            sent = sorted(record.sent_s for record in result.records)
            scheduled = (len(times) - 1) / (times[-1] - times[0])
            measured = (len(sent) - 1) / (sent[-1] - sent[0])
            lag_s = summarize([record.sent_s - record.intended_s for record in result.records]).p99
            is_met = abs(measured / scheduled - 1) <= 0.01 and abs(measured / RATE - 1) <= 0.01 and lag_s < 0.005
            met &= is_met
            print(f"scheduled {scheduled:.2f} requests/s, sent {measured:.2f}; p99 send lag {lag_s * 1e3:.2f} ms:"
                  f" {'met' if is_met else 'MISSED'}")  # fmt: skip
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
    print(f"{fmean(results):.0%} of the parts met their target")
    sys.exit(0 if all(results) else 1)
