"""Which steps are captured as one graph, and that mixed graphs are captured with a prompt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest

from enginebay.engines.vllm.patches import mixed_graphs

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
            return {desc: create_forward_fn(desc, False) for descs in self._capture_descs.values() for desc in descs}

    return SimpleNamespace(CudaGraphManager=CudaGraphManager, CUDAGraphMode=Mode, InputBatch=Batch)


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
    mixed_graphs.install(module)
    mixed_graphs.install(module)  # a second time changes nothing
    assert not mixed_graphs.has_taken_effect()
    manager = module.CudaGraphManager()
    assert mixed_graphs.has_taken_effect()
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
    mixed_graphs.install(module)
    mixed_graphs.disable()
    manager = module.CudaGraphManager()
    assert manager._capture_descs == expected and not mixed_graphs.has_taken_effect()


def test_vllms_full_graphs_keep_its_own_dummies(monkeypatch: pytest.MonkeyPatch) -> None:
    module = _module([8])
    monkeypatch.setattr(mixed_graphs, "is_supported_manager", lambda manager: False)
    mixed_graphs.install(module)
    manager = module.CudaGraphManager()
    manager._capture_descs = {Mode.FULL: [Desc(Mode.FULL, 8, 8)]}
    assert manager.capture(_longest) == {Desc(Mode.FULL, 8, 8): 1}


def test_an_unsupported_manager_captures_vllms_default_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    module = _module([8, 512])
    expected = module.CudaGraphManager()._capture_descs
    monkeypatch.setattr(mixed_graphs, "is_supported_manager", lambda manager: False)
    mixed_graphs.install(module)
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
    mixed_graphs.install(module)
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


def test_an_untested_vllm_is_not_patched() -> None:
    module = _module([8])
    assert mixed_graphs.find_incompatibility(module, "0.26.0") is None
    assert "not tested" in str(mixed_graphs.find_incompatibility(module, "0.32.0"))
    assert "different _init_candidates" in str(mixed_graphs.find_incompatibility(SimpleNamespace(), "0.26.0"))


def test_every_layer_needs_flash_attention_3() -> None:
    def layer(version: int | None, window: tuple[int, int] = (-1, -1)) -> Any:
        return SimpleNamespace(impl=SimpleNamespace(vllm_flash_attn_version=version, sliding_window=window))

    assert mixed_graphs._is_flash_attention_3([layer(3), layer(3)])
    assert not mixed_graphs._is_flash_attention_3([])
    for other in (layer(2), layer(None), layer(3, (1023, 0)), SimpleNamespace(), SimpleNamespace(impl=object())):
        assert not mixed_graphs._is_flash_attention_3([layer(3), other])
