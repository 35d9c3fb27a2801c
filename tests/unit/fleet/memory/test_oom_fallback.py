from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.contract import EngineSpec, Setting
from enginebay.engines.registry import get_spec
from enginebay.fleet.memory.oom_fallback import reduce_settings

SETTINGS: Mapping[str, Setting] = {
    "context_length": Setting("int", "", minimum=16),
    "max_model_len": Setting("int", "", minimum=1),
    "max_batch": Setting("int", "", default=32, minimum=1),
    "kv_cache_tokens": Setting("int", "", minimum=16),
    "step_tokens": Setting("int", "", minimum=100.5),
    "share": Setting("float", ""),
    "flag": Setting("bool", ""),
}


def engine(*names: str) -> EngineSpec:
    return replace(get_spec("fake"), settings=SETTINGS, smaller=names)


def test_what_is_set_is_halved_and_the_rest_stays() -> None:
    given_settings = {"context_length": 4096, "max_batch": 9, "seed": 3}
    found = reduce_settings(engine("context_length", "max_batch"), given_settings, None)
    assert found == {"context_length": 2048, "max_batch": 4, "seed": 3}
    assert given_settings == {"context_length": 4096, "max_batch": 9, "seed": 3}, "the settings given are not touched"


def test_defaults_and_the_models_own_context_can_be_halved_too() -> None:
    assert reduce_settings(engine("max_batch"), {}, None) == {"max_batch": 16}
    assert reduce_settings(engine("max_model_len"), {}, 8192) == {"max_model_len": 4096}
    assert reduce_settings(engine("max_model_len", "step_tokens"), {"max_model_len": 1000}, 8192) == {
        "max_model_len": 500
    }
    assert reduce_settings(engine("n_ctx"), {}, 8192) == {"n_ctx": 4096}, "a setting that is not declared"
    assert reduce_settings(engine("step_tokens", "kv_cache_tokens"), {}, 8192) is None, "these are no contexts"


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        ("context_length", 300, 256),
        ("context_length", 256, None),
        ("context_length", 100, None),
        ("kv_cache_tokens", 300, 256),
        ("max_batch", 3, 1),
        ("max_batch", 1, None),
        ("step_tokens", 150, 101),
        ("step_tokens", 101, None),
        ("share", 0.5, None),
        ("flag", True, None),
        ("max_batch", None, 16),
    ],
)
def test_nothing_goes_below_its_least(name: str, value: Any, found: int | None) -> None:
    expected = None if found is None else {name: found}
    assert reduce_settings(engine(name), {name: value}, None) == expected


def test_an_engine_that_names_none_has_nothing_smaller() -> None:
    assert reduce_settings(engine(), {"context_length": 8192}, 8192) is None


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "context_length": st.integers(16, 2**20), "max_batch": st.integers(1, 256),
            "kv_cache_tokens": st.integers(16, 2**24),
        },
    ),
    st.none() | st.integers(1, 2**20),
)  # fmt: skip
def test_again_and_again_ends_and_only_ever_shrinks(settings: dict[str, int], context: int | None) -> None:
    declared = engine("context_length", "max_batch", "kv_cache_tokens")
    fits = settings.get("kv_cache_tokens", 2**30) >= settings.get("context_length", 0)
    now: dict[str, Any] = dict(settings)
    for _ in range(64):
        after = reduce_settings(declared, now, context)
        if after is None:
            break
        assert all(after[name] <= value for name, value in now.items()) and after != now
        if fits and "context_length" in settings:
            assert after.get("kv_cache_tokens", 2**30) >= after["context_length"], "one request must fit the cache"
        now = after
    assert reduce_settings(declared, now, context) is None


@pytest.mark.parametrize("kind", ["llamacpp", "transformers", "vllm"])
def test_real_specs_name_settings_they_have(kind: str) -> None:
    declared = get_spec(kind)
    assert set(declared.smaller) <= set(declared.settings)
