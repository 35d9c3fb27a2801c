"""Measure the load generator's own ceiling on this machine, against a built-in server that does no work.

A rate above the ceiling is rejected: it would measure the client instead of the server.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from enginebay.errors import ConfigError
from enginebay.lab.loadgen.sender_pool import LoadgenFailed, LoadgenResult, run_loadgen
from enginebay.lab.loadgen.sender_task import TargetServer, split_into_tasks
from enginebay.lab.workload.request_records import Request

CALIBRATION_S = 1.0
_CONCURRENCY = 64
_LONG_OUTPUT_TOKENS, _SHORT_OUTPUT_TOKENS = 128, 1  # to measure tokens/s, and requests/s
_MAX_REQUESTS = 20_000  # prepared for a calibration; more than any Python process sends in `CALIBRATION_S`


@dataclass(frozen=True, slots=True)
class ClientCeiling:
    """The highest throughput of this client on this machine. The calibration server shared its cores."""

    tokens_per_s: float
    requests_per_s: float
    processes: int

    def check(self, rate: float, output_tokens: float) -> None:
        """Raise `ConfigError` if the rate is above the ceiling."""
        if rate > self.requests_per_s:
            raise ConfigError(
                f"{rate:g} requests/s is above what this client can send here ({self.requests_per_s:,.0f})",
                "use a lower rate, or a client machine with more cores",
                param="rate",
            )
        if rate * output_tokens > self.tokens_per_s:
            raise ConfigError(
                f"{rate:g} requests/s of {output_tokens:g} tokens are {rate * output_tokens:,.0f} tokens/s, "
                f"above what this client can receive here ({self.tokens_per_s:,.0f})",
                "use a lower rate or fewer tokens, or a client machine with more cores",
                param="rate",
            )


def default_process_count() -> int:
    """Return half of the cores, at most eight. With more, processes wait for each other, and the wait is measured."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(8, cores // 2))


@contextmanager
def run_calibration_server(ttft_s: float = 0.0, itl_s: float = 0.0, core: int | None = None) -> Iterator[str]:
    """Run the calibration server in its own process, and yield its address."""
    flags = [f"--ttft-s={ttft_s}", f"--itl-s={itl_s}", *([] if core is None else [f"--core={core}"])]
    command = [sys.executable, "-m", "enginebay.lab.loadgen.calibration_server", *flags]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True)
    try:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        if not port:
            raise LoadgenFailed("the calibration server did not start", "see its output above")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def calibrate(processes: int | None = None, seconds: float = CALIBRATION_S) -> ClientCeiling:
    """Measure the ceiling: a second of long responses, a second of short ones."""
    processes = processes or default_process_count()
    with run_calibration_server() as url:
        long = _measure_burst(url, _LONG_OUTPUT_TOKENS, processes, seconds)
        short = _measure_burst(url, _SHORT_OUTPUT_TOKENS, processes, seconds)
    tokens = sum(record.output_tokens or 0 for record in long.records)
    return ClientCeiling(tokens / long.window_s, len(short.records) / short.window_s, processes)


def _measure_burst(url: str, tokens: int, processes: int, seconds: float) -> LoadgenResult:
    requests = [Request((1, 2, 3), 3, tokens)] * _MAX_REQUESTS
    tasks = split_into_tasks(
        TargetServer(url, "known"), requests, None, _CONCURRENCY, processes, stop_sending_s=seconds
    )
    result = run_loadgen(tasks, requests)
    failed = next((record for record in result.records if record.error), None)
    if failed is not None:
        raise LoadgenFailed(f"the load generator failed to calibrate: {failed.error} {failed.detail}", "")
    return result
