"""What further server processes bring: `bay serve --workers` on one set of models, on all cores.

    python -m bench.server.process_scaling --workers 1 2

All of it runs on the same cores: servers, fake engines and load client. Where these are few there is nothing to grow into,
and no bar; a large host has a fake engine for every four cores, and the client has a quarter of them.
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
    load = HttpWorkload(
        url=url,
        bodies=[build_chat_body(model, scenario.tokens, scenario.stream) for model in models],
        connections=scenario.connections * len(models),
        seconds=seconds,
        stream=scenario.stream,
        tokens=scenario.tokens,
        headers=server.headers,
    )
    result = run_workload(load, _choose_client_cores())
    if result.lost:
        raise SystemExit(f"{result.lost} answers lost: {result.reasons[0]}")
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
                    found = measure(servers[count], urls[count], scenario, seconds)
                    if number >= 0:
                        values.setdefault((count, scenario.name), []).append(found)
    finally:
        for server in servers.values():
            server.stop()
    good = True
    for scenario in (REQUESTS, STREAMS):
        base = values[workers[0], scenario.name]
        for count in workers[1:]:
            more = values[count, scenario.name]
            what = (
                f"{scenario.name}, {count} processes, tok/s {statistics.mean(more):,.0f} : {statistics.mean(base):,.0f}"
            )
            ratios = [mine / one for mine, one in zip(more, base, strict=True)]
            if _count_cores() >= count + 2:
                good &= check_at_least(1.0, what, ratios)
            else:
                print(
                    f"{what:<60}{statistics.mean(ratios):>8.2f}   no bar: client, engine and servers share {_count_cores()} cores"
                )
    return good


def _count_cores() -> int:
    return len(os.sched_getaffinity(0))


def _list_models() -> list[str]:
    """One engine makes about as many tokens as one server process passes on: a large host has several to share."""
    return [f"fake-{number}" for number in range(max(1, _count_cores() // 4))]


def _choose_client_cores() -> list[int]:
    """On a large host the client has a quarter of the cores, a process on each; else one process, where there is room."""
    cores = sorted(os.sched_getaffinity(0))
    return cores[-(len(cores) // 4) :] if len(cores) >= 8 else []


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--workers", type=int, nargs="*", default=[1, 2])
    options.add_argument("--rounds", type=int, default=5, choices=range(5, 21))
    options.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    given = options.parse_args()
    exit_on_sigterm()
    sys.exit(0 if compare(given.workers, given.rounds, given.seconds) else 1)
