"""Compare our load generator with `vllm bench serve` and guidellm: how many streamed tokens/s each sustains.

    python -m bench.lab.loadgen_comparison            five pairs
    python -m bench.lab.loadgen_comparison 8

The server's delays are known, so what a load generator should report is known too. Requests go out at a constant rate, the
easiest load: no two streams need the client at the same moment by design. A rate is sustained if every response is
complete, the rate is within 5%, and the mean TTFT and mean time per output token that the load generator itself reports are
within 5% of the server's. The search goes in steps of 15%; a failed step is tried twice. Load generators take turns, all
with the same priority, and share the machine with the server alone.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from statistics import fmean

from bench.lab.loadgen_results import (
    KnownDelays,
    Loadgen,
    LoadgenReport,
    ObservedRequest,
    RateWorkload,
    compute_throughput,
    find_faults,
    find_highest_step,
    make_constant_rate,
    summarize_requests,
)
from bench.lab.rival_loadgens import INPUT_TOKENS, Guidellm, VllmBench
from bench.server.thresholds import check_at_least
from enginebay.lab.loadgen.calibration import default_process_count, run_calibration_server
from enginebay.lab.loadgen.process_priority import raise_priority
from enginebay.lab.loadgen.sender_pool import run_loadgen
from enginebay.lab.loadgen.sender_task import TargetServer, split_into_tasks
from enginebay.lab.profiles import arrivals
from enginebay.lab.workload.request_records import Request

TARGET_RATIO = 2.0
KNOWN = KnownDelays(ttft_s=0.1, itl_s=0.01, tokens=128)
WARMUP_S, MEASURED_S = 2.0, 5.0
_LOWEST, _STEP, _STRIDE = 2.0, 1.15, 5  # requests/s, factor per step, and steps at once at the start
_TRIES = 2
_GUIDELLM_PROCESSES = (1, 2, None)  # None: its default
_AT_ONCE = 64  # requests in flight without a rate; initial connections of ours with one


class OwnLoadgen:
    """The lab's load generator, as `bay experiment` uses it."""

    name = "ours"

    def run_workload(self, workload: RateWorkload) -> list[ObservedRequest]:
        requests = [Request(tuple(range(1, INPUT_TOKENS + 1)), INPUT_TOKENS, workload.tokens)] * workload.requests
        times = arrivals.constant(workload.rate, workload.requests) if workload.concurrency is None else None
        connections = workload.concurrency or _AT_ONCE
        tasks = split_into_tasks(
            TargetServer(workload.url, "known"), requests, times, connections, default_process_count()
        )
        observed = []
        for record in run_loadgen(tasks, requests).records:
            if record.error is None and record.first_s and record.last_s and record.output_tokens:
                tpot_s = (record.last_s - record.first_s) / max(1, record.output_tokens - 1)
                ttft_s = record.first_s - record.sent_s
                observed.append(ObservedRequest(record.sent_s, record.last_s, record.output_tokens, ttft_s, tpot_s))
        return observed


class SustainedRateSearch:
    """Finds what a load generator sustains, each time starting from the last result."""

    def __init__(self, client: Loadgen) -> None:
        self.client = client
        self._start: int | None = None
        self._reports: dict[int, LoadgenReport] = {}

    def find_sustained(self) -> float:
        """Return tokens/s at the highest sustained rate; 0 if not even the lowest is."""
        self._reports = {}
        start = self._find_rough_step() if self._start is None else self._start
        step = find_highest_step(self._sustains, start)
        self._start = step or 0
        return 0.0 if step is None else self._reports[step].tokens_per_s

    def _find_rough_step(self) -> int:
        """Return the last step before the first failure, in long strides."""
        step = 0
        while self._sustains(step + _STRIDE):
            step += _STRIDE
        return step

    def _sustains(self, step: int) -> bool:
        if step in self._reports:
            return True
        for _ in range(_TRIES):
            with run_calibration_server(KNOWN.ttft_s, KNOWN.itl_s) as url:
                workload = make_constant_rate(url, KNOWN.tokens, round(_LOWEST * _STEP**step, 2), WARMUP_S, MEASURED_S)
                report = summarize_requests(self.client.run_workload(workload), workload)
            faults = find_faults(report, workload, KNOWN)
            _print_report(self.client.name, report, ", ".join(faults) or "sustained")
            if not faults:
                self._reports[step] = report
                return True
        return False


def _print_report(name: str, report: LoadgenReport, result: str) -> None:
    print(
        f"    {name:<24}{report.rate:>8.2f} requests/s {report.tokens_per_s:>9,.0f} tokens/s   "
        f"TTFT {report.ttft_s * 1e3:8.2f} ms   TPOT {report.tpot_s * 1e3:7.3f} ms   {result}",
        flush=True,
    )


def measure_ceiling(client: Loadgen) -> float:
    """Return tokens/s from a server without delays, 64 requests at once; several tokens of a stream arrive together."""
    with run_calibration_server() as url:
        workload = RateWorkload(url, KNOWN.tokens, _AT_ONCE, 8 * _AT_ONCE, concurrency=_AT_ONCE)
        tokens_per_s = compute_throughput(client.run_workload(workload), workload)
    print(f"without delays: {client.name:<24}{tokens_per_s:>9,.0f} tokens/s", flush=True)
    return tokens_per_s


def choose_guidellm() -> Loadgen:
    """Return guidellm with the number of processes that gets the most from a server without delays."""
    clients = [Guidellm(processes) for processes in _GUIDELLM_PROCESSES]
    return max(clients, key=measure_ceiling)


def compare_with_peers(pairs: int) -> bool:
    """Return whether ours sustains twice what each of the others does."""
    raise_priority()  # child processes inherit it; ours and the server have it anyway
    ours, vllm = OwnLoadgen(), VllmBench()
    measure_ceiling(ours)
    measure_ceiling(vllm)
    clients: Sequence[Loadgen] = (ours, vllm, choose_guidellm())
    searches = [SustainedRateSearch(client) for client in clients]
    sustained: dict[str, list[float]] = {client.name: [] for client in clients}
    for pair in range(pairs):
        print(f"pair {pair + 1} of {pairs}", flush=True)
        turn = pair % len(searches)
        for search in (*searches[turn:], *searches[:turn]):
            sustained[search.client.name].append(search.find_sustained())
        print("  " + ", ".join(f"{name} {values[-1]:,.0f}" for name, values in sustained.items()), flush=True)
    return _judge(sustained)


def _judge(sustained: dict[str, list[float]]) -> bool:
    ours = sustained.pop(OwnLoadgen.name)
    print(f"ours sustains {fmean(ours):,.0f} streamed tokens/s", flush=True)
    met = True
    for name, peer in sustained.items():
        print(f"{name} sustains {fmean(peer):,.0f}", flush=True)
        if not all(peer):
            print(f"{name} is not within the error at any rate, so there is no ratio: MISSED", flush=True)
            met = False
            continue
        ratios = [a / b for a, b in zip(ours, peer, strict=True)]
        met &= check_at_least(TARGET_RATIO, f"sustained tokens/s, ours over {name}", ratios)
    return met


if __name__ == "__main__":
    sys.exit(0 if compare_with_peers(int(sys.argv[1]) if sys.argv[1:] else 5) else 1)
