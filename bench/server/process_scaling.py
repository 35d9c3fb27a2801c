"""Measure how `bay serve --workers` scales with the number of server processes.

    python -m bench.server.process_scaling --workers 1 2

Servers, fake engines and load generator share all cores. With few cores there is no room to scale and no target; a large host
has a fake engine for every four cores, and the load generator gets a quarter of them.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Sequence

from bench.server.bay_server import BayServer
from bench.server.gateway_comparison import REQUESTS, STREAMS, Scenario
from bench.server.loadgen import HttpWorkload, build_chat_body, run_workload
from bench.server.server_process import exit_on_sigterm
from bench.server.thresholds import check_at_least

_SCRIPT = "abcdefghijklmnopqrstuvwxyz" * 10


def measure(server: BayServer, url: str, scenario: Scenario, seconds: float) -> float:
    models = _list_models()
    workload = HttpWorkload(
        url=url,
        bodies=[build_chat_body(model, scenario.tokens, scenario.stream) for model in models],
        connections=scenario.connections * len(models),
        seconds=seconds,
        stream=scenario.stream,
        tokens=scenario.tokens,
        headers=server.headers,
    )
    result = run_workload(workload, _choose_client_cores())
    if result.lost:
        raise SystemExit(f"{result.lost} responses lost: {result.reasons[0]}")
    return result.tokens_per_s


def compare(workers: Sequence[int], rounds: int, seconds: float) -> bool:
    servers = {
        count: BayServer(
            f"{count}",
            _list_models()[0],
            "fake",
            {"script": _SCRIPT},
            options=(*_list_models()[1:], "--workers", str(count)),
        )
        for count in workers
    }
    values: dict[tuple[int, str], list[float]] = {}
    try:
        urls = {count: server.start() for count, server in servers.items()}
        for number in range(-1, rounds):
            for count in workers if number % 2 else reversed(workers):
                for scenario in (REQUESTS, STREAMS):
                    tokens_per_s = measure(servers[count], urls[count], scenario, seconds)
                    if number >= 0:
                        values.setdefault((count, scenario.name), []).append(tokens_per_s)
    finally:
        for server in servers.values():
            server.stop()
    good = True
    for scenario in (REQUESTS, STREAMS):
        base = values[workers[0], scenario.name]
        for count in workers[1:]:
            more = values[count, scenario.name]
            name = (
                f"{scenario.name}, {count} processes, tok/s {statistics.mean(more):,.0f} : {statistics.mean(base):,.0f}"
            )
            ratios = [value / single for value, single in zip(more, base, strict=True)]
            if _count_cores() >= count + 2:
                good &= check_at_least(1.0, name, ratios)
            else:
                print(
                    f"{name:<60}{statistics.mean(ratios):>8.2f}   no target: client, engine and servers share {_count_cores()} cores"
                )
    return good


def _count_cores() -> int:
    return len(os.sched_getaffinity(0))


def _list_models() -> list[str]:
    """Return the fake models. One engine emits about as many tokens as one server process forwards: a large host has several."""
    return [f"fake-{number}" for number in range(max(1, _count_cores() // 4))]


def _choose_client_cores() -> list[int]:
    """Return a quarter of the cores on a large host, for a client process each; else none: one unpinned process."""
    cores = sorted(os.sched_getaffinity(0))
    return cores[-(len(cores) // 4) :] if len(cores) >= 8 else []


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5, choices=range(5, 21))
    parser.add_argument("--seconds", type=float, default=3.0, help="duration of each measurement")
    args = parser.parse_args()
    exit_on_sigterm()
    sys.exit(0 if compare(args.workers, args.rounds, args.seconds) else 1)
