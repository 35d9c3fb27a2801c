"""`models.NAME.env`: variables of a worker."""

from __future__ import annotations

from typing import Any

import pytest

from enginebay.errors import ConfigError


@pytest.mark.parametrize(
    ("written", "means"),
    [
        ("[HF_TOKEN, HF_HOME]", {"HF_TOKEN": None, "HF_HOME": None}),
        ("HF_TOKEN, HF_HOME", {"HF_TOKEN": None, "HF_HOME": None}),
        ("{MODE: fast, LEVEL: 3, HF_TOKEN: null}", {"MODE": "fast", "LEVEL": "3", "HF_TOKEN": None}),
    ],
)
def test_variables_of_a_model_are_names_or_values(load: Any, written: str, means: dict[str, str | None]) -> None:
    assert (
        load(f"models: {{m: {{env: {written}}}}}".replace("env: HF_TOKEN, HF_HOME", 'env: "HF_TOKEN, HF_HOME"'))
        .models["m"]
        .env
        == means
    )


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("[HF-TOKEN]", "expected names of environment variables, got 'HF-TOKEN'"),
        ("['A=1']", "got 'A=1'"),
        ("[{A: 1}]", "expected names of environment variables"),
        ("[1]", "got '1'"),
        ("{PYTHONPATH: /x}", "PYTHONPATH cannot be set"),
        ("[RANK]", "RANK cannot be set"),
        ("{A: true}", "expected text for A; quote it"),
        ("{A: [x]}", "expected text for A"),
    ],
)
def test_other_variables_are_refused(load: Any, written: str, reason: str) -> None:
    with pytest.raises(ConfigError) as error:
        load(f"models: {{m: {{env: {written}}}}}")
    assert "models.m.env: " in error.value.message and reason in error.value.message
