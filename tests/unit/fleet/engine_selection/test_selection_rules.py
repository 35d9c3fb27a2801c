"""Engine selection: every line of the rules, without a host or a library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from enginebay.contract import EngineSpec, Preference, Probe
from enginebay.engines.registry import load_built_in_specs
from enginebay.errors import EngineMissing, UsageError
from enginebay.fleet.engine_selection import selection_rules
from enginebay.fleet.engine_selection.selection_rules import EngineDecision, ModelFacts
from enginebay.util.hardware import Gpu, HostFacts

GGUF = ModelFacts("gguf", "LlamaForCausalLM", "small")
TENSORS = ModelFacts("safetensors", "LlamaForCausalLM", "small")
GPU = Gpu(0, "H200", 140 * 1024**3)
LLAMACPP = Probe("1.0")
TRANSFORMERS = Probe("5.0", devices=("cpu", "cuda"))
VLLM_GPU = Probe("0.26", devices=("cuda",), architectures=("LlamaForCausalLM",))
VLLM_CPU = Probe("0.32", devices=("cpu",), architectures=("LlamaForCausalLM",))


SPECS = {spec.kind: spec for spec in load_built_in_specs()}


def select_engine(
    model: ModelFacts,
    on: HostFacts,
    installed: Mapping[str, Probe | None],
    requested: str | None = None,
    specs: Mapping[str, EngineSpec] = SPECS,
) -> EngineDecision:
    return selection_rules.select_engine(model, on, specs, installed, requested)


def host(*gpus: Gpu) -> HostFacts:
    return HostFacts("Linux", "x86_64", "cpu", (), 2, 2, 8, 8, gpus, "1" if gpus else "", "/h", 1, "3.12", True)


@pytest.mark.parametrize(
    ("model", "gpus", "installed", "expected"),
    [
        (TENSORS, (GPU,), {"vllm": VLLM_GPU, "transformers": TRANSFORMERS}, "vllm"),
        (TENSORS, (GPU,), {"transformers": TRANSFORMERS}, "transformers"),
        (TENSORS, (), {"vllm": VLLM_CPU, "transformers": TRANSFORMERS}, "transformers"),
        (TENSORS, (), {"vllm": VLLM_CPU}, "vllm"),
        (GGUF, (), {"llamacpp": LLAMACPP, "transformers": TRANSFORMERS, "vllm": VLLM_CPU}, "llamacpp"),
        (GGUF, (), {"transformers": TRANSFORMERS}, "transformers"),
        (GGUF, (GPU,), {"llamacpp": LLAMACPP, "vllm": VLLM_GPU}, "vllm"),
        (GGUF, (GPU,), {"llamacpp": LLAMACPP, "transformers": TRANSFORMERS}, "llamacpp"),
        (GGUF, (GPU,), {"llamacpp": LLAMACPP, "vllm": VLLM_CPU}, "llamacpp"),
    ],
)
def test_the_rules(model: ModelFacts, gpus: tuple[Gpu, ...], installed: dict[str, Probe], expected: str) -> None:
    decision = select_engine(model, host(*gpus), installed)
    assert decision.kind == expected
    assert decision.installed


def test_auto_applies_the_rules() -> None:
    assert select_engine(GGUF, host(), {"llamacpp": LLAMACPP}, "auto") == select_engine(
        GGUF, host(), {"llamacpp": LLAMACPP}
    )


def test_an_architecture_vllm_does_not_know_goes_to_transformers() -> None:
    odd = ModelFacts("safetensors", "OddForCausalLM", "odd")
    decision = select_engine(odd, host(GPU), {"vllm": VLLM_GPU, "transformers": TRANSFORMERS})
    assert decision.kind == "transformers"
    assert any("does not know the architecture OddForCausalLM" in reason for reason in decision.reasons)


def test_a_gguf_too_big_when_dequantized_runs_on_llamacpp() -> None:
    big = ModelFacts("gguf", "LlamaForCausalLM", "big", dense_bytes=200 * 1024**3)
    decision = select_engine(big, host(GPU), {"vllm": VLLM_GPU, "llamacpp": LLAMACPP})
    assert decision.kind == "llamacpp"
    assert any("do not fit on the GPU" in reason for reason in decision.reasons)


def test_dequantized_weights_are_requested_where_needed() -> None:
    assert select_engine(GGUF, host(GPU), {"vllm": VLLM_GPU}).dense
    assert not select_engine(GGUF, host(), {"llamacpp": LLAMACPP}).dense
    assert not select_engine(TENSORS, host(), {"transformers": TRANSFORMERS}).dense


@pytest.mark.parametrize(
    ("model", "gpus", "kind"), [(GGUF, (), "llamacpp"), (TENSORS, (), "transformers"), (TENSORS, (GPU,), "vllm")]
)
def test_with_nothing_installed_the_best_engine_is_suggested(
    model: ModelFacts, gpus: tuple[Gpu, ...], kind: str
) -> None:
    decision = select_engine(model, host(*gpus), {})
    assert (decision.kind, decision.installed) == (kind, False)
    assert decision.reasons[-1] == f"install it with: bay engines install {kind}"


def test_a_requested_engine_that_is_missing_raises_with_the_install_command() -> None:
    with pytest.raises(EngineMissing) as caught:
        select_engine(TENSORS, host(), {"vllm": None}, "vllm")
    assert caught.value.hint == "install it with: bay engines install vllm"


def test_a_requested_engine_overrides_the_rules() -> None:
    decision = select_engine(GGUF, host(), {"llamacpp": LLAMACPP, "transformers": TRANSFORMERS}, "transformers")
    assert (decision.kind, decision.dense) == ("transformers", True)


def test_a_requested_engine_that_cannot_read_the_model_raises() -> None:
    with pytest.raises(UsageError, match="llamacpp runs gguf models, but small is safetensors"):
        select_engine(TENSORS, host(), {"llamacpp": LLAMACPP}, "llamacpp")


def test_another_format_goes_to_the_engine_that_declares_it() -> None:
    special = replace(SPECS["fake"], kind="special", formats=("onnx",))
    model = ModelFacts("onnx", name="third")
    assert select_engine(model, host(), {"special": Probe("1")}, specs={**SPECS, "special": special}).kind == "special"
    with pytest.raises(UsageError, match="no engine runs third"):
        select_engine(model, host(), {"llamacpp": LLAMACPP})


def test_a_model_no_installed_engine_can_run_says_why_for_each() -> None:
    odd = ModelFacts("safetensors", "OddForCausalLM", "odd")
    known = Probe("5.0", architectures=("LlamaForCausalLM",))
    with pytest.raises(UsageError) as caught:
        select_engine(odd, host(), {"vllm": VLLM_CPU, "transformers": known})
    assert "not vllm" in caught.value.hint
    assert "not transformers" in caught.value.hint


def build_other(*preferences: Preference, **more: Any) -> dict[str, EngineSpec]:
    """A third-party engine beside ours."""
    other = replace(SPECS["fake"], **{"kind": "other", "formats": ("gguf",), "preferences": preferences, **more})
    return {**SPECS, "other": other}


def test_a_third_party_engine_is_chosen_by_its_preference_with_its_reason() -> None:
    installed = {"llamacpp": LLAMACPP, "other": Probe("1")}
    specs = build_other(Preference("gguf", "cpu", 85, "twice as fast on this processor"))
    decision = select_engine(GGUF, host(), installed, specs=specs)
    assert decision.kind == "other" and decision.reasons[-1] == "other: twice as fast on this processor"
    assert select_engine(GGUF, host(GPU), installed, specs=specs).kind == "llamacpp", "it prefers the CPU only"


def test_without_a_preference_a_third_party_engine_comes_last() -> None:
    decision = select_engine(GGUF, host(), {"llamacpp": LLAMACPP, "other": Probe("1")}, specs=build_other())
    assert decision.kind == "llamacpp"
    alone = select_engine(GGUF, host(), {"other": Probe("1")}, specs=build_other())
    assert (alone.kind, alone.reasons[-1]) == ("other", "other: runs gguf models")


def test_a_build_for_another_device_is_an_objection_only_where_the_engine_is_bound_to_it() -> None:
    preference = Preference("gguf", "cuda", 95, "fast")
    for bound, expected in ((False, "other"), (True, "llamacpp")):
        specs = build_other(preference, device_bound=bound)
        installed = {"llamacpp": LLAMACPP, "other": Probe("1", devices=("cpu",))}
        assert select_engine(GGUF, host(GPU), installed, specs=specs).kind == expected


def test_a_third_party_engine_may_take_converted_weights() -> None:
    specs = build_other(formats=("safetensors",), conversions={"gguf": "safetensors"})
    assert select_engine(GGUF, host(), {"other": Probe("1")}, specs=specs).dense
    without = build_other(formats=("safetensors",))
    with pytest.raises(UsageError, match="other runs safetensors models, but small is gguf"):
        select_engine(GGUF, host(), {"other": Probe("1")}, "other", specs=without)


def test_an_engine_without_the_task_is_passed_over() -> None:
    specs = build_other(Preference("gguf", "cpu", 95, "fast"), tasks=("generate",))
    installed = {"llamacpp": LLAMACPP, "other": Probe("1")}
    decision = select_engine(replace(GGUF, task="embed"), host(), installed, specs=specs)
    assert decision.kind == "llamacpp" and "not other: does not support the task embed" in decision.reasons
