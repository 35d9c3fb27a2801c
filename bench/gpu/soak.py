"""Soak `bay serve` on a GPU: six minutes at 512 streams without an error and without memory growth.

    python -m bench.gpu.soak --model FOLDER --out FOLDER [--seconds 360] [--streams 512] [--memory 20]

The lab's load generator runs a closed loop, 64 to 256 tokens in and 32 to 192 out, while another client disconnects
mid-response. Resident memory of server, worker and engine process and GPU memory are sampled every 5 s; after the first
sixth of the time none of them may grow by 2%. Other processes may use the GPU meanwhile: its memory is read per process where
the driver reports that. Writes `soak.jsonl` as it goes. Exit code 1: a request failed, memory grew or could not be sampled, or a
process was replaced. GPU memory is optional only on a host without a working NVML.
`--seconds` is the duration of the load: starting takes about 50 s more, reading the responses about 15 s.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import sys
import threading
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from bench.gpu.memory_trend import GpuMemoryWatch, compute_growth, list_processes, sum_resident
from bench.gpu.systems_under_test import BayServe
from enginebay.lab.loadgen.calibration import default_process_count
from enginebay.lab.loadgen.sender_pool import LoadgenProgress, LoadgenResult, run_loadgen
from enginebay.lab.loadgen.sender_task import TargetServer, encode_request, split_into_tasks
from enginebay.lab.workload.request_records import Request
from enginebay.server.telemetry.prometheus_text import parse_metrics, sum_samples

JUDGED = ("server", "worker", "engine", "gpu")
MAX_GROWTH = 0.02
_SETTLE = 1 / 6  # share of the time in which caches fill and memory may grow
_SAMPLE_S, _SHOW_S = 5.0, 15.0
_DISTINCT = 4096  # prompts; more tokens than the KV cache holds, so that there are no prefix hits
_MAX_PER_S = 300  # requests prepared for each second
_MAX_FAILURES = 100  # then the run stops
_DISCONNECT_EVERY_S = 0.25
_RELEASE_TIMEOUT_S = 15.0
_VOCABULARY = range(100, 49000)  # ordinary tokens of every tokenizer used here
_RUNNING_METRIC = "enginebay_engine_running"


def make_requests(seed: int, count: int) -> list[Request]:
    """Make requests of many lengths, repeating the distinct ones. Pure."""
    source = random.Random(seed)
    distinct = []
    for _ in range(min(count, _DISTINCT)):
        length = source.randint(64, 256)
        prompt = tuple(source.choices(_VOCABULARY, k=length))
        distinct.append(Request(prompt, length, source.randint(32, 192)))
    return [distinct[number % len(distinct)] for number in range(count)]


def judge_growth(
    samples: Sequence[Mapping[str, float]], settled_s: float, judged: Sequence[str] = JUDGED
) -> dict[str, float | None]:
    """Return each kind's growth after settling; None if there are too few samples. Pure."""
    growth: dict[str, float | None] = {}
    for kind in judged:
        points = [
            (sample["at_s"], sample[kind]) for sample in samples if kind in sample and sample["at_s"] >= settled_s
        ]
        growth[kind] = compute_growth(points) if len(points) >= 3 else None
    return growth


class DisconnectingClient(threading.Thread):
    """Sends requests and disconnects before the response, at its first event, or later in it."""

    def __init__(self, target: TargetServer, requests: Sequence[Request], seed: int) -> None:
        super().__init__(daemon=True)
        self._target, self._requests, self._random = target, requests, random.Random(seed)
        self._stopped = threading.Event()
        self.disconnects = 0
        self.failures: list[str] = []

    def run(self) -> None:
        while not self._stopped.wait(_DISCONNECT_EVERY_S):
            try:
                self._send_and_disconnect(self._random.choice(self._requests), self._random.choice((0, 1, 8)))
            except OSError as error:
                self.failures.append(f"{type(error).__name__}: {error}")

    def _send_and_disconnect(self, request: Request, events: int) -> None:
        received = b""
        with socket.create_connection(self._target.address, timeout=self._target.timeout_s) as connection:
            connection.sendall(encode_request(self._target, request))
            while received.count(b"data: ") < events:
                piece = connection.recv(1 << 16)
                received += piece
                if not piece or b" 200 " not in received.partition(b"\r\n")[0]:
                    self.failures.append(f"got {received[:200]!r}")
                    return
        self.disconnects += 1

    def stop(self) -> None:
        self._stopped.set()
        self.join(self._target.timeout_s)


class MemoryWatch:
    """Samples memory and progress from within the load generator's loop."""

    def __init__(self, root: int, gpu: GpuMemoryWatch, out: Path, seconds: float) -> None:
        self._root, self._gpu, self._out, self._seconds = root, gpu, out, seconds
        self._sampled_s = self._shown_s = float("-inf")
        self._events = 0
        self.samples: list[dict[str, float]] = []
        self.workers: set[frozenset[int]] = (
            set()
        )  # PIDs of worker and engine; more than one set: a process was replaced

    def __call__(self, live: LoadgenProgress) -> bool:
        """Return True to stop sending."""
        if live.elapsed_s - self._sampled_s >= _SAMPLE_S:
            self._sampled_s = live.elapsed_s
            self._sample(live)
        if live.elapsed_s - self._shown_s >= _SHOW_S:
            self._show(live)
        return live.elapsed_s >= self._seconds or live.failed >= _MAX_FAILURES

    def _sample(self, live: LoadgenProgress) -> None:
        processes = list_processes(self._root)
        self.workers.add(frozenset(pid for pid, kind in processes.items() if kind != "server"))
        memory = {**sum_resident(processes), **self._gpu.read()}
        self.samples.append({"at_s": round(live.elapsed_s, 2), **memory})
        self.write({"what": "sample", **self.samples[-1], "ended": live.ended, "failed": live.failed})

    def _show(self, live: LoadgenProgress) -> None:
        since_s = live.elapsed_s - self._shown_s
        rate = (live.events - self._events) / since_s if self._shown_s > 0 else 0.0
        self._shown_s, self._events = live.elapsed_s, live.events
        held = "  ".join(f"{kind} {size / 2**20:,.1f}" for kind, size in self.samples[-1].items() if kind != "at_s")
        print(
            f"{live.elapsed_s:5.0f} s  {live.ended:,} responses, {live.failed} failed, {rate:,.0f} tok/s  MiB: {held}",
            flush=True,
        )

    def write(self, record: Mapping[str, Any]) -> None:
        with (self._out / "soak.jsonl").open("a") as lines:
            lines.write(json.dumps(record) + "\n")


def find_failures(result: LoadgenResult, requests: Sequence[Request], seconds: float) -> list[str]:
    """Return what is wrong with the responses or the load. Pure."""
    failures = [f"request {record.index}: {record.error} {record.detail}" for record in result.records if record.error]
    for record in result.records:
        expected = requests[record.index].output_tokens
        if not record.error and record.output_tokens != expected:
            failures.append(f"request {record.index}: {record.output_tokens} tokens instead of {expected}")
    if len(result.records) == len(requests):
        failures.append(f"all {len(requests)} requests were sent before the time was over: raise --most-per-s")
    if result.window_s < seconds:
        failures.append(f"the load ended after {result.window_s:.0f} s of {seconds:.0f}")
    return failures


def parse_held_requests(metrics: str) -> float | None:
    """Return the number of requests that all engines hold; None if no engine reports it. Pure."""
    return sum_samples(parse_metrics(metrics), _RUNNING_METRIC)


def wait_until_released(port: int) -> float | None:
    """Return how many requests the engine still holds after a grace period for disconnected ones; None if unknown."""
    deadline = monotonic() + _RELEASE_TIMEOUT_S
    while True:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
            held = parse_held_requests(response.read().decode())
        if held == 0 or monotonic() > deadline:
            return held
        sleep(0.5)


def soak(server: BayServe, gpu: GpuMemoryWatch, out: Path, args: argparse.Namespace) -> bool:
    """Run the load and return whether it passed."""
    watch = MemoryWatch(server.process.pid, gpu, out, args.seconds)
    gpu.identify(list_processes(server.process.pid), int(args.memory * 2**30))
    print(f"GPU memory: {gpu.method}", flush=True)
    requests = make_requests(args.seed, int(args.seconds * args.most_per_s) + args.streams)
    disconnecting = DisconnectingClient(server.target, requests[:_DISTINCT], args.seed)
    disconnecting.start()
    tasks = split_into_tasks(
        server.target, requests, None, args.streams, default_process_count(), stop_sending_s=args.seconds
    )
    result = run_loadgen(tasks, requests, watch)
    disconnecting.stop()
    failures = find_failures(result, requests, args.seconds)
    failures += [f"disconnecting client: {failure}" for failure in disconnecting.failures]
    held = wait_until_released(server.port)
    if held is None:
        failures.append(f"the server's metrics lack {_RUNNING_METRIC}: cannot tell whether the engine is idle")
    elif held:
        failures.append(f"the engine still holds {held:.0f} requests")
    if len(watch.workers) > 1:
        failures.append(f"workers were replaced: {[sorted(pids) for pids in watch.workers]}")
    judged = JUDGED if gpu.is_available else tuple(kind for kind in JUDGED if kind != "gpu")
    growth = judge_growth(watch.samples, args.seconds * _SETTLE, judged)
    tokens = sum(record.output_tokens or 0 for record in result.records)
    report = {"what": "all", "window_s": result.window_s, "answers": len(result.records), "cut": disconnecting.disconnects,
            "output_tokens_per_s": tokens / result.window_s, "growth": growth, "gpu": gpu.method,
            "wrong": len(failures), "first_wrong": failures[:20]}  # fmt: skip
    watch.write(report)
    return print_report(report)


def print_report(report: Mapping[str, Any]) -> bool:
    """Print the report and return whether the run passed."""
    print(f"{report['answers']:,} responses and {report['cut']:,} disconnects in {report['window_s']:.1f} s, "
          f"{report['output_tokens_per_s']:,.0f} tok/s, {report['wrong']} errors")  # fmt: skip
    print("\n".join(report["first_wrong"]))
    passed = not report["wrong"]
    for kind, growth in report["growth"].items():
        met = growth is not None and growth < MAX_GROWTH
        passed &= met
        shown = "too few samples" if growth is None else f"{growth:+.2%}"
        print(f"{kind:<8} {shown}, under {MAX_GROWTH:.0%}: {'met' if met else 'MISSED'}")
    if "gpu" not in report["growth"]:
        print(f"gpu      not judged: {report['gpu']}")
    print("passed" if passed else "FAILED", flush=True)
    return passed


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=360.0, help="duration of the load")
    parser.add_argument("--streams", type=int, default=512)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--memory", type=float, default=20.0, help="KV cache in GiB")
    parser.add_argument("--most-per-s", type=int, default=_MAX_PER_S, help="requests prepared per second")
    parser.add_argument("--set", nargs="*", default=[], help="engine arguments, NAME=JSON")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    settings: dict[str, Any] = {"load_format": "dummy", "max_model_len": 2048, "gpu_memory_utilization": 0.3}
    settings["kv_cache_memory_bytes"] = int(args.memory * 2**30)
    settings |= {name: json.loads(value) for name, _, value in (setting.partition("=") for setting in args.set)}
    gpu = GpuMemoryWatch()
    server = BayServe("soak", args.model, settings, args.out)
    try:
        server.wait_ready()
        print(f"server ready after {server.started_s:.1f} s", flush=True)
        return 0 if soak(server, gpu, args.out, args) else 1
    finally:
        server.stop()


if __name__ == "__main__":
    os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    sys.exit(main())
