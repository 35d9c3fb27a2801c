"""The verdict on energy per request, without a GPU."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gpu.request_energy import LOADS, judge


def figures(**changes: Any) -> dict[str, Any]:
    classes = {kind: {"j_per_output_token": 0.2, "j_per_token": 0.1} for kind in ("A", "B")}
    agreeing = {"absent": [], "sum_j": 990.0, "gpu_above_idle_j": 1000.0, "sum_share": 0.99, "classes": classes}
    return {load: {**agreeing, **changes} for load in LOADS}


def test_agreeing_figures_have_no_faults() -> None:
    assert judge(figures()) == []


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"sum_share": None, "gpu_above_idle_j": None}, "the sum was not compared"),
        ({"sum_share": 0.9}, "are 90.0% of what the GPU drew"),
        ({"absent": ["no meter"]}, "energy is absent: no meter"),
        ({"classes": {"A": None, "B": None}}, "class A was not measured"),
    ],
)
def test_a_disagreement_or_a_missing_measurement_is_a_fault(changes: dict[str, Any], fault: str) -> None:
    assert any(fault in line for line in judge(figures(**changes)))
