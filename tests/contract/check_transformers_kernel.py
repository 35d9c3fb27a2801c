"""Checks of the decode attention kernel; test_features.py runs them in the transformers environment:

    python check_transformers_kernel.py MODEL_DIR

The code around the kernel is checked with a kernel in plain PyTorch. The kernel itself is checked if Triton can run it: on CUDA
(ENGINEBAY_CHECK_DEVICE), or slowly on any CPU with TRITON_INTERPRET=1. The repository and `src` must be on PYTHONPATH.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Any
from unittest import mock

import torch
from torch._dynamo.utils import counters
from torch.nn.functional import scaled_dot_product_attention

from enginebay.engines.transformers import engine_builder
from tests.contract.checked_engine import (
    DEVICE,
    CheckedEngine,
    FunctionRecorder,
    assert_same,
    generate_greedy,
    get_runner,
    make_mixed_requests,
    make_prompts,
    make_request,
    open_recording_engine,
)


class ReferenceKernel:
    """Computes row by row with the library's attention."""

    def __init__(self) -> None:
        self.calls = 0

    def supports(self, query: Any, keys: Any, values: Any) -> bool:
        return True

    def attend(
        self, query: Any, keys: Any, values: Any, rows: Any, positions: Any, scale: float | None, window: int | None
    ) -> Any:
        self.calls += 1
        out = torch.empty_like(query)
        shared = query.shape[1] // keys.shape[1]
        for index, (row, last) in enumerate(zip(rows.tolist(), positions.tolist(), strict=True)):
            visible = slice(0 if window is None else max(0, last + 1 - window), last + 1)
            pair = (states[row, :, visible].repeat_interleave(shared, 0) for states in (keys, values))
            out[index] = scaled_dot_product_attention(query[index, :, None], *pair, scale=scale)[:, 0]
        return out


class RefusingKernel(ReferenceKernel):
    def supports(self, query: Any, keys: Any, values: Any) -> bool:
        return False


class FailingKernel(ReferenceKernel):
    def attend(self, *args: Any) -> Any:
        raise LookupError("no compiler\nand so on")


class OutOfMemoryKernel(ReferenceKernel):
    def attend(self, *args: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")


class WrongKernel(ReferenceKernel):
    def attend(self, *args: Any) -> Any:
        return torch.zeros_like(super().attend(*args))


class TruncatingKernel(ReferenceKernel):
    """Reads a limited number of positions, like one block or one split."""

    def __init__(self, max_positions: int) -> None:
        super().__init__()
        self._last = max_positions - 1

    def attend(self, query: Any, keys: Any, values: Any, rows: Any, positions: Any, *args: Any) -> Any:
        return super().attend(query, keys, values, rows, positions.clamp(max=self._last), *args)


def use_kernel(kernel: ReferenceKernel) -> Any:
    return mock.patch.object(engine_builder, "load_decode_kernel", lambda *_: (kernel, None))


def check_a_kernel_matches_generate(path: str) -> None:
    expected = generate_greedy(path)
    with use_kernel(kernel := ReferenceKernel()):
        checked = CheckedEngine(path)
    outputs = checked.run([make_request(prompt, temperature=0, max_tokens=40) for prompt in make_prompts(12)])
    assert [choices[0] for choices in outputs] == expected
    assert checked.engine.facts().effective["decode_attention"] == "own" and kernel.calls > 40
    checked.engine.close()


def check_graphs_fit_any_length(path: str) -> None:
    plain = CheckedEngine(path)
    expected = plain.run(make_mixed_requests())
    plain.engine.close()
    with use_kernel(ReferenceKernel()):
        checked = open_recording_engine(path, recorder := FunctionRecorder())
    for _ in range(2):
        assert_same(path, checked.run(make_mixed_requests()), expected)
    assert recorder.replayed > recorder.captured > 0
    graphs = get_runner(checked)._graphs._graph_cache._entries
    assert graphs and all(key.attended_length == key.capacity for key in graphs)
    checked.engine.close()


def check_compiled_steps_are_captured(path: str) -> None:
    """The model is compiled during the load; later only steps with a single token compile again.

    Uses the eager backend of torch.compile: there may be no C++ compiler.
    """
    expected, compiler = generate_greedy(path), torch.compile
    eager_backend = mock.patch.object(
        torch, "compile", lambda model, **_: compiler(model, backend="eager", dynamic=True)
    )
    with use_kernel(ReferenceKernel()), eager_backend:
        checked = open_recording_engine(path, recorder := FunctionRecorder(), torch_compile="default")
    at_load = counters["stats"]["unique_graphs"]
    outputs = checked.run([make_request(prompt, temperature=0, max_tokens=40) for prompt in make_prompts(12)])
    assert [choices[0] for choices in outputs] == expected
    assert recorder.replayed > recorder.captured > 0
    assert 0 < at_load <= counters["stats"]["unique_graphs"] <= at_load + 1, (at_load, counters["stats"])
    checked.engine.close()


def check_fallback_to_the_library_attention(path: str) -> None:
    expected = generate_greedy(path)
    for kernel, reason in (
        (RefusingKernel(), "it does not support head size 64 in float32"),
        (FailingKernel(), "no compiler"),
        (OutOfMemoryKernel(), "out of memory"),
        (WrongKernel(), "differ"),
        (TruncatingKernel(64), "differ"),
        (TruncatingKernel(256), "differ"),
    ):
        with use_kernel(kernel):
            checked = open_recording_engine(path, FunctionRecorder())
        effective, calls = checked.engine.facts().effective, kernel.calls
        assert effective["decode_attention"].startswith("library: ") and reason in effective["decode_attention"], (
            effective
        )
        assert effective["batching.strategy"] == "continuous", effective
        outputs = checked.run([make_request(prompt, temperature=0, max_tokens=40) for prompt in make_prompts(12)])
        assert [choices[0] for choices in outputs] == expected, kernel
        assert kernel.calls == calls
        assert any(key.attended_length < key.capacity for key in get_runner(checked)._graphs._graph_cache._entries), (
            kernel
        )
        checked.engine.close()


def check_our_kernel_attends_as_the_formula_does(path: str) -> None:
    from enginebay.engines.transformers.continuous import decode_kernel

    torch.manual_seed(0)
    formats = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 4e-2}
    if DEVICE == "cpu":
        del formats[torch.bfloat16]  # the interpreter does not support it
    for dtype, limit in formats.items():
        for heads, shared, size, window, scale in (
            (2, 4, 128, None, None),
            (3, 3, 64, None, 0.3),
            (2, 1, 64, 70, None),
            (2, 1, 64, 700, None),
            (1, 20, 64, None, None),
            (1, 2, 256, None, 0.05),
        ):
            for last_positions in ([0, 63, 64, 200, 204], [0, 64, 500, 1039, 1040]):  # the longer ones are split
                capacity = last_positions[-1] + 1
                keys, values = (torch.randn(10, heads, capacity, size, device=DEVICE, dtype=dtype) for _ in range(2))
                rows = torch.tensor([0, 2, 3, 9, 5], device=DEVICE)
                positions = torch.tensor(last_positions, device=DEVICE)
                # As in the model: the step has more tokens, and heads come first.
                query = torch.randn(1, heads * shared, 7, size, device=DEVICE, dtype=dtype)[0, :, 1:6].transpose(0, 1)
                assert decode_kernel.supports(query, keys, values)
                with mock.patch.object(
                    decode_kernel, "choose_num_splits", wraps=decode_kernel.choose_num_splits
                ) as choose:
                    actual = decode_kernel.attend(query, keys, values, rows, positions, scale, window)
                assert (decode_kernel.choose_num_splits(*choose.call_args.args) > 1) == (
                    capacity > 1000 and window != 70
                )
                expected = ReferenceKernel().attend(query, keys, values, rows, positions, scale, window)
                assert (actual - expected).abs().max() < limit, (dtype, heads, shared, size, window, last_positions)


def check_few_rows_are_split_and_many_are_not(path: str) -> None:
    from enginebay.engines.transformers.continuous.decode_kernel import choose_num_splits

    assert choose_num_splits(8 * 8, 8192, 132) == 16
    assert choose_num_splits(1, 8192, 132) == 32
    assert choose_num_splits(8 * 8, 512, 132) == 2
    assert (
        choose_num_splits(8 * 8, 256, 132)
        == choose_num_splits(8 * 8, 1, 132)
        == choose_num_splits(256 * 8, 8192, 132)
        == 1
    )
    # The trial rows at load have buckets of 256 and 1024.
    assert all(
        choose_num_splits(2 * heads, 256, cores) == 1 < choose_num_splits(heads, 1024, cores)
        for heads in (1, 64)
        for cores in (16, 132)
    )


CHECKS = (
    check_a_kernel_matches_generate,
    check_graphs_fit_any_length,
    check_compiled_steps_are_captured,
    check_fallback_to_the_library_attention,
)
KERNEL_CHECKS = (check_few_rows_are_split_and_many_are_not, check_our_kernel_attends_as_the_formula_does)
TRITON = importlib.util.find_spec("triton") and (DEVICE.startswith("cuda") or os.environ.get("TRITON_INTERPRET"))

if __name__ == "__main__":
    for check in (*CHECKS, *(KERNEL_CHECKS if TRITON else ())):
        check(sys.argv[1])
        print(f"ok {check.__name__}", flush=True)
