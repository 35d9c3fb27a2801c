"""Our load client beside `vllm bench serve` and guidellm: how many streamed tokens/s each sustains, on the same server.

    python -m bench.lab.loadgen_comparison            five pairs
    python -m bench.lab.loadgen_comparison 8

The server's delays are known, so what a client should report is known too. Requests go out at a constant rate, the kindest
load there is: no two streams need the client at the same moment by design. A rate is sustained when every answer is whole,
the rate is held within 5%, and the mean TTFT and the mean time per output token that the client itself reports are within
5% of the server's. The highest rate that is sustained is looked for in steps of 15%; a step that fails is tried twice.
Clients take turns, all with the same priority, and share the machine with the server alone.
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

BAR = 2.0
KNOWN = KnownDelays(ttft_s=0.1, itl_s=0.01, tokens=128)
WARMUP_S, MEASURED_S = 2.0, 5.0
_LOWEST, _STEP, _STRIDE = 2.0, 1.15, 5  # requests/s, from one step to the next, and steps at once when nothing is known
_TRIES = 2
_GUIDELLM_PROCESSES = (1, 2, None)  # None: as many as it likes
_AT_ONCE = 64  # requests where there is no rate; where there is, ours begins with so many connections


class OwnLoadgen:
    """The lab's own, as `bay experiment` uses it."""

    name = "ours"

    def run_workload(self, load: RateWorkload) -> list[ObservedRequest]:
        requests = [Request(tuple(range(1, INPUT_TOKENS + 1)), INPUT_TOKENS, load.tokens)] * load.requests
        times = arrivals.constant(load.rate, load.requests) if load.concurrency is None else None
        connections = load.concurrency or _AT_ONCE
        orders = split_into_tasks(
            TargetServer(load.url, "known"), requests, times, connections, default_process_count()
        )
        ones = []
        for record in run_loadgen(orders, requests).records:
            if record.error is None and record.first_s and record.last_s and record.output_tokens:
                tpot_s = (record.last_s - record.first_s) / max(1, record.output_tokens - 1)
                ttft_s = record.first_s - record.sent_s
                ones.append(ObservedRequest(record.sent_s, record.last_s, record.output_tokens, ttft_s, tpot_s))
        return ones


class SustainedRateSearch:
    """Finds what a client sustains, again and again, each time from where it was found before."""

    def __init__(self, client: Loadgen) -> None:
        self.client = client
        self._start: int | None = None
        self._reports: dict[int, LoadgenReport] = {}

    def find_sustained(self) -> float:
        """Tokens/s at the highest concurrency; 0 when not even the lowest is."""
        self._reports = {}
        start = self._find_rough_step() if self._start is None else self._start
        step = find_highest_step(self._sustains, start)
        self._start = step or 0
        return 0.0 if step is None else self._reports[step].tokens_per_s

    def _find_rough_step(self) -> int:
        """Where it fails for the first time, in long strides."""
        step = 0
        while self._sustains(step + _STRIDE):
            step += _STRIDE
        return step

    def _sustains(self, step: int) -> bool:
        if step in self._reports:
            return True
        for _ in range(_TRIES):
            with run_calibration_server(KNOWN.ttft_s, KNOWN.itl_s) as url:
                load = make_constant_rate(url, KNOWN.tokens, round(_LOWEST * _STEP**step, 2), WARMUP_S, MEASURED_S)
                seen = summarize_requests(self.client.run_workload(load), load)
            wrong = find_faults(seen, load, KNOWN)
            _print_report(self.client.name, seen, ", ".join(wrong) or "sustained")
            if not wrong:
                self._reports[step] = seen
                return True
        return False


def _print_report(name: str, seen: LoadgenReport, found: str) -> None:
    print(
        f"    {name:<24}{seen.rate:>8.2f} requests/s {seen.tokens_per_s:>9,.0f} tokens/s   "
        f"TTFT {seen.ttft_s * 1e3:8.2f} ms   TPOT {seen.tpot_s * 1e3:7.3f} ms   {found}",
        flush=True,
    )


def measure_ceiling(client: Loadgen) -> float:
    """Tokens/s from a server without delays, to 64 at once; several tokens of a stream arrive together then."""
    with run_calibration_server() as url:
        load = RateWorkload(url, KNOWN.tokens, _AT_ONCE, 8 * _AT_ONCE, concurrency=_AT_ONCE)
        found = compute_throughput(client.run_workload(load), load)
    print(f"without delays: {client.name:<24}{found:>9,.0f} tokens/s", flush=True)
    return found


def choose_guidellm() -> Loadgen:
    """It may run in any number of processes; the number that gets the most from a server without delays is used."""
    clients = [Guidellm(processes) for processes in _GUIDELLM_PROCESSES]
    return max(clients, key=measure_ceiling)


def compare_with_peers(pairs: int) -> bool:
    """Does ours sustain twice what each of the others does?"""
    raise_priority()  # and so are all that are started from here: ours and the server would be anyway
    ours, vllm = OwnLoadgen(), VllmBench()
    measure_ceiling(ours)
    measure_ceiling(vllm)
    clients: Sequence[Loadgen] = (ours, vllm, choose_guidellm())
    searches = [SustainedRateSearch(client) for client in clients]
    found: dict[str, list[float]] = {client.name: [] for client in clients}
    for pair in range(pairs):
        print(f"pair {pair + 1} of {pairs}", flush=True)
        turn = pair % len(searches)
        for search in (*searches[turn:], *searches[:turn]):
            found[search.client.name].append(search.find_sustained())
        print("  " + ", ".join(f"{name} {values[-1]:,.0f}" for name, values in found.items()), flush=True)
    return _judge(found)


def _judge(found: dict[str, list[float]]) -> bool:
    mine = found.pop(OwnLoadgen.name)
    print(f"ours sustains {fmean(mine):,.0f} streamed tokens/s", flush=True)
    met = True
    for name, theirs in found.items():
        print(f"{name} sustains {fmean(theirs):,.0f}", flush=True)
        if not all(theirs):
            print(f"{name} does not keep within the error at any load: no ratio can be told: MISSED", flush=True)
            met = False
            continue
        ratios = [a / b for a, b in zip(mine, theirs, strict=True)]
        met &= check_at_least(BAR, f"sustained tokens/s, ours over {name}", ratios)
    return met


if __name__ == "__main__":
    sys.exit(0 if compare_with_peers(int(sys.argv[1]) if sys.argv[1:] else 5) else 1)
