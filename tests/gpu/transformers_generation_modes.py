"""What each way of generating with transformers gives on a GPU: the library's own, with and without static cache, compilation and
continuous batching, and our loop, with and without recorded steps, compilation and attention of our own.

    python -m tests.gpu.transformers_generation_modes --out FOLDER [--shape llama-8b] [--rows 256] [--input 128] [--turns 3] [--seconds 600] [--ways PATTERN...]

Rows of `--input` tokens in and 128 out, random weights, greedy, no server. Each way has a few turns: the first has what compiles and
records in it. A way that fails, or takes longer than `--most` seconds, is told, and the next one follows. `ways.jsonl` in the
folder has a line for each way, as it comes.
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
from transformers import CompileConfig, ContinuousBatchingConfig, GenerationConfig, LlamaConfig, LlamaForCausalLM

from bench.gpu.model_shapes import build_shape_config, make_shape
from enginebay.engines.transformers import engine_builder
from tests.gpu.transformers_speed import INPUT, OUTPUT, EngineBench, log, make_tokenizer, started

GenerateTurn = Callable[[list[list[int]]], int]  # answers prompts; gives the number of tokens that it made


class ModeTimeout(BaseException):
    """A way took too long. Nobody else may take it for a failure of theirs."""


class LibraryModes:
    """The library's ways, on one model."""

    def __init__(self, shape: str, device: str) -> None:
        torch.manual_seed(0)
        config = {**build_shape_config(shape), "dtype": torch.bfloat16}
        torch.set_default_dtype(torch.bfloat16)
        with torch.device(device):
            self.model = LlamaForCausalLM(LlamaConfig(**config)).eval()
        torch.set_default_dtype(torch.float32)
        self._device = device

    def make_generate(self, **given: Any) -> GenerateTurn:
        def turn(prompts: list[list[int]]) -> int:
            ids = torch.tensor(prompts, device=self._device)
            with torch.inference_mode():
                made = self.model.generate(
                    ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=OUTPUT, min_new_tokens=OUTPUT,
                    pad_token_id=0, **given,
                )  # fmt: skip
            return int(made.numel() - ids.numel())

        return turn

    def make_continuous_batch(self, attention: str, **given: Any) -> GenerateTurn:
        """Its continuous batching, with all prompts at once."""

        def turn(prompts: list[list[int]]) -> int:
            self.model.set_attn_implementation(attention)
            wanted = GenerationConfig(
                do_sample=False, max_new_tokens=OUTPUT, min_new_tokens=OUTPUT, pad_token_id=0, eos_token_id=-1
            )
            made = self.model.generate_batch(
                inputs=prompts,
                generation_config=wanted,
                continuous_batching_config=ContinuousBatchingConfig(max_memory_percent=0.5, **given),
            )
            return sum(len(one.generated_tokens) for one in made.values())

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
            "generate_batch": self.make_continuous_batch("sdpa", use_cuda_graph=False),
            "generate_batch, CUDA graphs": self.make_continuous_batch("sdpa", use_cuda_graph=True),
            "generate_batch, compiled": self.make_continuous_batch(
                "sdpa", use_cuda_graph=False, default_compile_level=1
            ),
        }


# No settings: rows that decode are attended by the library's kernels, or by ours without ever being split.
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
    """Measures one way after the other."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._given, self._out = given, given.out / "ways.jsonl"
        self._deadline = started + given.seconds
        self.most_s: float = given.most  # for one way

    def measure(self, name: str, made: Callable[[], GenerateTurn]) -> None:
        """`made` may take long itself: it loads."""
        left_s = self._deadline - time.monotonic()
        if left_s < 20 or not any(fnmatch(name, pattern) for pattern in self._given.ways):
            log(f"left out: {name}" + (", no time" if left_s < 20 else ""))
            return
        signal.setitimer(signal.ITIMER_REAL, min(self.most_s, left_s))
        speeds: list[float] = []
        wrong = ""
        try:
            turn = made()
            for number in range(self._given.turns):
                speeds.append(self._run_turn(turn, number))
        except ModeTimeout:
            wrong = "it took too long"
        except Exception as error:
            wrong = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')[:200]}"
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        self._write_result(name, speeds, wrong)

    def _run_turn(self, turn: GenerateTurn, number: int) -> float:
        rows = self._given.rows
        source = random.Random(number)
        prompts = [[source.randrange(300, 40_000) for _ in range(self._given.input)] for _ in range(rows)]
        began = time.monotonic()
        tokens = turn(prompts)
        if self._given.device == "cuda":
            torch.cuda.synchronize()
        if tokens != rows * OUTPUT:
            raise RuntimeError(f"{tokens} tokens instead of {rows * OUTPUT}")
        return tokens / (time.monotonic() - began)

    def _write_result(self, name: str, speeds: Sequence[float], wrong: str) -> None:
        line = {
            "way": name,
            "rows": self._given.rows,
            "input": self._given.input,
            "tokens_per_s": [round(one, 1) for one in speeds],
            "wrong": wrong,
        }
        with self._out.open("a") as lines:
            lines.write(json.dumps(line) + "\n")
        log(f"{name:<52}{', '.join(f'{one:,.0f}' for one in speeds)} tok/s{f'  {wrong}' if wrong else ''}")


def main() -> int:
    given = _build_parser().parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGALRM, _raise_timeout)
    transformers.utils.logging.set_verbosity_error()
    log(f"torch {torch.__version__}, transformers {transformers.__version__}")
    ways = ModeBenchmark(given)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        path = make_shape(given.shape, folder, make_tokenizer(folder / "words"))
        for name, settings in OURS.items():
            _measure_ours(ways, name, path, {"device": given.device, "dtype": "bfloat16", **settings})
        library = LibraryModes(given.shape, given.device)
        for name, turn in library.list_modes().items():
            ways.measure(name, lambda turn=turn: turn)  # type: ignore[misc]
            torch.compiler.reset()
    return 0


def _measure_ours(ways: ModeBenchmark, name: str, path: Path, settings: dict[str, Any]) -> None:
    opened: list[EngineBench] = []

    def made() -> GenerateTurn:
        opened.append(
            EngineBench(path, **{name: value for name, value in settings.items() if name not in (LIBRARY, WHOLE)})
        )
        attention = opened[0].engine.facts().effective["decode_attention"]
        if (attention == "own") != (LIBRARY not in settings and settings["device"] == "cuda"):
            raise RuntimeError(f"decode_attention is {attention}")
        opened[0].wait_s = ways.most_s  # it may have to compile
        return lambda prompts: sum(map(len, opened[0].run(prompts, [OUTPUT] * len(prompts))[0]))

    try:
        with _patch_attention(settings):  # for as long as steps are recorded
            ways.measure(name, made)
    finally:
        while opened:  # no name is left for one of them
            opened.pop().engine.close()
        gc.collect()  # its parts know each other, and the next way wants the memory
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _patch_attention(settings: dict[str, Any]) -> AbstractContextManager[Any]:
    if LIBRARY in settings:
        return mock.patch.object(engine_builder, "load_decode_kernel", lambda *_: (None, "as asked"))
    if WHOLE in settings and settings["device"] == "cuda":
        return mock.patch("enginebay.engines.transformers.continuous.decode_kernel.choose_num_splits", lambda *_: 1)
    return nullcontext()


def _build_parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--shape", choices=["llama-8b", "llama-tiny"], default="llama-8b")
    options.add_argument("--device", default="cuda")
    options.add_argument("--rows", type=int, default=256)
    options.add_argument("--input", type=int, default=INPUT, help="tokens of a prompt")
    options.add_argument("--turns", type=int, default=3)
    options.add_argument("--seconds", type=float, default=600.0, help="for everything")
    options.add_argument("--most", type=float, default=120.0, help="seconds for one way, with loading and compiling")
    options.add_argument("--ways", nargs="+", metavar="PATTERN", default=["*"], help="only those named so, as 'ours*'")
    return options


def _raise_timeout(number: int, frame: object) -> None:
    raise ModeTimeout


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # a way that was given up may have left threads that never end
