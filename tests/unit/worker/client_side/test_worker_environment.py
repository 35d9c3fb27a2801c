"""The environment of a worker: what names its GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from enginebay.contract import Load
from enginebay.worker.client_side.worker_process import WorkerLaunch, _build_environment

PLACED = {"CUDA_VISIBLE_DEVICES": "GPU-b"}


@pytest.mark.parametrize(
    ("variables", "visible"),
    [
        ({}, "GPU-b"),
        ({"CUDA_VISIBLE_DEVICES": "1"}, "GPU-b"),  # counted and placed as this GPU, whatever the outer variable says
        ({"CUDA_VISIBLE_DEVICES": ""}, ""),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, "-1"),
    ],
)
def test_the_placement_names_the_gpus_unless_the_model_hides_them(variables: dict[str, str], visible: str) -> None:
    launch = WorkerLaunch(
        Load("fake", "fake:Engine", "m", ""), Path(), Path(), Path(), variables=variables, devices=PLACED
    )
    assert _build_environment(launch)["CUDA_VISIBLE_DEVICES"] == visible
