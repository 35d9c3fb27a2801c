"""Which steps are captured as one graph, that mixed graphs are captured with a prompt, and that wrong ones are refused."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest

from enginebay.engines.vllm.patches import graph_check, mixed_graphs
from enginebay.engines.vllm.patches.compatibility import PatchSelection
from enginebay.engines.vllm.patches.declarations import MIXED_GRAPHS

OWN = [1, 2, 4, *range(8, 256, 8), *range(256, 513, 16)]


class Mode(Enum):
    NONE = 0
    PIECEWISE = 1
    FULL = 2


@dataclass(frozen=True)
class Desc:
    cg_mode: Mode
    num_tokens: int
    num_reqs: int | None
    uniform_token_count: int | None = None


class Batch:
    @classmethod
    def make_dummy(cls, num_reqs: int, num_tokens: int, buffers: Any) -> Any:
        return SimpleNamespace(num_scheduled_tokens=[num_tokens // num_reqs] * num_reqs)


def _module(sizes: list[int]) -> Any:
    """Like vLLM 0.26: a full decode-only graph for every size, piecewise graphs for mixed steps."""

    class CudaGraphManager:
        max_num_reqs = 600

        def __init__(self) -> None:
            self.compilation_config = SimpleNamespace(
                cudagraph_capture_sizes=list(sizes), max_cudagraph_capture_size=max(sizes)
            )
            self.vllm_config = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_batched_tokens=640))
            self._capture_descs: dict[Mode, list[Desc]] = {}
            self._candidates: dict[tuple[int, int], list[Desc]] = {}
            self.graphs: dict[Desc, int] = {}
            self.captured: list[Desc] = []
            self._init_candidates()

        def _init_candidates(self) -> None:
            for size in self.compilation_config.cudagraph_capture_sizes:
                both = [Desc(Mode.PIECEWISE, size, None)]
                if size <= self.max_num_reqs:
                    both.insert(0, Desc(Mode.FULL, size, size, 1))
                for desc in both:
                    self._capture_descs.setdefault(desc.cg_mode, []).append(desc)
                self._candidates[size, 0] = both

        def capture(
            self, create_forward_fn: Callable[[Desc, bool], int], progress_bar_desc: str = ""
        ) -> dict[Desc, int]:
            captured = {
                desc: create_forward_fn(desc, False) for descs in self._capture_descs.values() for desc in descs
            }
            self.captured.extend(captured)
            assert not set(self.graphs) & set(captured), "captured twice"
            self.graphs.update({desc: value for desc, value in captured.items() if desc.cg_mode == Mode.FULL})
            return captured

    return SimpleNamespace(CudaGraphManager=CudaGraphManager, CUDAGraphMode=Mode, InputBatch=Batch)


def _runners() -> Any:
    class GPUModelRunner:
        dtype = "bfloat16"

        def __init__(self, manager: Any) -> None:
            self.cudagraph_manager = manager

        def capture_model(self) -> int:
            return len(self.cudagraph_manager.capture(_longest))

    return SimpleNamespace(GPUModelRunner=GPUModelRunner)


@pytest.fixture(autouse=True)
def _torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    torch = SimpleNamespace(inference_mode=nullcontext, finfo=lambda dtype: SimpleNamespace(eps=2.0**-7))
    monkeypatch.setitem(sys.modules, "torch", torch)  # type: ignore[arg-type]
    yield
    mixed_graphs.disable()


def _longest(desc: Desc, warmup: bool) -> int:
    return int(max(Batch.make_dummy(desc.num_reqs or desc.num_tokens, desc.num_tokens, None).num_scheduled_tokens))


def test_larger_sizes_extend_vllms_default_maximum() -> None:
    sizes = mixed_graphs.choose_capture_sizes(OWN, 8192)
    assert sizes[: len(OWN)] == OWN and sizes[len(OWN) :] == [576, 640, 704, 768, 832, 896, 960, 1024]
    assert mixed_graphs.choose_capture_sizes(OWN, 700) == [*OWN, 576, 640]
    assert mixed_graphs.choose_capture_sizes([1, 2, 4, 8, 16], 8192) == [1, 2, 4, 8, 16]  # few sequences: few graphs
    assert mixed_graphs.choose_capture_sizes([], 8192) == []


def test_mixed_steps_are_captured_in_full_with_a_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    module = _module([1, 8, 512])
    monkeypatch.setattr(mixed_graphs, "is_supported_manager", lambda manager: True)
    mixed_graphs.install(module, _runners())
    mixed_graphs.install(module, _runners())  # a second time changes nothing
    manager = module.CudaGraphManager()
    assert manager.compilation_config.max_cudagraph_capture_size == 640
    assert manager._candidates[8, 0] == [Desc(Mode.FULL, 8, 8, 1), Desc(Mode.FULL, 8, 8)]
    assert manager._candidates[512, 0] == [Desc(Mode.FULL, 512, 512, 1), Desc(Mode.FULL, 512, 512)]
    assert manager._candidates[576, 0] == [Desc(Mode.PIECEWISE, 576, None)]
    assert manager._capture_descs[Mode.PIECEWISE] == [Desc(Mode.PIECEWISE, 640, None), Desc(Mode.PIECEWISE, 576, None)]
    assert [desc.num_tokens for desc in manager._capture_descs[Mode.FULL]] == [512, 512, 8, 8, 1, 1]
    recorded = manager.capture(_longest)
    assert recorded[Desc(Mode.FULL, 512, 512, 1)] == 1
    assert recorded[Desc(Mode.FULL, 512, 512)] == 512
    assert recorded[Desc(Mode.FULL, 1, 1)] == 2  # one token alone would be taken for an answer
    assert recorded[Desc(Mode.PIECEWISE, 576, None)] == 1
    assert _longest(Desc(Mode.FULL, 8, 8), False) == 1  # afterwards dummies are what they were


def test_disabled_vllm_captures_its_default_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    module = _module([8, 512])
    expected = module.CudaGraphManager()._capture_descs
    monkeypatch.setattr(mixed_graphs, "is_supported_manager", lambda manager: True)
    mixed_graphs.install(module, _runners())
    mixed_graphs.disable()
    manager = module.CudaGraphManager()
    assert manager._capture_descs == expected and not mixed_graphs.has_taken_effect()


def test_vllms_full_graphs_keep_its_own_dummies(monkeypatch: pytest.MonkeyPatch) -> None:
    module = _module([8])
    monkeypatch.setattr(mixed_graphs, "is_supported_manager", lambda manager: False)
    mixed_graphs.install(module, _runners())
    manager = module.CudaGraphManager()
    manager._capture_descs = {Mode.FULL: [Desc(Mode.FULL, 8, 8)]}
    assert manager.capture(_longest) == {Desc(Mode.FULL, 8, 8): 1}


def test_an_unsupported_manager_captures_vllms_default_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    module = _module([8, 512])
    expected = module.CudaGraphManager()._capture_descs
    monkeypatch.setattr(mixed_graphs, "is_supported_manager", lambda manager: False)
    mixed_graphs.install(module, _runners())
    manager = module.CudaGraphManager()
    assert manager._capture_descs == expected and not mixed_graphs.has_taken_effect()
    assert manager.compilation_config.max_cudagraph_capture_size == 512


@pytest.mark.parametrize("most", [1, 5, 8, 10, 16, 97, 100, 104, 256, 500, 512, 600])
def test_a_decode_only_step_never_uses_a_graph_with_a_prompt(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """A graph captured with a prompt computes decode-only steps wrongly."""
    own = [size for size in OWN if size <= 2 * most]
    module = _module(own)
    module.CudaGraphManager.max_num_reqs = most
    monkeypatch.setattr(mixed_graphs, "is_supported_manager", lambda manager: True)
    mixed_graphs.install(module, _runners())
    manager = module.CudaGraphManager()
    recorded = manager.compilation_config.cudagraph_capture_sizes
    for answers in range(1, most + 1):
        padded = next((size for size in recorded if size >= answers), None)
        for desc in manager._candidates.get((padded, 0), ()):
            assert desc.cg_mode != Mode.FULL or desc.uniform_token_count == 1, (answers, desc)
            if desc.uniform_token_count == 1:
                break  # vLLM takes the first that suits
    assert all((desc.num_reqs or 0) <= most for descs in manager._candidates.values() for desc in descs)


def _config(**changed: Any) -> Any:
    model = SimpleNamespace(
        is_multimodal_model=changed.pop("multimodal", False), is_encoder_decoder=changed.pop("encoder", False)
    )
    parallel = SimpleNamespace(world_size=changed.pop("world_size", 1), data_parallel_size=1)
    plain = {"use_v2_model_runner": True, "speculative_config": None, "lora_config": None}
    return SimpleNamespace(model_config=model, parallel_config=parallel, **{**plain, **changed})


def test_only_plain_models_qualify() -> None:
    assert mixed_graphs.is_supported_config(_config())
    for changed in (
        {"multimodal": True}, {"encoder": True}, {"world_size": 2}, {"use_v2_model_runner": False},
        {"speculative_config": object()}, {"lora_config": object()},
    ):  # fmt: skip
        assert not mixed_graphs.is_supported_config(_config(**changed)), changed


def _capture(monkeypatch: pytest.MonkeyPatch, compare: Callable[..., float | None]) -> Any:
    """Capture as vLLM's engine process does, with `compare` in place of the steps on a GPU."""
    module, runners = _module([8, 512]), _runners()
    monkeypatch.setattr(mixed_graphs, "is_supported_manager", lambda manager: True)
    monkeypatch.setattr(graph_check, "compare_steps", compare)
    mixed_graphs.install(module, runners)
    runner = runners.GPUModelRunner(module.CudaGraphManager())
    assert runner.capture_model() > 0
    return runner.cudagraph_manager


def test_graphs_that_differ_by_rounding_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def compare(runner: Any, captured: list[int]) -> float:
        sizes.extend(captured)
        return 0.01

    manager = _capture(monkeypatch, compare)
    assert sorted(sizes) == [8, 512]
    assert mixed_graphs.has_taken_effect() and mixed_graphs.get_refusal() is None
    assert Desc(Mode.FULL, 512, 512) in manager.graphs


def _fail(*_: Any) -> float:
    raise RuntimeError("no such step")


@pytest.mark.parametrize(
    ("compare", "reason"),
    [
        (lambda *_: 1.5, "replayed steps differ from eager ones by 1.5, more than rounding"),
        (lambda *_: float("inf"), "more than rounding"),
        (lambda *_: None, "too small"),
        (_fail, "cannot be checked: RuntimeError: no such step"),
    ],
)
def test_a_wrong_graph_is_refused_and_vllms_default_graphs_are_captured(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    compare: Callable[..., float | None],
    reason: str,
) -> None:
    default = _module([8, 512]).CudaGraphManager()
    default.capture(_longest)
    manager = _capture(monkeypatch, compare)
    assert not mixed_graphs.has_taken_effect()
    assert reason in str(mixed_graphs.get_refusal()) and reason in caplog.text
    assert manager._candidates == default._candidates
    assert set(manager.graphs) == set(default.graphs) <= set(manager.captured)
    assert set(default.captured) <= set(manager.captured)
    assert manager.compilation_config == default.compilation_config


def test_without_mixed_graphs_nothing_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    module, runners = _module([8]), _runners()
    monkeypatch.setattr(mixed_graphs, "is_supported_manager", lambda manager: False)
    monkeypatch.setattr(graph_check, "compare_steps", _fail)
    mixed_graphs.install(module, runners)
    runners.GPUModelRunner(module.CudaGraphManager()).capture_model()
    assert not mixed_graphs.has_taken_effect() and mixed_graphs.get_refusal() is None


def test_graphs_that_no_prompt_fits_need_no_check(monkeypatch: pytest.MonkeyPatch) -> None:
    module, runners = _module([1]), _runners()
    monkeypatch.setattr(mixed_graphs, "is_supported_manager", lambda manager: True)
    monkeypatch.setattr(graph_check, "compare_steps", _fail)
    mixed_graphs.install(module, runners)
    runners.GPUModelRunner(module.CudaGraphManager()).capture_model()
    assert mixed_graphs.has_taken_effect()


def test_another_process_reports_its_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    module, runners = _module([8, 512]), _runners()
    monkeypatch.setattr(mixed_graphs, "is_supported_manager", lambda manager: True)
    monkeypatch.setattr(graph_check, "compare_steps", lambda *_: 7.0)
    mixed_graphs.install(module, runners)
    child = os.fork()
    if child == 0:
        runners.GPUModelRunner(module.CudaGraphManager()).capture_model()
        os._exit(0)
    os.waitpid(child, 0)
    assert "by 7," in str(mixed_graphs.get_refusal())


def test_an_untested_vllm_is_not_patched() -> None:
    config = _config()
    config.model_config.enforce_eager = False
    warnings: list[str] = []
    mixed_graphs.enable(config, PatchSelection({}, "0.32.0", warnings))
    assert not mixed_graphs.has_taken_effect() and mixed_graphs.get_refusal() is None
    assert warnings == [f"mixed_graphs: not tested with vllm 0.32.0; {MIXED_GRAPHS.fallback}"]
    config.model_config.enforce_eager = True
    mixed_graphs.enable(config, PatchSelection({}, "0.33.0", warnings))
    assert len(warnings) == 1, "an eager model has no graphs to patch"


def test_every_layer_needs_flash_attention_3() -> None:
    def layer(version: int | None, window: tuple[int, int] = (-1, -1)) -> Any:
        return SimpleNamespace(impl=SimpleNamespace(vllm_flash_attn_version=version, sliding_window=window))

    assert mixed_graphs._is_flash_attention_3([layer(3), layer(3)])
    assert not mixed_graphs._is_flash_attention_3([])
    for other in (layer(2), layer(None), layer(3, (1023, 0)), SimpleNamespace(), SimpleNamespace(impl=object())):
        assert not mixed_graphs._is_flash_attention_3([layer(3), other])
