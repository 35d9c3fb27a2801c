"""Six minutes at 512 streams: no error, and memory that does not grow.

    python -m bench.gpu.soak --model FOLDER --out FOLDER [--seconds 360] [--streams 512] [--memory 20]

A closed loop under the lab's client, 64 to 256 tokens in and 32 to 192 out, while another client hangs up on its answers
now and then. Resident memory of server, worker and engine process and memory on the GPU are read every 5 s; after the first
sixth of the time none of them may grow by 2%. Others may use the GPU meanwhile: it is read by process, where the
driver tells. Writes `soak.jsonl` as it goes. Exit code 1: there was an error, or memory grew or was not seen, or a process was
replaced. Only a host without a working NVML need not show the GPU's.
`--seconds` are those of the load: starting takes about 50 more, reading the answers about 15.
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
_SETTLE = 1 / 6  # of the time: caches fill, and memory grows as it should
_SAMPLE_S, _SHOW_S = 5.0, 15.0
_DIFFERENT = 4096  # prompts; more tokens than the KV cache holds, so that none is found there
_MOST_PER_S = 300  # requests prepared for each second
_ENOUGH = 100  # failures: there is no use in going on
_CUT_EVERY_S = 0.25
_LET_GO_S = 15.0
_VOCABULARY = range(100, 49000)  # ordinary tokens of every tokenizer used here
_HELD = "enginebay_engine_running"


def make_requests(seed: int, count: int) -> list[Request]:
    """Of many lengths; repeated after a while. Pure."""
    source = random.Random(seed)
    different = []
    for _ in range(min(count, _DIFFERENT)):
        length = source.randint(64, 256)
        prompt = tuple(source.choices(_VOCABULARY, k=length))
        different.append(Request(prompt, length, source.randint(32, 192)))
    return [different[number % len(different)] for number in range(count)]


def judge_growth(
    samples: Sequence[Mapping[str, float]], settled_s: float, judged: Sequence[str] = JUDGED
) -> dict[str, float | None]:
    """Growth of each kind after it has settled; None: it was not there often enough to tell. Pure."""
    found: dict[str, float | None] = {}
    for kind in judged:
        points = [(one["at_s"], one[kind]) for one in samples if kind in one and one["at_s"] >= settled_s]
        found[kind] = compute_growth(points) if len(points) >= 3 else None
    return found


class DisconnectingClient(threading.Thread):
    """Asks, and hangs up: before the answer, at its first word, or later in it."""

    def __init__(self, target: TargetServer, asked: Sequence[Request], seed: int) -> None:
        super().__init__(daemon=True)
        self._target, self._asked, self._random = target, asked, random.Random(seed)
        self._over = threading.Event()
        self.cut = 0
        self.wrong: list[str] = []

    def run(self) -> None:
        while not self._over.wait(_CUT_EVERY_S):
            try:
                self._ask_and_disconnect(self._random.choice(self._asked), self._random.choice((0, 1, 8)))
            except OSError as problem:
                self.wrong.append(f"{type(problem).__name__}: {problem}")

    def _ask_and_disconnect(self, request: Request, events: int) -> None:
        said = b""
        with socket.create_connection(self._target.address, timeout=self._target.timeout_s) as connection:
            connection.sendall(encode_request(self._target, request))
            while said.count(b"data: ") < events:
                piece = connection.recv(1 << 16)
                said += piece
                if not piece or b" 200 " not in said.partition(b"\r\n")[0]:
                    self.wrong.append(f"answered {said[:200]!r}")
                    return
        self.cut += 1

    def stop(self) -> None:
        self._over.set()
        self.join(self._target.timeout_s)


class MemoryWatch:
    """Looks at memory and at how far the load is, from within the load client's own loop."""

    def __init__(self, root: int, gpu: GpuMemoryWatch, out: Path, seconds: float) -> None:
        self._root, self._gpu, self._out, self._seconds = root, gpu, out, seconds
        self._sampled_s = self._shown_s = float("-inf")
        self._events = 0
        self.samples: list[dict[str, float]] = []
        self.workers: set[frozenset[int]] = set()  # process numbers of worker and engine: there is to be one set only

    def __call__(self, live: LoadgenProgress) -> bool:
        """True: send nothing more."""
        if live.elapsed_s - self._sampled_s >= _SAMPLE_S:
            self._sampled_s = live.elapsed_s
            self._sample(live)
        if live.elapsed_s - self._shown_s >= _SHOW_S:
            self._show(live)
        return live.elapsed_s >= self._seconds or live.failed >= _ENOUGH

    def _sample(self, live: LoadgenProgress) -> None:
        found = list_processes(self._root)
        self.workers.add(frozenset(pid for pid, kind in found.items() if kind != "server"))
        memory = {**sum_resident(found), **self._gpu.read()}
        self.samples.append({"at_s": round(live.elapsed_s, 2), **memory})
        self.write({"what": "sample", **self.samples[-1], "ended": live.ended, "failed": live.failed})

    def _show(self, live: LoadgenProgress) -> None:
        since_s = live.elapsed_s - self._shown_s
        rate = (live.events - self._events) / since_s if self._shown_s > 0 else 0.0
        self._shown_s, self._events = live.elapsed_s, live.events
        held = "  ".join(f"{kind} {size / 2**20:,.1f}" for kind, size in self.samples[-1].items() if kind != "at_s")
        print(
            f"{live.elapsed_s:5.0f} s  {live.ended:,} answers, {live.failed} failed, {rate:,.0f} tok/s  MiB: {held}",
            flush=True,
        )

    def write(self, what: Mapping[str, Any]) -> None:
        with (self._out / "soak.jsonl").open("a") as lines:
            lines.write(json.dumps(what) + "\n")


def find_failures(fired: LoadgenResult, asked: Sequence[Request], seconds: float) -> list[str]:
    """What was wrong with the answers, or with the load. Pure."""
    found = [f"request {one.index}: {one.error} {one.detail}" for one in fired.records if one.error]
    for one in fired.records:
        wanted = asked[one.index].output_tokens
        if not one.error and one.output_tokens != wanted:
            found.append(f"request {one.index}: {one.output_tokens} tokens instead of {wanted}")
    if len(fired.records) == len(asked):
        found.append(f"all {len(asked)} requests were sent before the time was over: prepare more")
    if fired.window_s < seconds:
        found.append(f"the load ended after {fired.window_s:.0f} s of {seconds:.0f}")
    return found


def parse_held_requests(metrics: str) -> float | None:
    """Requests that all engines hold; None: nobody says so. Pure."""
    return sum_samples(parse_metrics(metrics), _HELD)


def wait_until_released(port: int) -> float | None:
    """Requests that the engine still has; waits a while for what was cut off to be let go. None: it is not told."""
    deadline = monotonic() + _LET_GO_S
    while True:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            held = parse_held_requests(answer.read().decode())
        if held == 0 or monotonic() > deadline:
            return held
        sleep(0.5)


def soak(server: BayServe, gpu: GpuMemoryWatch, out: Path, given: argparse.Namespace) -> bool:
    """Whether all was well."""
    watch = MemoryWatch(server.process.pid, gpu, out, given.seconds)
    gpu.identify(list_processes(server.process.pid), int(given.memory * 2**30))
    print(f"memory of the GPU: {gpu.method}", flush=True)
    asked = make_requests(given.seed, int(given.seconds * given.most_per_s) + given.streams)
    cutter = DisconnectingClient(server.target, asked[:_DIFFERENT], given.seed)
    cutter.start()
    orders = split_into_tasks(
        server.target, asked, None, given.streams, default_process_count(), stop_sending_s=given.seconds
    )
    fired = run_loadgen(orders, asked, watch)
    cutter.stop()
    wrong = find_failures(fired, asked, given.seconds)
    wrong += [f"cut off: {one}" for one in cutter.wrong]
    held = wait_until_released(server.port)
    if held is None:
        wrong.append(f"the server does not tell what the engine holds: no {_HELD} in its metrics")
    elif held:
        wrong.append(f"the engine still holds {held:.0f} requests")
    if len(watch.workers) > 1:
        wrong.append(f"workers were replaced: {[sorted(one) for one in watch.workers]}")
    judged = JUDGED if gpu.is_available else tuple(kind for kind in JUDGED if kind != "gpu")
    grown = judge_growth(watch.samples, given.seconds * _SETTLE, judged)
    tokens = sum(one.output_tokens or 0 for one in fired.records)
    told = {"what": "all", "window_s": fired.window_s, "answers": len(fired.records), "cut": cutter.cut,
            "output_tokens_per_s": tokens / fired.window_s, "growth": grown, "gpu": gpu.method,
            "wrong": len(wrong), "first_wrong": wrong[:20]}  # fmt: skip
    watch.write(told)
    return print_report(told)


def print_report(told: Mapping[str, Any]) -> bool:
    """Prints it. Whether all was well."""
    print(f"{told['answers']:,} answers and {told['cut']:,} cut off in {told['window_s']:.1f} s, "
          f"{told['output_tokens_per_s']:,.0f} tok/s, {told['wrong']} errors")  # fmt: skip
    print("\n".join(told["first_wrong"]))
    passed = not told["wrong"]
    for kind, grown in told["growth"].items():
        fine = grown is not None and grown < MAX_GROWTH
        passed &= fine
        shown = "not seen often enough" if grown is None else f"{grown:+.2%}"
        print(f"{kind:<8} {shown}, under {MAX_GROWTH:.0%}: {'met' if fine else 'MISSED'}")
    if "gpu" not in told["growth"]:
        print(f"gpu      not judged: {told['gpu']}")
    print("passed" if passed else "FAILED", flush=True)
    return passed


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--model", type=Path, required=True)
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--seconds", type=float, default=360.0, help="of the load")
    options.add_argument("--streams", type=int, default=512)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--memory", type=float, default=20.0, help="GiB of KV cache, so that others have room")
    options.add_argument("--most-per-s", type=int, default=_MOST_PER_S, help="requests prepared for each second")
    options.add_argument("--set", nargs="*", default=[], help="engine arguments, NAME=JSON")
    given = options.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    settings: dict[str, Any] = {"load_format": "dummy", "max_model_len": 2048, "gpu_memory_utilization": 0.3}
    settings["kv_cache_memory_bytes"] = int(given.memory * 2**30)
    settings |= {name: json.loads(value) for name, _, value in (one.partition("=") for one in given.set)}
    gpu = GpuMemoryWatch()
    server = BayServe("soak", given.model, settings, given.out)
    try:
        server.wait_ready()
        print(f"the server is up after {server.started_s:.1f} s", flush=True)
        return 0 if soak(server, gpu, given.out, given) else 1
    finally:
        server.stop()


if __name__ == "__main__":
    os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    sys.exit(main())
