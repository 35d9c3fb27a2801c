from __future__ import annotations

import json

import pytest

from enginebay import contract
from enginebay.contract import EngineSpec, Probe, parameters
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
