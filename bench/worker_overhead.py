"""Overhead of a worker: each engine in process and through its worker, in interleaved pairs, and the stream's limit.

    make bench-worker            all engines
    bench/worker_overhead.py llamacpp     one of them; `fake` measures the stream's limit

Target: the worker keeps at least 97% of the engine's own speed (the 95% interval of the ratio reaches 0.97), and one
worker stream carries at least 200,000 tokens/s at 256 concurrent requests.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from enginebay.config.loader import load_config
from enginebay.contract import Delta, GenerateRequest, Sampling
from enginebay.contract.engine_messages import Done
from enginebay.errors import EnginebayError
from enginebay.fleet.lifecycle.launch_plan import LaunchPlan, make_launch_plan
from enginebay.fleet.lifecycle.model_worker import ModelWorker
from enginebay.worker import bootstrap

PAIRS = 6
TOKENS = {1: 48, 8: 16, 32: 12}  # output tokens of each request, by how many run at once: every run takes seconds
PROMPT = "Once upon a time, in a small village by the sea, there lived"
SETTINGS: dict[str, dict[str, Any]] = {
    "llamacpp": {"context_length": 1024, "max_batch": 32},
    "transformers": {"context_length": 1024, "dtype": "float32"},
    "vllm": {
        "max_model_len": 1024,
        "dtype": "float32",
        "max_num_seqs": 32,
        "enforce_eager": True,
        "cpu_kvcache_space_gib": 2,
    },
}
# Student's t, two-sided 95%, by degrees of freedom.
T95 = {4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}


def compute_interval(ratios: list[float]) -> tuple[float, float, float]:
    """Return the mean and 95% interval of ratios."""
    mean = statistics.mean(ratios)
    half = T95[len(ratios) - 1] * statistics.stdev(ratios) / len(ratios) ** 0.5
    return mean, mean - half, mean + half


class InProcessEngine:
    """The engine called directly in its own environment by bench/in_process_engine.py, controlled over a pipe."""

    def __init__(self, plan: LaunchPlan, env: Mapping[str, str] | None = None) -> None:
        load = plan.launch.load
        self._process = subprocess.Popen(
            [
                str(plan.launch.python),
                str(Path(__file__).with_name("in_process_engine.py")),
                str(Path(bootstrap.__file__)),
                json.dumps(asdict(load)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=plan.launch.log.open("ab"),
            text=True,
            env=env,
        )
        self._read_message()

    def _read_message(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("@"):
                message: dict[str, Any] = json.loads(line[1:])
                return message
        raise SystemExit("the in-process engine exited: see its log")

    def run(self, ids: list[int], streams: int) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"ids": ids, "streams": streams, "tokens": TOKENS[streams]}) + "\n")
        self._process.stdin.flush()
        return float(self._read_message()["tokens_per_s"])

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)


async def measure_through_worker(worker: ModelWorker, ids: list[int], streams: int) -> float:
    """Return the output tokens per second of `streams` concurrent requests."""

    async def generate(number: int) -> int:
        sampling = Sampling(temperature=0.0, max_tokens=TOKENS[streams], ignore_eos=True)
        async for event in worker.client.generate(GenerateRequest(token_ids=(*ids, number + 100), sampling=sampling)):
            if isinstance(event, Done):
                return event.usage.completion_tokens
        raise SystemExit("a stream ended without Done")

    started = time.perf_counter()
    tokens = sum(await asyncio.gather(*(generate(number) for number in range(streams))))
    return tokens / (time.perf_counter() - started)


async def compare(kind: str) -> bool:
    """Compare one engine in process and through its worker, in interleaved pairs; both stay loaded."""
    plan = make_launch_plan("smollm2", engine=kind, config=load_config(None), settings=SETTINGS[kind])
    direct = InProcessEngine(plan)
    good = True
    try:
        async with await ModelWorker.start(plan) as worker:
            ids = list(await worker.prompt_encoder.encode(PROMPT))
            for streams in TOKENS:
                pairs = []
                for pair in range(-1, PAIRS):  # the first pair warms up
                    order = [direct.run, measure_through_worker] if pair % 2 else [measure_through_worker, direct.run]
                    speed: dict[bool, float] = {}
                    for measure in order:
                        if measure is measure_through_worker:
                            speed[True] = await measure_through_worker(worker, ids, streams)
                        else:
                            speed[False] = await asyncio.to_thread(direct.run, ids, streams)
                    if pair >= 0:
                        pairs.append((speed[False], speed[True]))
                good &= report(kind, streams, pairs)
    finally:
        direct.close()
    return good


def report(kind: str, streams: int, pairs: list[tuple[float, float]]) -> bool:
    mean, low, high = compute_interval([through / direct for direct, through in pairs])
    direct, through = (statistics.mean(pair[side] for pair in pairs) for side in (0, 1))
    verdict = "met" if high >= 0.97 else "MISSED"
    print(
        f"{kind:<13}{streams:>8}{direct:>14.1f}{through:>14.1f}{mean:>10.3f}   [{low:.3f}, {high:.3f}]   {verdict}",
        flush=True,
    )
    return high >= 0.97


class _TextChecker:
    """Collects one request's text and compares it with the script."""

    def __init__(self, expected: str, ended: Any) -> None:
        self._expected, self._ended, self._pieces = expected, ended, list[str]()

    def on_token(self, text: str, token_id: int) -> None:
        self._pieces.append(text)

    def on_delta(self, delta: Delta) -> None:
        self._pieces.append(delta.text)

    def on_flush(self) -> None: ...

    def on_done(self, done: Done) -> None:
        if "".join(self._pieces) != self._expected:
            raise SystemExit("a request got the text of another one")
        self._ended()

    def on_error(self, error: EnginebayError) -> None:
        raise SystemExit(str(error))


async def measure_ceiling(streams: int = 256, tokens: int = 800) -> bool:
    """Measure the fake engine at full speed, one token per request and step; check every text."""
    scripts = {f"<{number:03d}>": f"{number:03d} says {'abcdefghij' * 100}"[:tokens] for number in range(streams)}
    plan = make_launch_plan(
        "fake", engine="fake", config=load_config(None), settings={"script_by_prompt": scripts, "max_batch": streams}
    )
    speeds = []
    async with await ModelWorker.start(plan) as worker:
        for _ in range(PAIRS):
            left, finished = streams, asyncio.Event()

            def ended() -> None:
                nonlocal left
                left -= 1
                if not left:
                    finished.set()  # noqa: B023

            before = await worker.client.state()
            started = time.perf_counter()
            for key, expected in scripts.items():
                worker.client.submit(GenerateRequest(token_ids=tuple(key.encode())), _TextChecker(expected, ended))
            await finished.wait()
            speeds.append(streams * tokens / (time.perf_counter() - started))
            steps = (await worker.client.state()).flushes - before.flushes
    mean, low, high = compute_interval(speeds)
    verdict = "met" if high >= 200_000 else "MISSED"
    print(
        f"\none stream, {streams} requests, {steps} engine steps per round: {mean:,.0f} tokens/s [{low:,.0f}, {high:,.0f}]   {verdict}"
    )
    return high >= 200_000


async def main(kinds: list[str]) -> int:
    print(f"{'engine':<13}{'streams':>8}{'direct tok/s':>14}{'worker tok/s':>14}{'ratio':>10}   95% interval")
    good = [await compare(kind) if kind in SETTINGS else await measure_ceiling() for kind in kinds]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:] or [*SETTINGS, "fake"])))
