"""Checks the sleep levels of the vllm engine on CUDA by their effect: memory is freed, outputs stay the same.

    python tests/gpu/vllm_sleep_levels.py MODEL_DIR            safetensors of a real model: levels 1 and 2
    python tests/gpu/vllm_sleep_levels.py MODEL_DIR --dummy    only config.json and a tokenizer: level 1

`src` and vLLM must be importable. Prints one JSON line per measurement; exits with 1 if a check fails.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from enginebay.contract import GenerateRequest, Load, Sampling
from enginebay.engines.vllm.engine import VllmEngine

_WAIT_S = 120
_PROMPTS = ("The capital of France is", "Once upon a time, in a small village by the sea, there lived")
_FREED = 0.5  # minimum share of the engine's GPU memory that sleep must free

problems: list[str] = []


class SleepSink:
    """A sink that records token ids and the end of each request."""

    def __init__(self) -> None:
        self.tokens: dict[int, list[int]] = {}
        self.ended: dict[int, threading.Event] = {}
        self.errors: dict[int, Any] = {}

    def accepted(self, number: int, prompt_tokens: int, cached_tokens: int = 0) -> None:
        pass

    def token(
        self, number: int, text: str, token_ids: Sequence[int], choice: int = 0, logprobs: Sequence[Any] = ()
    ) -> None:
        self.tokens[number].extend(token_ids)

    def finish(self, number: int, reason: Any, choice: int = 0, stop_reason: Any = None) -> None:
        self.ended[number].set()

    def usage(self, number: int, prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0) -> None:
        pass

    def error(self, number: int, error: Any) -> None:
        self.errors[number] = error
        self.ended[number].set()

    def flush(self) -> None:
        pass


class GreedyClient:
    def __init__(self, engine: VllmEngine) -> None:
        self._engine = engine
        self._sink = SleepSink()
        self._number = 0
        engine.start(self._sink)

    def generate_greedy(self, text: str, count: int = 32) -> list[int]:
        self._number += 1
        number, sink = self._number, self._sink
        sink.tokens[number], sink.ended[number] = [], threading.Event()
        sampling = Sampling(temperature=0.0, max_tokens=count, ignore_eos=True)
        ids = tuple(self._engine.tokenize(text, True))
        self._engine.submit(number, GenerateRequest(token_ids=ids, sampling=sampling))
        if not sink.ended[number].wait(_WAIT_S):
            raise TimeoutError(f"no output within {_WAIT_S} s")
        if number in sink.errors:
            raise sink.errors[number]
        return sink.tokens[number]

    def generate_answers(self) -> list[list[int]]:
        return [self.generate_greedy(text) for text in _PROMPTS]


def print_result(what: str, **values: Any) -> None:
    print(json.dumps({"what": what, **values}), flush=True)


def check(holds: bool, problem: str) -> None:
    if not holds:
        problems.append(problem)
        print_result("PROBLEM", problem=problem)


def run_timed(work: Callable[[], Any]) -> tuple[float, Any]:
    started = time.perf_counter()
    result = work()
    return round(time.perf_counter() - started, 3), result


def read_gpu_used_bytes() -> int:
    """Return the GPU memory of all processes, as the driver reports it, without a CUDA context."""
    from vllm.third_party import pynvml

    pynvml.nvmlInit()
    return sum(
        int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(index)).used)
        for index in range(pynvml.nvmlDeviceGetCount())
    )


def check_warm() -> None:
    import torch

    seconds, _ = run_timed(VllmEngine.warm)
    print_result("warm", seconds=seconds, threads=threading.active_count(), cuda=torch.cuda.is_initialized())
    check(threading.active_count() == 1, "warm() left a thread running")
    check(not torch.cuda.is_initialized(), "warm() opened a CUDA context")


def check_level(
    engine: VllmEngine, client: GreedyClient, level: int, expected: list[list[int]], idle: int, turn: int
) -> None:
    awake = read_gpu_used_bytes()
    slept_s, _ = run_timed(lambda: engine.sleep(level))
    asleep = read_gpu_used_bytes()
    woke_s, _ = run_timed(engine.wake)
    first_s, _ = run_timed(lambda: client.generate_greedy(_PROMPTS[0], 1))
    again = client.generate_answers()
    held = max(1, awake - idle)
    print_result(
        f"level {level}",
        turn=turn,
        sleep_s=slept_s,
        wake_s=woke_s,
        first_token_s=first_s,
        held_bytes=held,
        freed_share=round((awake - asleep) / held, 3),
        back_bytes=read_gpu_used_bytes() - idle,
        same=again == expected,
    )
    check((awake - asleep) / held >= _FREED, f"level {level} freed only {(awake - asleep) / held:.0%} of the memory")
    check(again == expected, f"answers differ after level {level}")


def run(model: str, dummy: bool) -> None:
    check_warm()
    idle = read_gpu_used_bytes()
    settings: dict[str, Any] = {"max_model_len": 2048, "gpu_memory_utilization": 0.5}
    if dummy:
        settings["load_format"] = "dummy"
    load_s, engine = run_timed(lambda: VllmEngine(Load("vllm", "", "under-test", model, settings)))
    try:
        client = GreedyClient(engine)
        facts = engine.facts()
        print_result(
            "load",
            seconds=load_s,
            version=facts.version,
            phases=dict(facts.phases),
            levels=list(facts.sleep_levels),
            memory_bytes=facts.memory_bytes,
            max_batch=facts.max_batch,
            warnings=list(facts.warnings),
        )
        check("load" in facts.phases, "vLLM's log reports no load time: was it spawned?")
        check(tuple(facts.sleep_levels) == ((1,) if dummy else (1, 2)), f"levels are {facts.sleep_levels}")
        expected = client.generate_answers()
        check(
            client.generate_answers() == expected, "greedy outputs differ without sleep: the comparison is meaningless"
        )
        for level in facts.sleep_levels:
            for turn in (1, 2):  # the first sleep also allocates the pinned memory
                check_level(engine, client, level, expected, idle, turn)
    finally:
        engine.close()
    time.sleep(2)
    left = read_gpu_used_bytes() - idle
    print_result("closed", left_bytes=left)
    check(left < 512 * 1024**2, f"{left} bytes are still held on the GPU after close")


def main() -> int:
    parser = argparse.ArgumentParser(description="Check vLLM's sleep levels on a GPU")
    parser.add_argument("model", help="directory of the model")
    parser.add_argument("--dummy", action="store_true", help="random weights: only the config exists")
    arguments = parser.parse_args()
    try:
        run(arguments.model, arguments.dummy)
    except Exception as error:
        traceback.print_exc()
        problems.append(f"{type(error).__name__}: {error}")
    print_result("done", problems=problems)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
