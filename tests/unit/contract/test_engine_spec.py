from __future__ import annotations

import json

import pytest

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
