"""Energy per request on a GPU: does a class of requests cost the same in a mix as alone, and is the sum what the GPU drew?

    python -m tests.gpu.request_energy --model FOLDER --out FOLDER     starts `bay serve` on the vllm engine with random weights
    python -m tests.gpu.request_energy --url URL --name MODEL          asks a server that is up

FOLDER is a shape of `bench.gpu.model_shapes`, such as llama-8b. Takes about 70 s once the server is up. `--streams 512` keeps so many
in flight instead of 128; the KV cache must hold them all.

Class A has 128 tokens in and 128 out, class B 512 in and 64 out. Each runs alone, then both in equal numbers, always with
as many requests in flight (128): whoever ends is replaced at once. That is what makes the comparison fair. A step reads all weights for
whatever is in it, so the price of a token depends above all on how many share its step; with as many in flight the batch of
decoding requests is the same in all three loads. (At a fixed rate instead, a class alone would have other batches than in the mix,
and the difference would be the GPU's, not the accounting's.) Two things remain: in the mix both classes pay for the mean
length of the contexts, and a token of a prompt weighs as much as one of an answer where both are in one step. The mix is half
and half by requests; A stays twice as long, so two thirds in flight are A's.
Requests of the first seconds, when all prompts come at once, and of the last ones, when the batch empties, are left out of
the figures for a class, alike in all loads. The sum over requests has them all.

Exits with 1 when a class is more than 15% off, or the sum more than 5% off the GPU's own counter above the
idle power that the server learned, or could not be compared with it; what is measured here in the pauses is printed beside it.
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

from enginebay.meters.devices.nvml_driver import NvmlDriver, NvmlDriverError

STREAMS = 128
CLASSES = {"A": (128, 128), "B": (512, 64)}  # tokens in, tokens out
LOADS = {"A": ("A",), "B": ("B",), "mix": ("A", "B")}
BAR, SUM_BAR = 0.15, 0.05
_LOAD_S, _WARM_S, _EDGE_S, _PAUSE_S = 16.0, 5.0, 3.0, 3.0
_VOCABULARY = range(100, 49000)  # ordinary tokens of every tokenizer used here


@dataclass(frozen=True)
class MeasuredRequest:
    """One request, with when it was sent and when it had its answer."""

    kind: str
    sent_s: float
    end_s: float
    tokens_in: int
    tokens_out: int
    joules: float | None
    idle_w: float | None
    absent: str


class EnergyClient:
    """One connection after another would be slow: each stream keeps its own."""

    def __init__(self, url: str, model: str) -> None:
        parts = urlsplit(url)
        self._host, self._port, self._model = parts.hostname or "127.0.0.1", parts.port or 80, model
        self._chance = random.Random(time.time_ns())  # no prefix cache knows these prompts

    async def run_workload(self, kinds: Sequence[str], streams: int, seconds: float) -> list[MeasuredRequest]:
        """Keep so many in flight for so long, each stream taking turns with the kinds; then wait for the last ones."""
        until_s = time.monotonic() + seconds
        found: list[MeasuredRequest] = []

        async def stream(place: int) -> None:
            reader, writer = await asyncio.open_connection(self._host, self._port)
            turn = place
            while time.monotonic() < until_s:
                found.append(await self._send_request(kinds[turn % len(kinds)], reader, writer))
                turn += 1
            writer.close()

        await asyncio.gather(*(stream(place) for place in range(streams)))
        return found

    async def _send_request(
        self, kind: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> MeasuredRequest:
        tokens_in, tokens_out = CLASSES[kind]
        body = json.dumps({
            "model": self._model, "prompt": self._chance.choices(_VOCABULARY, k=tokens_in), "max_tokens": tokens_out,
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
    """The GPU's own counter, read here and not by the server."""

    def __init__(self) -> None:
        try:
            self._driver: NvmlDriver | None = NvmlDriver()
            self._gpus = [self._driver.get_gpu(index) for index in range(self._driver.count_gpus())]
        except NvmlDriverError as error:
            self._driver = None
            print(f"the sum cannot be compared: {error}", flush=True)

    def read_joules(self) -> float | None:
        return sum(map(self._driver.read_energy_j, self._gpus)) if self._driver else None

    async def measure_idle_w(self, seconds: float) -> float | None:
        """With the engine loaded and nothing running; clocks fall in the first moments after work."""
        await asyncio.sleep(1.0)
        before, started = self.read_joules(), time.monotonic()
        await asyncio.sleep(seconds - 1.0)
        after = self.read_joules()
        return None if before is None or after is None else (after - before) / (time.monotonic() - started)


async def measure_workloads(client: EnergyClient, streams: int) -> dict[str, Any]:
    """All loads, with a pause before each in which the idle power is learned, by the server and here."""
    gpu, figures = GpuEnergyCounter(), dict[str, Any]()
    await client.run_workload(("A", "B"), streams, _WARM_S)
    for load, kinds in LOADS.items():
        idle_w = await gpu.measure_idle_w(_PAUSE_S)
        before, started = gpu.read_joules(), time.monotonic()
        found = await client.run_workload(kinds, streams, _LOAD_S)
        took_s, after = time.monotonic() - started, gpu.read_joules()
        drawn_j = after - before if before is not None and after is not None else None
        figures[load] = summarize(found, took_s, idle_w, drawn_j)
        print(json.dumps({"load": load, "streams": streams, **figures[load]}), flush=True)
    return figures


def summarize(
    found: Sequence[MeasuredRequest], took_s: float, idle_w: float | None, drawn_j: float | None
) -> dict[str, Any]:
    absent = sorted({one.absent for one in found if one.joules is None})
    sum_j = sum(one.joules or 0.0 for one in found)
    server_w = next((one.idle_w for one in reversed(found) if one.idle_w), None)  # the sum is above this one
    above_j = drawn_j - server_w * took_s if drawn_j is not None and server_w is not None else None
    began_s = min(one.sent_s for one in found)
    steady = [one for one in found if one.sent_s - began_s >= _EDGE_S and one.end_s - began_s <= _LOAD_S]
    return {
        "requests": len(found),
        "took_s": took_s,
        "output_tokens_per_s": sum(one.tokens_out for one in found) / took_s,
        "absent": absent,
        "idle_w": idle_w,
        "idle_w_of_the_server": server_w,
        "sum_j": sum_j,
        "gpu_j": drawn_j,
        "gpu_above_idle_j": above_j,
        "sum_share": sum_j / above_j if above_j else None,
        "classes": {kind: compute_per_token([one for one in steady if one.kind == kind]) for kind in CLASSES},
    }


def compute_per_token(found: Sequence[MeasuredRequest]) -> dict[str, float] | None:
    if not found:
        return None
    joules = sum(one.joules or 0.0 for one in found)
    tokens_in, tokens_out = sum(one.tokens_in for one in found), sum(one.tokens_out for one in found)
    return {
        "requests": len(found), "j_per_output_token": joules / tokens_out, "j_per_token": joules / (tokens_in + tokens_out)
    }  # fmt: skip


def judge(figures: dict[str, Any]) -> list[str]:
    """What is wrong; prints the table."""
    wrong = [f"{load}: energy is absent: {one}" for load, found in figures.items() for one in found["absent"]]
    print(
        f"{'class':<7}{'J/output token':>24}{'J/token':>24}{'in the mix':>12}\n{'':<7}{'alone      mix':>24}{'alone      mix':>24}"
    )
    for kind in CLASSES:
        alone, mix = figures[kind]["classes"][kind], figures["mix"]["classes"][kind]
        if not alone or not mix or not alone["j_per_token"]:
            wrong.append(f"class {kind} was not measured")
            continue
        ratio = mix["j_per_token"] / alone["j_per_token"]
        print(
            f"{kind:<7}{alone['j_per_output_token']:>14.5f}{mix['j_per_output_token']:>10.5f}"
            f"{alone['j_per_token']:>14.5f}{mix['j_per_token']:>10.5f}{ratio - 1:>+11.1%}"
        )
        if abs(ratio - 1) > BAR:
            wrong.append(f"class {kind} costs {ratio:.2f} times as much in the mix as alone")
    for load, found in figures.items():
        share = found["sum_share"]
        if share is None:
            wrong.append(
                f"{load}: the sum was not compared, for want of the GPU's own counter or the server's idle power"
            )
            continue
        print(
            f"{load:<7}sum of requests {found['sum_j']:,.0f} J, GPU above idle {found['gpu_above_idle_j']:,.0f} J: {share:.1%}"
        )
        if abs(share - 1) > SUM_BAR:
            wrong.append(f"{load}: the requests' joules are {share:.1%} of what the GPU drew above idle")
    return wrong


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--model", type=Path, help="folder of a shape")
    options.add_argument("--out", type=Path, default=Path(tempfile.gettempdir()))
    options.add_argument("--url", help="of a server that is up")
    options.add_argument("--name", default="llama-8b", help="of its model")
    options.add_argument("--streams", type=int, default=STREAMS, help="in flight all the time")
    given = options.parse_args()
    if given.url:
        return report(asyncio.run(measure_workloads(EnergyClient(given.url, given.name), given.streams)))
    from bench.gpu.systems_under_test import BayServe

    given.out.mkdir(parents=True, exist_ok=True)
    settings = {"load_format": "dummy", "max_model_len": 2048, "gpu_memory_utilization": 0.6}
    system = BayServe("energy", given.model, settings, given.out)
    try:
        system.wait_ready()
        print(f"up after {system.started_s:.1f} s", flush=True)
        return report(asyncio.run(measure_workloads(EnergyClient(system.target.url, given.model.name), given.streams)))
    finally:
        system.stop()


def report(figures: dict[str, Any]) -> int:
    wrong = judge(figures)
    print("\n".join(wrong) or "ok", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    sys.exit(main())
