"""Attention of our own for rows that decode; run by test_features.py in the transformers engine's environment:

    python check_transformers_kernel.py MODEL_DIR

What is around the kernel is checked with one in plain PyTorch. The kernel itself is checked where Triton can run it: on CUDA
(ENGINEBAY_CHECK_DEVICE), or slowly on any processor with TRITON_INTERPRET=1. The repository and `src` must be on PYTHONPATH.
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
from tests.contract.check_transformers import (
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

_DEVICE = os.environ.get("ENGINEBAY_CHECK_DEVICE", "cpu")


class ReferenceKernel:
    """Row by row, by the library's formula."""

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
        for at, (row, last) in enumerate(zip(rows.tolist(), positions.tolist(), strict=True)):
            seen = slice(0 if window is None else max(0, last + 1 - window), last + 1)
            mine = (one[row, :, seen].repeat_interleave(shared, 0) for one in (keys, values))
            out[at] = scaled_dot_product_attention(query[at, :, None], *mine, scale=scale)[:, 0]
        return out


class RefusingKernel(ReferenceKernel):
    def supports(self, query: Any, keys: Any, values: Any) -> bool:
        return False


class FailingKernel(ReferenceKernel):
    def attend(self, *given: Any) -> Any:
        raise LookupError("no compiler\nand so on")


class OutOfMemoryKernel(ReferenceKernel):
    def attend(self, *given: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")


class WrongKernel(ReferenceKernel):
    def attend(self, *given: Any) -> Any:
        return torch.zeros_like(super().attend(*given))


class TruncatingKernel(ReferenceKernel):
    """Reads so many positions and no more: one block, or a part of those that long rows are split into."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._last = most - 1

    def attend(self, query: Any, keys: Any, values: Any, rows: Any, positions: Any, *given: Any) -> Any:
        return super().attend(query, keys, values, rows, positions.clamp(max=self._last), *given)


def use_kernel(kernel: ReferenceKernel) -> Any:
    return mock.patch.object(engine_builder, "load_decode_kernel", lambda *_: (kernel, None))


def check_a_kernel_gives_what_generate_gives(path: str) -> None:
    expected = generate_greedy(path)
    with use_kernel(kernel := ReferenceKernel()):
        bench = CheckedEngine(path)
    found = bench.run([make_request(prompt, temperature=0, max_tokens=40) for prompt in make_prompts(12)])
    assert [choices[0] for choices in found] == expected
    assert bench.engine.facts().effective["decode_attention"] == "own" and kernel.calls > 40
    bench.engine.close()


def check_recorded_steps_are_good_for_any_length(path: str) -> None:
    plain = CheckedEngine(path)
    expected = plain.run(make_mixed_requests())
    plain.engine.close()
    with use_kernel(ReferenceKernel()):
        bench = open_recording_engine(path, recorder := FunctionRecorder())
    for _ in range(2):
        assert_same(path, bench.run(make_mixed_requests()), expected)
    assert recorder.replayed > recorder.recorded > 0
    recorded = get_runner(bench)._graphs._recordings._kept
    assert recorded and all(key.reach == key.capacity for key in recorded)
    bench.engine.close()


def check_compiled_steps_are_recorded(path: str) -> None:
    """And they are compiled at load: of what comes later only steps that want a single token are anything new.

    What is compiled is found and guarded as always, and then run as it is: there may be no C++ compiler.
    """
    expected, compiler = generate_greedy(path), torch.compile
    plainly = mock.patch.object(torch, "compile", lambda model, **_: compiler(model, backend="eager", dynamic=True))
    with use_kernel(ReferenceKernel()), plainly:
        bench = open_recording_engine(path, recorder := FunctionRecorder(), torch_compile="default")
    at_load = counters["stats"]["unique_graphs"]
    found = bench.run([make_request(prompt, temperature=0, max_tokens=40) for prompt in make_prompts(12)])
    assert [choices[0] for choices in found] == expected
    assert recorder.replayed > recorder.recorded > 0
    assert 0 < at_load <= counters["stats"]["unique_graphs"] <= at_load + 1, (at_load, counters["stats"])
    bench.engine.close()


def check_the_library_does_it_where_a_kernel_cannot(path: str) -> None:
    expected = generate_greedy(path)
    for kernel, reason in (
        (RefusingKernel(), "it does not take heads of 64 in float32"),
        (FailingKernel(), "no compiler"),
        (OutOfMemoryKernel(), "out of memory"),
        (WrongKernel(), "differ"),
        (TruncatingKernel(64), "differ"),
        (TruncatingKernel(256), "differ"),
    ):
        with use_kernel(kernel):
            bench = open_recording_engine(path, FunctionRecorder())
        effective, calls = bench.engine.facts().effective, kernel.calls
        assert effective["decode_attention"].startswith("library: ") and reason in effective["decode_attention"], (
            effective
        )
        assert effective["batching.strategy"] == "continuous", effective
        found = bench.run([make_request(prompt, temperature=0, max_tokens=40) for prompt in make_prompts(12)])
        assert [choices[0] for choices in found] == expected, kernel
        assert kernel.calls == calls
        assert any(key.reach < key.capacity for key in get_runner(bench)._graphs._recordings._kept), kernel
        bench.engine.close()


def check_our_kernel_attends_as_the_formula_does(path: str) -> None:
    from enginebay.engines.transformers.continuous import decode_kernel

    torch.manual_seed(0)
    formats = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 4e-2}
    if _DEVICE == "cpu":
        del formats[torch.bfloat16]  # the interpreter cannot multiply them
    for dtype, limit in formats.items():
        for heads, shared, size, window, scale in (
            (2, 4, 128, None, None),
            (3, 3, 64, None, 0.3),
            (2, 1, 64, 70, None),
            (2, 1, 64, 700, None),
            (1, 20, 64, None, None),
            (1, 2, 256, None, 0.05),
        ):
            for places in ([0, 63, 64, 200, 204], [0, 64, 500, 1039, 1040]):  # the longer ones are split
                capacity = places[-1] + 1
                keys, values = (torch.randn(10, heads, capacity, size, device=_DEVICE, dtype=dtype) for _ in range(2))
                rows = torch.tensor([0, 2, 3, 9, 5], device=_DEVICE)
                positions = torch.tensor(places, device=_DEVICE)
                # As the model has it: more tokens are in the step, and the heads come first.
                query = torch.randn(1, heads * shared, 7, size, device=_DEVICE, dtype=dtype)[0, :, 1:6].transpose(0, 1)
                assert decode_kernel.supports(query, keys, values)
                with mock.patch.object(
                    decode_kernel, "choose_num_splits", wraps=decode_kernel.choose_num_splits
                ) as asked:
                    found = decode_kernel.attend(query, keys, values, rows, positions, scale, window)
                assert (decode_kernel.choose_num_splits(*asked.call_args.args) > 1) == (
                    capacity > 1000 and window != 70
                )
                expected = ReferenceKernel().attend(query, keys, values, rows, positions, scale, window)
                assert (found - expected).abs().max() < limit, (dtype, heads, shared, size, window, places)


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
    # The rows that are tried at load have shelves of 256 and 1024.
    assert all(
        choose_num_splits(2 * heads, 256, cores) == 1 < choose_num_splits(heads, 1024, cores)
        for heads in (1, 64)
        for cores in (16, 132)
    )


CHECKS = (
    check_a_kernel_gives_what_generate_gives,
    check_recorded_steps_are_good_for_any_length,
    check_compiled_steps_are_recorded,
    check_the_library_does_it_where_a_kernel_cannot,
)
KERNEL_CHECKS = (check_few_rows_are_split_and_many_are_not, check_our_kernel_attends_as_the_formula_does)
TRITON = importlib.util.find_spec("triton") and (_DEVICE.startswith("cuda") or os.environ.get("TRITON_INTERPRET"))

if __name__ == "__main__":
    for check in (*CHECKS, *(KERNEL_CHECKS if TRITON else ())):
        check(sys.argv[1])
        print(f"ok {check.__name__}", flush=True)
