from __future__ import annotations

import json
from dataclasses import replace

import pytest

from enginebay import contract
from enginebay.contract import EngineSpec, GpuSettings, Preset, Probe, Setting, parameters
from enginebay.contract.spec_checks import find_spec_problems
from enginebay.engines.registry import load_built_in_specs


@pytest.mark.parametrize("spec", load_built_in_specs(), ids=lambda spec: spec.kind)
def test_a_spec_survives_json(spec: EngineSpec) -> None:
    assert EngineSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


@pytest.mark.parametrize("spec", load_built_in_specs(), ids=lambda spec: spec.kind)
def test_a_spec_declares_every_request_parameter_and_no_other(spec: EngineSpec) -> None:
    assert set(spec.request) == set(parameters())


def test_a_probe_survives_json() -> None:
    probe = Probe("1", {"torch": "2"}, ("a",), None, ("LlamaForCausalLM",), ("cpu", "cuda"), ("note",), {"n": "why"})
    assert Probe.from_json(json.loads(json.dumps(probe.to_json()))) == probe


@pytest.mark.parametrize(("old", "new"), contract.DEPRECATED_NAMES.items())
def test_deprecated_names_are_aliases(old: str, new: str) -> None:
    assert getattr(contract, old) is getattr(contract, new) and old not in contract.__all__


def test_unknown_names_are_not_exported() -> None:
    with pytest.raises(ImportError):
        from enginebay.contract import Nothing  # type: ignore[attr-defined]  # noqa: F401


def test_what_a_newer_version_stored_is_ignored() -> None:
    spec, probe = load_built_in_specs()[0], Probe("1")
    assert EngineSpec.from_json({**spec.to_json(), "of_the_future": 1}) == spec
    assert Probe.from_json({**probe.to_json(), "of_the_future": 1}) == probe


@pytest.mark.parametrize("spec", load_built_in_specs(), ids=lambda spec: spec.kind)
def test_built_in_specs_have_no_problems(spec: EngineSpec) -> None:
    assert find_spec_problems(spec) == []


def test_contradictions_in_a_spec_are_named() -> None:
    spec = load_built_in_specs()[0]
    problems = find_spec_problems(
        replace(
            spec,
            request={name: value for name, value in spec.request.items() if name != "top_k"},
            smaller=("nonesuch",),
            settings={"size": Setting("int", "", aliases=("width",)), "width": Setting("int", "")},
            presets=(Preset("odd", "another", "", "", {"nested": {"deep": 1}, "size": 2}),),
            trims=(),
            gpu_settings=GpuSettings(count=("ranks",), memory_fraction="size"),
        )
    )
    assert problems == [
        "request declares nothing for top_k",
        "smaller names nonesuch, which is not a setting",
        "gpu_settings names ranks, which is not a setting",
        f"odd is for the engine another, not {spec.kind}",
        "the preset odd sets nested.deep, which is not a setting",
        "the alias width is also a setting",
    ]
