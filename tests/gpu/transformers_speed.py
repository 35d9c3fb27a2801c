"""Checks the speed and correctness of the transformers engine on CUDA, without a server.

    python tests/gpu/transformers_speed.py [--shape llama-8b] [--rows 256 64] [--seconds 70]

First a small random model in float32: steps with and without CUDA graphs and generate() must give the same tokens. Then a
shape with random weights: 128 tokens in, 128 out, all rows at once, with and without CUDA graphs; the time of each part of
a step; and the library's static generate(). Reports what it skips for lack of time. `src` and the repository must be on
PYTHONPATH. Exits with 1 if a check fails.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
import transformers

from bench.gpu.engine_bench import EngineBench
from bench.gpu.model_shapes import make_shape, make_tokenizer
from enginebay.engines.transformers.continuous import continuous_batcher
from enginebay.engines.transformers.continuous.continuous_batcher import ContinuousBatcher
from enginebay.engines.transformers.continuous.model_runner import ModelRunner
from enginebay.engines.transformers.continuous.scheduler import StepScheduler

INPUT = OUTPUT = 128
started = time.monotonic()
problems: list[str] = []


def log(text: str) -> None:
    print(f"{time.monotonic() - started:6.1f} s  {text}", flush=True)


class StepProfiler:
    """Wraps the parts of a step and sums their times by kind of step."""

    PARTS = ("plan", "launch", "choose", "text", "wait", "note")

    def __init__(self) -> None:
        self._now: dict[str, float] = defaultdict(float)
        self._kind = ""
        self.steps: dict[str, list[dict[str, float]]] = defaultdict(list)
        self._wrap(StepScheduler, "plan", "plan")
        self._wrap(ContinuousBatcher, "_emit_pending", "text")
        self._wrap(ContinuousBatcher, "_append_tokens", "note")
        self._wrap(continuous_batcher, "sample_on_device", "choose")
        self._wrap(continuous_batcher, "read_sampled", "wait")
        self._wrap_run()
        self._wrap_advance()

    def _wrap(self, owner: Any, name: str, part: str) -> None:
        inner: Callable[..., Any] = getattr(owner, name)

        def timed(*args: Any) -> Any:
            began = time.perf_counter()
            try:
                return inner(*args)
            finally:
                self._now[part] += time.perf_counter() - began

        setattr(owner, name, timed)

    def _wrap_run(self) -> None:
        inner = ModelRunner.run

        def timed(runner: Any, step: Any) -> Any:
            graphs = runner._graphs
            before = (graphs.replays, len(graphs._graph_cache)) if graphs is not None else (0, 0)
            began = time.perf_counter()
            result = inner(runner, step)
            self._now["launch"] += time.perf_counter() - began
            after = (graphs.replays, len(graphs._graph_cache)) if graphs is not None else (0, 0)
            tokens = sum(len(segment.tokens) for segment in step.segments)
            prompts = tokens > len(step.segments)
            if tokens:
                self._kind = (
                    "prompts" if prompts
                    else "replayed" if after[0] > before[0]
                    else "captured" if after[1] > before[1]
                    else "decoded"
                )  # fmt: skip
                self._now["tokens"] = tokens
            return result

        ModelRunner.run = timed  # type: ignore[method-assign]

    def _wrap_advance(self) -> None:
        inner = ContinuousBatcher.advance

        def timed(batcher: Any) -> bool:
            self._now.clear()
            self._kind = ""
            began = time.perf_counter()
            done = inner(batcher)
            if self._kind:
                self.steps[self._kind].append({**self._now, "all": time.perf_counter() - began})
            return done

        ContinuousBatcher.advance = timed  # type: ignore[method-assign]

    def report(self) -> None:
        for kind, steps in sorted(self.steps.items()):
            parts = "  ".join(f"{part} {1e3 * fmean(s.get(part, 0.0) for s in steps):.2f}" for part in self.PARTS)
            log(
                f"  {len(steps):4} steps {kind:9} {fmean(s['tokens'] for s in steps):6.0f} tokens,"
                f" {1e3 * median(s['all'] for s in steps):7.2f} ms median, {sum(s['all'] for s in steps):5.2f} s in all;"
                f" mean ms: {parts}"
            )
        self.steps.clear()


def make_small_model(folder: Path, tokenizer_folder: Path) -> Path:
    """Make a random model whose best token is far ahead of the second: rounding does not change greedy outputs."""
    torch.manual_seed(7)
    config = transformers.LlamaConfig(
        vocab_size=259, hidden_size=256, head_dim=64, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=2048, initializer_range=0.2, bos_token_id=1, eos_token_id=2,
        pad_token_id=2, tie_word_embeddings=False,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).to(torch.float32).save_pretrained(folder)
    for file in tokenizer_folder.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def check_correctness(path: Path, device: str) -> None:
    """Compare two runs with CUDA graphs (the second mostly replays), one without, and generate()."""
    source = random.Random(3)
    lengths = [source.choice([1, 40, 40, 57, 200, 250, 300]) for _ in range(40)]
    prompts = [[source.randrange(3, 259) for _ in range(length)] for length in lengths]
    tokens = [source.choice([12, 48, 100]) for _ in prompts]
    with_graphs = EngineBench(path, device=device, dtype="float32", **{"batching.batch_size": 24})
    first, _, _ = with_graphs.run(prompts, tokens)
    second, _, _ = with_graphs.run(prompts, tokens)
    log(f"small model: cuda_graphs {with_graphs.graphs}")
    if with_graphs.runner._graphs is not None:
        log(f"small model: {with_graphs.runner._graphs.replays} replays")
    if device == "cuda" and with_graphs.graphs != "on":
        problems.append(f"CUDA graphs: {with_graphs.graphs}")
    with_graphs.engine.close()
    plain = EngineBench(path, device=device, dtype="float32", cuda_graphs="off", **{"batching.batch_size": 24})
    expected, _, _ = plain.run(prompts, tokens)
    model = plain.engine._components.loaded_model.model
    theirs = []
    for prompt, limit in zip(prompts[:6], tokens[:6], strict=True):
        ids = torch.tensor([prompt], device=device)
        generated = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=limit, do_sample=False, eos_token_id=None
        )
        theirs.append(generated[0, len(prompt) :].tolist())
    plain.engine.close()
    for name, actual, reference in (
        ("CUDA graphs, first run", first, expected),
        ("CUDA graphs, second run", second, expected),
        ("generate()", expected[:6], theirs),
    ):
        wrong = [i for i, (a, b) in enumerate(zip(actual, reference, strict=True)) if a != b]
        if wrong:
            problems.append(f"{name}: {len(wrong)} of {len(reference)} outputs differ, the first is {wrong[0]}")
        log(f"small model, {name}: {len(reference) - len(wrong)} of {len(reference)} outputs are the same")


def measure(bench: EngineBench, watch: StepProfiler, rows: int, output: int, label: str, seed: int) -> None:
    source = random.Random(seed)
    size = bench.engine._components.loaded_model.vocab_size
    prompts = [[source.randrange(300, size) for _ in range(INPUT)] for _ in range(rows)]
    watch.steps.clear()
    outputs, took_s, ttft_s = bench.run(prompts, [output] * rows)
    generated = sum(map(len, outputs))
    if generated != rows * output:
        problems.append(f"{label}: {generated} tokens instead of {rows * output}")
    log(f"{label}, {rows} rows of {INPUT}+{output}: {generated / took_s:,.0f} tok/s, median TTFT {1e3 * ttft_s:.0f} ms")
    watch.report()


def time_replays(bench: EngineBench) -> None:
    """Time each captured step on the device alone. The rows it writes are free."""
    graphs = bench.runner._graphs
    for key, replay in list(graphs._graph_cache._entries.items()):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(10):
            replay()
        torch.cuda.synchronize()
        log(f"replay of {key.rows} rows, length {key.attended_length}: {100 * (time.perf_counter() - began):.2f} ms")


def profile_replay(bench: EngineBench) -> None:
    """Report the kernels that dominate one captured step."""
    from torch.profiler import ProfilerActivity, profile

    key, replay = max(bench.runner._graphs._graph_cache._entries.items())
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        replay()
        torch.cuda.synchronize()
    spent: dict[str, list[float]] = defaultdict(list)
    for event in profiled.events():
        spent[event.name].append(event.device_time)
    log(f"kernels of a step of {key.rows} rows: {sum(map(len, spent.values()))}")
    for name, times in sorted(spent.items(), key=lambda item: -sum(item[1]))[:14]:
        log(f"  {sum(times) / 1e3:6.2f} ms in {len(times):4}: {name[:110]}")


def measure_generate(bench: EngineBench, rows: int, output: int) -> None:
    model, device = bench.engine._components.loaded_model.model, bench.engine._components.loaded_model.device
    ids = torch.randint(300, 4000, (rows, INPUT), device=device)
    began = time.monotonic()
    with torch.inference_mode():
        model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=output, min_new_tokens=output,
            pad_token_id=0,
        )  # fmt: skip
    if device.type == "cuda":
        torch.cuda.synchronize()
    log(f"static generate(), {rows} rows of {INPUT}+{output}: {rows * output / (time.monotonic() - began):,.0f} tok/s")


def attempt(label: str, work: Callable[[], None], needs_s: float, deadline: float, counts: bool = True) -> None:
    """Run one part; report a failure and continue. `counts`: a failure is a problem."""
    if time.monotonic() + needs_s > deadline:
        log(f"skipped, no time left: {label}")
        return
    try:
        work()
    except Exception as error:
        traceback.print_exc()
        if counts:
            problems.append(f"{label}: {error}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--shape", default="llama-8b")
    parser.add_argument("--rows", nargs="+", type=int, default=[256, 64])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=70.0)
    parser.add_argument("--output", type=int, default=OUTPUT)
    args = parser.parse_args()
    deadline = started + args.seconds
    logging.basicConfig(level=logging.WARNING)
    transformers.utils.logging.set_verbosity_error()
    log(f"torch {torch.__version__}, transformers {transformers.__version__}, python {sys.version.split()[0]}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        tokenizer_folder = make_tokenizer(folder / "words")
        small = make_small_model(folder / "small", tokenizer_folder)
        attempt("correctness on a small model", lambda: check_correctness(small, args.device), 0, deadline)
        bench = EngineBench(make_shape(args.shape, folder, tokenizer_folder), device=args.device)
        facts = bench.engine.facts()
        log(f"{args.shape} loaded in {facts.load_s:.1f} s: {dict(facts.effective)}")
        if bench.runner is None:
            problems.append("continuous batching is not possible")
        else:
            measure_all(bench, args, deadline)
        bench.engine.close()
    for problem in problems:
        log(f"PROBLEM: {problem}")
    return 1 if problems else 0


def measure_all(bench: EngineBench, args: argparse.Namespace, deadline: float) -> None:
    watch = StepProfiler()
    most = max(args.rows)
    for rows in args.rows:
        for turn in ("first time", "second time", "third time"):  # steps are captured when they recur
            label = f"graphs {bench.graphs.partition(':')[0]}, {turn}"
            attempt(
                f"{rows} rows, {turn}",
                lambda r=rows, w=label: measure(bench, watch, r, args.output, w, r + len(w)),  # type: ignore[misc]
                6, deadline,
            )  # fmt: skip
    if args.device == "cuda":
        log(f"cuda_graphs: {bench.graphs}; {torch.cuda.max_memory_reserved() / 2**30:.1f} GiB reserved at most")
        if bench.graphs != "on":
            problems.append(f"CUDA graphs: {bench.graphs}")
    if bench.runner.has_graphs and args.device == "cuda":
        attempt("replays alone", lambda: time_replays(bench), 3, deadline)
        attempt("kernels of a replay", lambda: profile_replay(bench), 6, deadline, counts=False)
    bench.runner._graphs = None
    short = min(32, args.output)
    attempt("without graphs", lambda: measure(bench, watch, most, short, "graphs off", 7), 8, deadline)
    attempt("static generate()", lambda: measure_generate(bench, most, short), 8, deadline, counts=False)


if __name__ == "__main__":
    sys.exit(main())
