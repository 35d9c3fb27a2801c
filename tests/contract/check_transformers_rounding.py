"""Checks that the transformers engine tells rounding from wrong attention; test_features.py runs them in its environment."""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from enginebay.engines.transformers.continuous.cuda_graphs import _MAX_REPLAY_DISTANCE, compute_logit_distance
from enginebay.engines.transformers.continuous.model_runner import ModelRunner

_VOCABULARY = 32_000


class NoAdapters:
    def activate(self, name: str | None) -> None:
        assert name is None


def make_model(dtype: Any, layers: int = 48, weights: float = 0.08) -> Any:
    """Make a random model. Deep models with large weights have rounding errors that a fixed limit would reject."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=256, intermediate_size=512, num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=_VOCABULARY, initializer_range=weights,
    )  # fmt: skip
    return LlamaForCausalLM(config).to(dtype).eval()


def find_obstacle(model: Any) -> str | None:
    return ModelRunner(model, NoAdapters(), 512, torch.device("cpu"), None).find_obstacle()  # type: ignore[arg-type]


def check_every_dtype_is_batched_continuously() -> None:
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for layers, weights in ((32, 0.02), (80, 0.2)):
            assert find_obstacle(make_model(dtype, layers, weights)) is None, (dtype, layers, weights)


def check_one_wrong_row_is_detected() -> None:
    torch.manual_seed(0)
    logits = torch.randn(256, _VOCABULARY)
    assert compute_logit_distance(logits + 0.05 * torch.randn_like(logits), logits) < _MAX_REPLAY_DISTANCE
    for wrong in (logits[7], torch.zeros(_VOCABULARY), torch.full((_VOCABULARY,), torch.nan)):
        other = logits.clone()
        other[200] = wrong
        assert compute_logit_distance(other, logits) > _MAX_REPLAY_DISTANCE


def check_wrong_attention_is_detected() -> None:
    for dtype, factor in ((torch.float32, 1.001), (torch.float16, 1.1), (torch.bfloat16, 1.5)):
        model = make_model(dtype)
        compute, scaling = ModelRunner._compute_reference_logits, model.model.layers[0].self_attn.scaling

        def scaled(
            runner: Any, rows: Any, model: Any = model, scale: float = factor * scaling, compute: Any = compute
        ) -> Any:
            for layer in model.model.layers:
                layer.self_attn.scaling = scale
            return compute(runner, rows)

        with mock.patch.object(ModelRunner, "_compute_reference_logits", scaled):
            assert "not standard" in (find_obstacle(model) or ""), dtype


def check_a_model_with_one_attention_has_a_tolerance() -> None:
    for fault in (ValueError("unknown attention"), torch.full((2, _VOCABULARY), torch.nan)):
        compute = ModelRunner._compute_reference_logits

        def fail_other_attention(runner: Any, rows: Any, compute: Any = compute, fault: Any = fault) -> Any:
            if runner._config._attn_implementation == runner._library_attention:
                return compute(runner, rows)
            if isinstance(fault, Exception):
                raise fault
            return fault

        with mock.patch.object(ModelRunner, "_compute_reference_logits", fail_other_attention):
            model = make_model(torch.bfloat16)
            assert find_obstacle(model) is None and model.config._attn_implementation == "sdpa"


def check_an_inconsistent_library_does_not_disable_the_check() -> None:
    def random_logits(runner: Any, rows: Any) -> Any:
        return torch.randn(len(rows), _VOCABULARY)

    with mock.patch.object(ModelRunner, "_compute_reference_logits", random_logits):
        assert "not standard" in (find_obstacle(make_model(torch.float32, layers=2)) or "")


def check_an_error_without_a_message_is_an_obstacle() -> None:
    with mock.patch.object(ModelRunner, "_compare_with_library", side_effect=NotImplementedError()):
        assert "NotImplementedError" in (find_obstacle(make_model(torch.float32, layers=2)) or "")


CHECKS = (
    check_every_dtype_is_batched_continuously,
    check_one_wrong_row_is_detected,
    check_wrong_attention_is_detected,
    check_a_model_with_one_attention_has_a_tolerance,
    check_an_inconsistent_library_does_not_disable_the_check,
    check_an_error_without_a_message_is_an_obstacle,
)

if __name__ == "__main__":
    for check in CHECKS:
        check()
        print(f"ok {check.__name__}", flush=True)
