"""Which launches a standby can take."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from enginebay.contract import Load
from enginebay.fleet.lifecycle.standby_pool import StandbyPool
from enginebay.worker.client_side.worker_process import WorkerLaunch

LOAD = Load(kind="fake", engine="", model="toy", path="")


def make_launch(**fields: Any) -> WorkerLaunch:
    return WorkerLaunch(LOAD, Path("/python"), Path("/run"), Path("/log"), **fields)


@pytest.mark.parametrize(
    ("initialized_cuda", "fields", "ready"),
    [
        (False, {}, True),
        (False, {"devices": {"CUDA_VISIBLE_DEVICES": "GPU-1"}}, True),
        (True, {"devices": {"CUDA_VISIBLE_DEVICES": "GPU-1"}}, False),  # it would stay on the GPUs it has seen
        (True, {}, True),
        (False, {"variables": {"CUDA_VISIBLE_DEVICES": "1"}}, False),
    ],
)
def test_a_standby_takes_gpus_only_before_cuda_is_initialized(
    initialized_cuda: bool, fields: dict[str, Any], ready: bool
) -> None:
    pool = StandbyPool(["fake"], lambda *_, **__: None)
    spare = SimpleNamespace(launch=make_launch(), returncode=None, initialized_cuda=initialized_cuda)
    pool._spare["fake"] = cast("Any", spare)
    assert pool.has_ready(make_launch(**fields)) is ready
