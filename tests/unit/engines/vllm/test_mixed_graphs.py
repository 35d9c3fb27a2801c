"""Which steps are recorded as one graph, and that those with a prompt are recorded with one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest

from enginebay.engines.vllm import mixed_graphs

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
    """As vLLM 0.26 has it: a graph of answers alone for every size, pieces for every mixed one."""

    class CudaGraphManager:
        max_num_reqs = 600

        def __init__(self) -> None:
            self._capture_descs: dict[Mode, list[Desc]] = {}
            self._candidates: dict[tuple[int, int], list[Desc]] = {}
            self._init_candidates()

        def _init_candidates(self) -> None:
            for size in sizes:
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


def test_larger_sizes_follow_where_vllm_always_ends() -> None:
    found = mixed_graphs.sizes(OWN, 8192)
    assert found[: len(OWN)] == OWN and found[len(OWN) :] == [576, 640, 704, 768, 832, 896, 960, 1024]
    assert mixed_graphs.sizes(OWN, 700) == [*OWN, 576, 640]
    assert mixed_graphs.sizes([1, 2, 4, 8, 16], 8192) == [1, 2, 4, 8, 16]  # few sequences: few graphs
    assert mixed_graphs.sizes([], 8192) == []


def test_mixed_steps_are_recorded_whole_with_a_prompt_in_them(monkeypatch: pytest.MonkeyPatch) -> None:
    module = _module([1, 8, 512, 576, 640])
    monkeypatch.setattr(mixed_graphs, "suits", lambda manager: True)
    mixed_graphs.install(module)
    mixed_graphs.install(module)  # a second time changes nothing
    manager = module.CudaGraphManager()
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


def test_what_does_not_suit_is_recorded_as_vllm_does(monkeypatch: pytest.MonkeyPatch) -> None:
    module = _module([8, 576])
    expected = module.CudaGraphManager()._capture_descs
    monkeypatch.setattr(mixed_graphs, "suits", lambda manager: False)
    mixed_graphs.install(module)
    assert module.CudaGraphManager()._capture_descs == expected


def test_a_graph_never_has_more_requests_than_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    module = _module([512])
    module.CudaGraphManager.max_num_reqs = 100
    monkeypatch.setattr(mixed_graphs, "suits", lambda manager: True)
    mixed_graphs.install(module)
    assert module.CudaGraphManager()._candidates[512, 0] == [Desc(Mode.FULL, 512, 100)]


def _config(**changed: Any) -> Any:
    model = SimpleNamespace(
        is_multimodal_model=changed.pop("multimodal", False), is_encoder_decoder=changed.pop("encoder", False)
    )
    parallel = SimpleNamespace(world_size=changed.pop("world_size", 1), data_parallel_size=1)
    plain = {"use_v2_model_runner": True, "speculative_config": None, "lora_config": None}
    return SimpleNamespace(model_config=model, parallel_config=parallel, **{**plain, **changed})


def test_only_plain_models_qualify() -> None:
    assert mixed_graphs.plain(_config())
    for changed in (
        {"multimodal": True}, {"encoder": True}, {"world_size": 2}, {"use_v2_model_runner": False},
        {"speculative_config": object()}, {"lora_config": object()},
    ):  # fmt: skip
        assert not mixed_graphs.plain(_config(**changed)), changed


def test_another_vllm_is_left_alone() -> None:
    module = _module([8])
    assert mixed_graphs.why_not(module, "0.26.0") is None
    assert "not tried" in str(mixed_graphs.why_not(module, "0.32.0"))
    assert "another _init_candidates" in str(mixed_graphs.why_not(SimpleNamespace(), "0.26.0"))
