"""Compares the generation modes of transformers on a GPU: the library's `generate()`, with and without static cache and compilation,
and the engine's, with and without CUDA graphs, compilation and the decode attention kernel. `bench.gpu.transformers_batching.batching_study` compares
the engine with the library's continuous batching.

    python -m tests.gpu.transformers_generation_modes --out FOLDER [--shape llama-8b] [--rows 256] [--input 128] [--turns 3] [--seconds 600] [--ways PATTERN...]

Rows of `--input` tokens in and 128 out, random weights, greedy, no server. Each mode has a few turns: the first one includes
compilation and capture. A mode that fails, or takes longer than `--most` seconds, is reported and skipped. Writes a line per mode
to `ways.jsonl` in the folder.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from fnmatch import fnmatch
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import transformers
from transformers import CompileConfig, LlamaConfig, LlamaForCausalLM

from bench.gpu.engine_bench import EngineBench
from bench.gpu.model_shapes import build_shape_config, make_shape, make_tokenizer
from enginebay.engines.transformers import engine_builder
from tests.gpu.transformers_speed import INPUT, OUTPUT, log, started

GenerateTurn = Callable[[list[list[int]]], int]  # runs prompts and returns the number of generated tokens


class ModeTimeout(BaseException):
    """A mode timed out. A BaseException, so that no other code handles it."""


class LibraryModes:
    """The library's generation modes, on one model."""

    def __init__(self, shape: str, device: str) -> None:
        torch.manual_seed(0)
        config = {**build_shape_config(shape), "dtype": torch.bfloat16}
        torch.set_default_dtype(torch.bfloat16)
        with torch.device(device):
            self.model = LlamaForCausalLM(LlamaConfig(**config)).eval()
        torch.set_default_dtype(torch.float32)
        self._device = device

    def make_generate(self, **options: Any) -> GenerateTurn:
        def turn(prompts: list[list[int]]) -> int:
            ids = torch.tensor(prompts, device=self._device)
            with torch.inference_mode():
                generated = self.model.generate(
                    ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=OUTPUT, min_new_tokens=OUTPUT,
                    pad_token_id=0, **options,
                )  # fmt: skip
            return int(generated.numel() - ids.numel())

        return turn

    def list_modes(self) -> dict[str, GenerateTurn]:
        return {
            "generate": self.make_generate(),
            "generate, static cache": self.make_generate(cache_implementation="static", disable_compile=True),
            "generate, static cache, compiled": self.make_generate(
                cache_implementation="static", compile_config=CompileConfig(mode="default")
            ),
            "generate, static cache, compiled with CUDA graphs": self.make_generate(
                cache_implementation="static", compile_config=CompileConfig(mode="reduce-overhead")
            ),
        }


# Not settings: use the library's decode attention, or the kernel without splits.
LIBRARY, WHOLE = "library", "whole"
OURS: dict[str, dict[str, Any]] = {
    "ours, kernel by kernel": {"cuda_graphs": "off"},
    "ours, kernel by kernel, the library's attention": {"cuda_graphs": "off", LIBRARY: True},
    "ours, recorded steps": {},
    "ours, recorded steps, rows never split": {WHOLE: True},
    "ours, recorded steps, the library's attention": {LIBRARY: True},
    "ours, compiled": {"torch_compile": "default", "cuda_graphs": "off"},
    "ours, compiled and recorded": {"torch_compile": "default"},
    "ours, compiled and recorded, the library's attention": {"torch_compile": "default", LIBRARY: True},
}


class ModeBenchmark:
    """Measures one mode after the other."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args, self._out = args, args.out / "ways.jsonl"
        self._deadline = started + args.seconds
        self.max_s: float = args.most  # per mode

    def measure(self, name: str, make_turn: Callable[[], GenerateTurn]) -> None:
        """Measure one mode. `make_turn` loads the model, which counts as well."""
        left_s = self._deadline - time.monotonic()
        if left_s < 20 or not any(fnmatch(name, pattern) for pattern in self._args.ways):
            log(f"skipped: {name}" + (", no time left" if left_s < 20 else ""))
            return
        signal.setitimer(signal.ITIMER_REAL, min(self.max_s, left_s))
        speeds: list[float] = []
        problem = ""
        try:
            turn = make_turn()
            for number in range(self._args.turns):
                speeds.append(self._run_turn(turn, number))
        except ModeTimeout:
            problem = "timed out"
        except Exception as error:
            problem = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')[:200]}"
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        self._write_result(name, speeds, problem)

    def _run_turn(self, turn: GenerateTurn, number: int) -> float:
        rows = self._args.rows
        source = random.Random(number)
        prompts = [[source.randrange(300, 40_000) for _ in range(self._args.input)] for _ in range(rows)]
        began = time.monotonic()
        tokens = turn(prompts)
        if self._args.device == "cuda":
            torch.cuda.synchronize()
        if tokens != rows * OUTPUT:
            raise RuntimeError(f"{tokens} tokens instead of {rows * OUTPUT}")
        return tokens / (time.monotonic() - began)

    def _write_result(self, name: str, speeds: Sequence[float], problem: str) -> None:
        line = {
            "way": name,
            "rows": self._args.rows,
            "input": self._args.input,
            "tokens_per_s": [round(speed, 1) for speed in speeds],
            "wrong": problem,
        }
        with self._out.open("a") as lines:
            lines.write(json.dumps(line) + "\n")
        log(f"{name:<52}{', '.join(f'{speed:,.0f}' for speed in speeds)} tok/s{f'  {problem}' if problem else ''}")


def main() -> int:
    args = _build_parser().parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGALRM, _raise_timeout)
    transformers.utils.logging.set_verbosity_error()
    log(f"torch {torch.__version__}, transformers {transformers.__version__}")
    benchmark = ModeBenchmark(args)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        path = make_shape(args.shape, folder, make_tokenizer(folder / "words"))
        for name, settings in OURS.items():
            _measure_ours(benchmark, name, path, {"device": args.device, "dtype": "bfloat16", **settings})
        library = LibraryModes(args.shape, args.device)
        for name, turn in library.list_modes().items():
            benchmark.measure(name, lambda turn=turn: turn)  # type: ignore[misc]
            torch.compiler.reset()
    return 0


def _measure_ours(benchmark: ModeBenchmark, name: str, path: Path, settings: dict[str, Any]) -> None:
    opened: list[EngineBench] = []

    def make_turn() -> GenerateTurn:
        opened.append(
            EngineBench(path, **{name: value for name, value in settings.items() if name not in (LIBRARY, WHOLE)})
        )
        attention = opened[0].engine.facts().effective["decode_attention"]
        if (attention == "own") != (LIBRARY not in settings and settings["device"] == "cuda"):
            raise RuntimeError(f"decode_attention is {attention}")
        opened[0].wait_s = benchmark.max_s  # it may compile
        return lambda prompts: sum(map(len, opened[0].run(prompts, [OUTPUT] * len(prompts))[0]))

    try:
        with _patch_attention(settings):  # while steps are captured
            benchmark.measure(name, make_turn)
    finally:
        while opened:  # leaves no reference to them
            opened.pop().engine.close()
        gc.collect()  # its components form cycles, and the next mode needs the memory
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _patch_attention(settings: dict[str, Any]) -> AbstractContextManager[Any]:
    if LIBRARY in settings:
        return mock.patch.object(engine_builder, "load_decode_kernel", lambda *_: (None, "disabled for this mode"))
    if WHOLE in settings and settings["device"] == "cuda":
        return mock.patch("enginebay.engines.transformers.continuous.decode_kernel.choose_num_splits", lambda *_: 1)
    return nullcontext()


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shape", choices=["llama-8b", "llama-tiny"], default="llama-8b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--input", type=int, default=INPUT, help="tokens per prompt")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=600.0, help="total time limit")
    parser.add_argument(
        "--most", type=float, default=120.0, help="time limit per mode in seconds, including load and compilation"
    )
    parser.add_argument(
        "--ways", nargs="+", metavar="PATTERN", default=["*"], help="run only matching modes, such as 'ours*'"
    )
    return parser


def _raise_timeout(number: int, frame: object) -> None:
    raise ModeTimeout


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # a mode that timed out may have left threads running
