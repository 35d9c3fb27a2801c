"""Suggestions: near enough, or none."""

from __future__ import annotations

import pytest

from enginebay.cli.main import COMMANDS
from enginebay.engines.registry import list_kinds
from enginebay.util.text_format import find_nearest


@pytest.mark.parametrize(
    ("typed", "known", "near"),
    [
        ("nope", list_kinds(), []),
        ("vlm", list_kinds(), ["vllm"]),
        ("llama", list_kinds(), ["llamacpp"]),
        ("create", COMMANDS, []),
        ("rnu", COMMANDS, ["run"]),
        ("modles", COMMANDS, ["models"]),
        ("type_k", ["top_k", "top_p"], []),
        ("temprature", ["temperature", "top_p"], ["temperature"]),
        ("x" * 10_000, COMMANDS, []),
    ],
)
def test_only_typos_are_corrected(typed: str, known: list[str], near: list[str]) -> None:
    assert find_nearest(typed, known) == near
