"""What the transformers engine takes for rounding, and what for another kind of attention; run by test_features.py in its environment."""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from enginebay.engines.transformers import runner as running
from enginebay.engines.transformers.runner import Runner

_VOCABULARY = 32_000


class NoAdapters:
    def use(self, name: str | None) -> None:
        assert name is None


def model_of(dtype: Any) -> Any:
    """Deep and with a large vocabulary: both make the largest rounding error larger."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=256, intermediate_size=512, num_hidden_layers=48, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=_VOCABULARY, initializer_range=0.08,
    )  # fmt: skip
    return LlamaForCausalLM(config).to(dtype).eval()


def obstacle(model: Any) -> str | None:
    return Runner(model, NoAdapters(), 512, torch.device("cpu"), None).obstacle()  # type: ignore[arg-type]


def check_every_format_is_batched_continuously() -> None:
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        assert obstacle(model_of(dtype)) is None, dtype


def check_rounding_can_be_large_for_one_logit() -> None:
    """Or else the check above would not show that this is allowed."""
    largest = []

    def look(ours: Any, plain: Any, full: bool) -> bool:
        largest.append(float((ours - plain).abs().max() / plain.std()))
        return True

    with mock.patch.object(running, "agree", look):
        obstacle(model_of(torch.bfloat16))
    assert max(largest) > 0.1, largest


def check_another_attention_is_seen() -> None:
    for dtype, factor in ((torch.float32, 1.02), (torch.float16, 1.5), (torch.bfloat16, 1.5)):
        model = model_of(dtype)
        plain = Runner._plain_logits

        def scaled(runner: Any, rows: Any, model: Any = model, factor: float = factor, plain: Any = plain) -> Any:
            for layer in model.model.layers:
                layer.self_attn.scaling *= factor
            return plain(runner, rows)

        with mock.patch.object(Runner, "_plain_logits", scaled):
            assert "not plain" in (obstacle(model) or ""), dtype


CHECKS = (
    check_every_format_is_batched_continuously,
    check_rounding_can_be_large_for_one_logit,
    check_another_attention_is_seen,
)

if __name__ == "__main__":
    for check in CHECKS:
        check()
        print(f"ok {check.__name__}", flush=True)
