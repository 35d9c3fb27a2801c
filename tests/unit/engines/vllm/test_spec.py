"""What the spec declares."""

from __future__ import annotations

from enginebay.contract import EngineSpec, Support, parameters
from enginebay.engines.effective_spec import apply_probe
from enginebay.engines.vllm.library import Probe
from enginebay.engines.vllm.settings import BITSANDBYTES
from enginebay.engines.vllm.spec import SPEC


def test_every_request_parameter_is_declared() -> None:
    assert set(SPEC.request) == set(parameters())


def test_refusals_name_an_alternative() -> None:
    for capability in [*SPEC.request.values(), *(setting.capability for setting in SPEC.settings.values())]:
        assert capability.support is Support.HONOURS or capability.detail


def test_no_name_is_both_a_setting_and_retired() -> None:
    assert not set(SPEC.settings) & set(SPEC.retired)


def test_it_round_trips_through_json() -> None:
    assert EngineSpec.from_json(SPEC.to_json()) == SPEC


def test_a_quantization_that_left_the_library_is_refused_there() -> None:
    names = tuple(setting.native for setting in SPEC.settings.values() if setting.native != BITSANDBYTES)
    settings = apply_probe(SPEC, Probe(version="0.32.0", settings=names)).settings
    assert settings["quantization.load_in_4bit"].capability.support is Support.REFUSES
    assert settings["max_num_seqs"].capability.support is Support.HONOURS


def test_settings_that_shrink_a_load_are_integers() -> None:
    assert SPEC.smaller
    assert all(SPEC.settings[name].type == "int" for name in SPEC.smaller)
