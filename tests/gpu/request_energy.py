"""Checks energy per request on a GPU: a class of requests costs the same in a mix as alone, and the sum matches the GPU.

    python -m tests.gpu.request_energy --model FOLDER --out FOLDER     starts `bay serve` on the vllm engine with random weights
    python -m tests.gpu.request_energy --url URL --name MODEL          uses a running server

FOLDER is a shape of `bench.gpu.model_shapes`, such as llama-8b. Takes about 70 s once the server is up. `--streams 512` keeps 512
requests in flight instead of 128; the KV cache must hold them all.

Class A has 128 tokens in and 128 out, class B 512 in and 64 out. Each runs alone, then both in equal numbers, always with
128 requests in flight: a finished request is replaced at once. This makes the comparison fair. A step reads all weights, so the
energy of a token depends mainly on how many tokens share its step; with a constant number in flight, the decode batch is the same in
all three workloads. (At a fixed rate the batches would differ, and so would the GPU's energy, not the accounting.) Two effects
remain: in the mix both classes pay for the mean context length, and a prompt token counts as much as an output token of the same
step. The mix is half and half by requests; A takes twice as long, so two thirds in flight are A.
Requests of the first seconds, when all prompts arrive at once, and of the last ones, when the batch empties, are excluded from
the figures of a class in all workloads. The sum over requests includes them.

Exits with 1 if a class is off by more than 15%, or the sum is off by more than 5% from the GPU's counter above the server's
estimate of the idle power, or cannot be compared. Prints the idle power measured in the pauses as well.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from enginebay.util.nvml import NvmlMissing, open_nvml

STREAMS = 128
CLASSES = {"A": (128, 128), "B": (512, 64)}  # tokens in, tokens out
LOADS = {"A": ("A",), "B": ("B",), "mix": ("A", "B")}
BAR, SUM_BAR = 0.15, 0.05
_LOAD_S, _WARM_S, _EDGE_S, _PAUSE_S = 16.0, 5.0, 3.0, 3.0
_VOCABULARY = range(100, 49000)  # ordinary tokens of every tokenizer used here


@dataclass(frozen=True)
class MeasuredRequest:
    """One request, with its send and end times."""

    kind: str
    sent_s: float
    end_s: float
    tokens_in: int
    tokens_out: int
    joules: float | None
    idle_w: float | None
    absent: str


class EnergyClient:
    """A client with one connection per stream."""

    def __init__(self, url: str, model: str) -> None:
        parts = urlsplit(url)
        self._host, self._port, self._model = parts.hostname or "127.0.0.1", parts.port or 80, model
        self._random = random.Random(time.time_ns())  # new prompts: no prefix cache hits

    async def run_workload(self, kinds: Sequence[str], streams: int, seconds: float) -> list[MeasuredRequest]:
        """Keep `streams` requests in flight for `seconds`, alternating the kinds; then wait for the last ones."""
        until_s = time.monotonic() + seconds
        requests: list[MeasuredRequest] = []

        async def stream(index: int) -> None:
            reader, writer = await asyncio.open_connection(self._host, self._port)
            turn = index
            while time.monotonic() < until_s:
                requests.append(await self._send_request(kinds[turn % len(kinds)], reader, writer))
                turn += 1
            writer.close()

        await asyncio.gather(*(stream(index) for index in range(streams)))
        return requests

    async def _send_request(
        self, kind: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> MeasuredRequest:
        tokens_in, tokens_out = CLASSES[kind]
        body = json.dumps({
            "model": self._model, "prompt": self._random.choices(_VOCABULARY, k=tokens_in), "max_tokens": tokens_out,
            "ignore_eos": True, "temperature": 0, "include_energy": True,
        }).encode()  # fmt: skip
        head = (
            f"POST /v1/completions HTTP/1.1\r\nhost: {self._host}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        sent_s = time.monotonic()
        writer.write(head.encode() + body)
        answer = await _read_response(reader)
        usage, energy = answer["usage"], answer["usage"]["enginebay"]
        return MeasuredRequest(
            kind, sent_s, time.monotonic(), usage["prompt_tokens"], usage["completion_tokens"],
            energy.get("energy_j"), energy.get("energy_idle_w"), energy.get("energy_absent", ""),
        )  # fmt: skip


async def _read_response(reader: asyncio.StreamReader) -> Any:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = next(int(line.partition(":")[2]) for line in head.splitlines() if line.startswith("content-length:"))
    body = await reader.readexactly(length)
    if " 200 " not in head.splitlines()[0]:
        raise RuntimeError(f"the server refused a request: {body.decode()}")
    return json.loads(body)


class GpuEnergyCounter:
    """The GPU's energy counter, read independently of the server."""

    def __init__(self) -> None:
        try:
            self._nvml: Any = open_nvml()
            self._gpus = [
                self._nvml.nvmlDeviceGetHandleByIndex(index) for index in range(self._nvml.nvmlDeviceGetCount())
            ]
        except NvmlMissing as error:
            self._nvml = None
            print(f"the sum cannot be compared: {error}", flush=True)

    def read_joules(self) -> float | None:
        return sum(map(self._nvml.nvmlDeviceGetTotalEnergyConsumption, self._gpus)) / 1e3 if self._nvml else None

    async def measure_idle_w(self, seconds: float) -> float | None:
        """Measure the idle power with the engine loaded. Waits 1 s first: clocks drop after work."""
        await asyncio.sleep(1.0)
        before, started = self.read_joules(), time.monotonic()
        await asyncio.sleep(seconds - 1.0)
        after = self.read_joules()
        return None if before is None or after is None else (after - before) / (time.monotonic() - started)


async def measure_workloads(client: EnergyClient, streams: int) -> dict[str, Any]:
    """Run all workloads, with a pause before each to measure the idle power, here and in the server."""
    gpu, figures = GpuEnergyCounter(), dict[str, Any]()
    await client.run_workload(("A", "B"), streams, _WARM_S)
    for load, kinds in LOADS.items():
        idle_w = await gpu.measure_idle_w(_PAUSE_S)
        before, started = gpu.read_joules(), time.monotonic()
        requests = await client.run_workload(kinds, streams, _LOAD_S)
        took_s, after = time.monotonic() - started, gpu.read_joules()
        drawn_j = after - before if before is not None and after is not None else None
        figures[load] = summarize(requests, took_s, idle_w, drawn_j)
        print(json.dumps({"load": load, "streams": streams, **figures[load]}), flush=True)
    return figures


def summarize(
    requests: Sequence[MeasuredRequest], took_s: float, idle_w: float | None, drawn_j: float | None
) -> dict[str, Any]:
    absent = sorted({request.absent for request in requests if request.joules is None})
    sum_j = sum(request.joules or 0.0 for request in requests)
    server_w = next(
        (request.idle_w for request in reversed(requests) if request.idle_w), None
    )  # the baseline of the sum
    above_j = drawn_j - server_w * took_s if drawn_j is not None and server_w is not None else None
    began_s = min(request.sent_s for request in requests)
    steady = [
        request for request in requests if request.sent_s - began_s >= _EDGE_S and request.end_s - began_s <= _LOAD_S
    ]
    return {
        "requests": len(requests),
        "took_s": took_s,
        "output_tokens_per_s": sum(request.tokens_out for request in requests) / took_s,
        "absent": absent,
        "idle_w": idle_w,
        "idle_w_of_the_server": server_w,
        "sum_j": sum_j,
        "gpu_j": drawn_j,
        "gpu_above_idle_j": above_j,
        "sum_share": sum_j / above_j if above_j else None,
        "classes": {
            kind: compute_per_token([request for request in steady if request.kind == kind]) for kind in CLASSES
        },
    }


def compute_per_token(requests: Sequence[MeasuredRequest]) -> dict[str, float] | None:
    if not requests:
        return None
    joules = sum(request.joules or 0.0 for request in requests)
    tokens_in, tokens_out = (
        sum(request.tokens_in for request in requests),
        sum(request.tokens_out for request in requests),
    )
    return {
        "requests": len(requests), "j_per_output_token": joules / tokens_out, "j_per_token": joules / (tokens_in + tokens_out)
    }  # fmt: skip


def judge(figures: dict[str, Any]) -> list[str]:
    """Print the table and return the problems."""
    problems = [
        f"{load}: energy is absent: {reason}" for load, values in figures.items() for reason in values["absent"]
    ]
    print(
        f"{'class':<7}{'J/output token':>24}{'J/token':>24}{'in the mix':>12}\n{'':<7}{'alone      mix':>24}{'alone      mix':>24}"
    )
    for kind in CLASSES:
        alone, mix = figures[kind]["classes"][kind], figures["mix"]["classes"][kind]
        if not alone or not mix or not alone["j_per_token"]:
            problems.append(f"class {kind} was not measured")
            continue
        ratio = mix["j_per_token"] / alone["j_per_token"]
        print(
            f"{kind:<7}{alone['j_per_output_token']:>14.5f}{mix['j_per_output_token']:>10.5f}"
            f"{alone['j_per_token']:>14.5f}{mix['j_per_token']:>10.5f}{ratio - 1:>+11.1%}"
        )
        if abs(ratio - 1) > BAR:
            problems.append(f"class {kind} costs {ratio:.2f} times as much in the mix as alone")
    for load, values in figures.items():
        share = values["sum_share"]
        if share is None:
            problems.append(
                f"{load}: the sum was not compared: the GPU's counter or the server's idle power is missing"
            )
            continue
        print(
            f"{load:<7}sum of requests {values['sum_j']:,.0f} J, GPU above idle {values['gpu_above_idle_j']:,.0f} J: {share:.1%}"
        )
        if abs(share - 1) > SUM_BAR:
            problems.append(f"{load}: the requests' joules are {share:.1%} of what the GPU drew above idle")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", type=Path, help="folder of a model shape")
    parser.add_argument("--out", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--url", help="URL of a running server")
    parser.add_argument("--name", default="llama-8b", help="name of its model")
    parser.add_argument("--streams", type=int, default=STREAMS, help="requests in flight")
    args = parser.parse_args()
    if args.url:
        return report(asyncio.run(measure_workloads(EnergyClient(args.url, args.name), args.streams)))
    from bench.gpu.systems_under_test import BayServe

    args.out.mkdir(parents=True, exist_ok=True)
    settings = {"load_format": "dummy", "max_model_len": 2048, "gpu_memory_utilization": 0.6}
    system = BayServe("energy", args.model, settings, args.out)
    try:
        system.wait_ready()
        print(f"up after {system.started_s:.1f} s", flush=True)
        return report(asyncio.run(measure_workloads(EnergyClient(system.target.url, args.model.name), args.streams)))
    finally:
        system.stop()


def report(figures: dict[str, Any]) -> int:
    problems = judge(figures)
    print("\n".join(problems) or "ok", flush=True)
    return 1 if problems else 0


if __name__ == "__main__":
    os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    sys.exit(main())
