"""The child of batching_study: one way to batch on one model, driven by JSON lines.

    python -m bench.gpu.transformers_batching.batching_ways ours|library --model FOLDER --device cuda [--settings JSON]

Commands: {"do": "prepare", "candidate": NAME, **size} and {"do": "run", "seed": N, **size}, where a size has rows, input and output;
each with "limit_s". The reply to `prepare` has the configuration in effect, the reply to `run` the tokens and seconds. A reply with
"error" leaves the child usable, unless it also has "fatal".
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import torch
import transformers

_VARLEN, _PAGED = "flash_varlen_2", "flash_paged_2"  # the library recognizes the words: FlashAttention, version 2
# Configurations of the library's continuous batching, by name: the attention, and what differs from the library's defaults.
# With flash attention these are CUDA graphs and asynchronous batches, with sdpa neither.
CANDIDATES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "flash, paged decode": (_PAGED, {}),
    "flash": (_VARLEN, {}),
    "sdpa": ("sdpa", {}),
    "sdpa, CUDA graphs, async": ("sdpa", {"use_cuda_graph": True, "use_async_batching": True}),
    "flash, paged decode, compiled": (_PAGED, {"default_compile_level": 1}),
}
_SPARE_BLOCKS = 1.3  # the scheduler stops admitting prompts when few blocks are free
_STOP_S = 8.0  # for the library's thread to stop after a failure


class TurnTimeout(Exception):
    """A command took longer than its limit."""


class BatchingWay(Protocol):
    def prepare(self, candidate: str, rows: int, inputs: int, outputs: int) -> Mapping[str, Any]: ...

    def run(self, prompts: list[list[int]], outputs: int) -> int: ...

    def recover(self) -> bool: ...


class EngineWay:
    """Enginebay's engine, which needs no preparation."""

    def __init__(self, model: Path, device: str, settings: Mapping[str, Any]) -> None:
        from bench.gpu.engine_bench import EngineBench

        self._bench = EngineBench(model, device=device, **settings)
        self._bench.wait_s = 600.0  # the commands have a limit

    def prepare(self, candidate: str, rows: int, inputs: int, outputs: int) -> Mapping[str, Any]:
        return dict(self._bench.engine.facts().effective)

    def run(self, prompts: list[list[int]], outputs: int) -> int:
        return sum(map(len, self._bench.run(prompts, [outputs] * len(prompts))[0]))

    def recover(self) -> bool:
        return False  # its requests still run


class LibraryWay:
    """The library's continuous batching: one running manager, sized for the workload."""

    def __init__(self, model: Path, device: str, settings: Mapping[str, Any]) -> None:
        _register_flash()
        self._model = transformers.AutoModelForCausalLM.from_pretrained(
            model, dtype=torch.bfloat16 if device == "cuda" else torch.float32, device_map={"": device}
        ).eval()
        self._manager: Any = None

    def prepare(self, candidate: str, rows: int, inputs: int, outputs: int) -> Mapping[str, Any]:
        from transformers.generation.continuous_batching.utils import WorkloadHints

        if not self.recover():
            raise RuntimeError("the last manager still runs")
        attention, options = CANDIDATES[candidate]
        self._model.set_attn_implementation(attention)
        pages = -(-(inputs + outputs) // 256) + 1
        config = transformers.ContinuousBatchingConfig(
            num_blocks=int(rows * pages * _SPARE_BLOCKS) + 8,  # other processes share the device's memory
            allow_block_sharing=False,  # all prompts differ
            auto_switch_to_flash=False,
            **options,
        )
        self._manager = self._model.init_continuous_batching(
            generation_config=transformers.GenerationConfig(
                do_sample=False, max_new_tokens=outputs, pad_token_id=0, eos_token_id=-1
            ),
            continuous_batching_config=config,
            workload_hints=WorkloadHints(inputs, outputs, rows),
        )
        self._manager.warmup()
        self._manager.start()
        effective = self._manager.continuous_batching_config
        names = ("use_cuda_graph", "use_async_batching", "max_blocks_per_request", "max_batch_tokens", "num_blocks")
        return {"attention": attention} | {name: getattr(effective, name) for name in names}

    def run(self, prompts: list[list[int]], outputs: int) -> int:
        self._manager.add_requests(prompts, max_new_tokens=outputs)
        tokens = finished = 0
        while finished < len(prompts):
            result = self._manager.get_result(timeout=1)
            if result is None and (fatal := self._manager.background_thread_status.fatal_error) is not None:
                raise RuntimeError(f"the library's loop stopped: {fatal}")
            if result is not None and result.error is not None:
                raise RuntimeError(str(result.error))
            if result is not None and result.is_finished():
                tokens += len(result.generated_tokens)
                finished += 1
        return tokens

    def recover(self) -> bool:
        """Stop the manager, whatever it does, and free its memory."""
        manager, self._manager = self._manager, None
        if manager is not None:
            manager.stop(block=True, timeout=_STOP_S, hard_stop=True)
            if manager.is_running():
                return False
            manager.destroy()
            torch.compiler.reset()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        return True


def _register_flash() -> None:
    """Give the library the functions of the package `flash-attn`, which is rarely installed: PyTorch has the same kernel for
    prompts, and `paged_decode_kernel` decodes from pages."""
    from transformers import modeling_flash_attention_utils as flash
    from transformers.integrations.flash_attention import flash_attention_forward

    def import_functions(implementation: str, *_: Any, **__: Any) -> tuple[Any, ...]:
        paged = _attend_pages if implementation == _PAGED else None
        return None, _attend_varlen, paged, flash._pad_input, flash._unpad_input

    flash._lazy_imports = import_functions
    for name in (_VARLEN, _PAGED):
        transformers.AttentionInterface.register(name, flash_attention_forward)


def _attend_varlen(
    q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, max_seqlen_q: int, max_seqlen_k: int,
    softmax_scale: float | None = None, causal: bool = False,
) -> Any:  # fmt: skip
    """q: [tokens, heads, size]; k, v: [tokens, kv heads, size]; returns like q."""
    if q.device.type == "cuda":
        return torch.ops.aten._flash_attention_forward(
            q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, 0.0, causal, False, scale=softmax_scale
        )[0]
    out = torch.zeros_like(q)  # elsewhere sequence by sequence, for tests
    starts = list(zip(cu_seqlens_q.tolist(), cu_seqlens_k.tolist(), strict=True))
    for (start, key_start), (stop, key_stop) in pairwise(starts):
        if stop > start:
            new, old = stop - start, key_stop - key_start
            mask = torch.ones(new, old, dtype=torch.bool).tril(old - new) if causal else None
            states = (s.transpose(0, 1) for s in (q[start:stop], k[key_start:key_stop], v[key_start:key_stop]))
            out[start:stop] = torch.nn.functional.scaled_dot_product_attention(
                *states, attn_mask=mask, scale=softmax_scale, enable_gqa=True
            ).transpose(0, 1)
    return out


def _attend_pages(
    q: Any, k_cache: Any, v_cache: Any, k: Any, v: Any, block_table: Any, cache_seqlens: Any,
    softmax_scale: float | None = None, causal: bool = False,
) -> Any:  # fmt: skip
    from bench.gpu.transformers_batching import paged_decode_kernel

    return paged_decode_kernel.attend(q, k_cache, v_cache, k, v, softmax_scale, block_table, cache_seqlens)


class CommandLoop:
    """Executes one command after the other, each within its limit."""

    def __init__(self, way: BatchingWay) -> None:
        self._way = way

    def execute(self, command: Mapping[str, Any]) -> dict[str, Any]:
        signal.setitimer(signal.ITIMER_REAL, command["limit_s"])
        try:
            return self._prepare(command) if command["do"] == "prepare" else self._run(command)
        except Exception as error:
            signal.setitimer(signal.ITIMER_REAL, 0)
            text = next(iter(str(error).splitlines()), "")[:300]
            return {"error": f"{type(error).__name__}: {text}", "fatal": not self._way.recover()}
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _prepare(self, command: Mapping[str, Any]) -> dict[str, Any]:
        began = time.perf_counter()
        config = self._way.prepare(command["candidate"], command["rows"], command["input"], command["output"])
        return {"seconds": time.perf_counter() - began, "config": {name: str(value) for name, value in config.items()}}

    def _run(self, command: Mapping[str, Any]) -> dict[str, Any]:
        source = random.Random(command["seed"])
        prompts = [[source.randrange(300, 40_000) for _ in range(command["input"])] for _ in range(command["rows"])]
        began = time.perf_counter()
        tokens = self._way.run(prompts, command["output"])
        seconds = time.perf_counter() - began
        expected = command["rows"] * command["output"]
        if tokens != expected:
            raise RuntimeError(f"{tokens} tokens instead of {expected}")
        return {"tokens": tokens, "seconds": seconds}


def _raise_timeout(number: int, frame: object) -> None:
    raise TurnTimeout("timed out")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("way", choices=["ours", "library"])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--settings", type=json.loads, default={})
    args = parser.parse_args()
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print must not look like a reply
    signal.signal(signal.SIGALRM, _raise_timeout)
    transformers.utils.logging.disable_progress_bar()
    began = time.perf_counter()
    way = (EngineWay if args.way == "ours" else LibraryWay)(args.model, args.device, args.settings)
    ready: dict[str, Any] = {"seconds": time.perf_counter() - began, "torch": torch.__version__}
    ready |= {"transformers": transformers.__version__} | (
        {"candidates": [*CANDIDATES]} if args.way == "library" else {}
    )
    print(json.dumps(ready), file=replies)
    loop = CommandLoop(way)
    for line in sys.stdin:
        reply = loop.execute(json.loads(line))
        print(json.dumps(reply), file=replies)
        if reply.get("fatal"):
            break
    sys.stderr.flush()
    os._exit(0)  # threads of a failed command may still run


if __name__ == "__main__":
    main()
