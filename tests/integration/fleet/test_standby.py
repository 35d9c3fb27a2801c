"""Spare processes with an engine's library imported: taken by the next cold load, and replaced."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.integration.fleet.asking import REAL, Fleet, alive, fake, fleet_of
from tests.integration.fleet.shared import SMALL
from tests.integration.fleet.site import until, workers_of


def _spare(fleet: Fleet, kind: str, within_s: float = 20, other_than: int = 0) -> int:
    """The process id of the spare one, as soon as there is one."""
    until(lambda: fleet.order("ps")["standby"].get(kind, other_than) != other_than, within_s, f"a spare {kind}")
    return int(fleet.order("ps")["standby"][kind])


@pytest.fixture(scope="module")
def spared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    models = {name: fake() for name in ("one", "two")}
    home = tmp_path_factory.mktemp("home")
    with fleet_of(models, home, standby=["fake"], max_awake=1, min_residency_s=0, sleep="off") as fleet:
        yield fleet
        spare = _spare(fleet, "fake")
    assert not alive(spare), "it has outlived its server"


def test_a_cold_load_takes_the_spare_process(spared: Fleet) -> None:
    for name in ("one", "two", "one"):
        spare = _spare(spared, "fake")
        assert [one.pid for one in workers_of(spared.server, "standby") if one.pid == spare]
        spared.says(name)
        assert spared.models()[name]["pid"] == spare
        switch = spared.switches()[-1]
        assert (switch["model"], switch["from"]) == (name, "standby")
        assert _spare(spared, "fake", other_than=spare) != spare  # the next one
    assert spared.order("switches")["mean_s"].keys() == {"standby"}
    assert spared.metric("enginebay_switch_seconds_count", came_from="standby") == 3


def test_a_spare_process_that_dies_is_replaced(spared: Fleet) -> None:
    spare = _spare(spared, "fake")
    psutil.Process(spare).kill()
    fresh = _spare(spared, "fake", other_than=spare)
    name = next(name for name, state in spared.states().items() if state == "cold")
    spared.says(name)
    assert spared.models()[name]["pid"] == fresh
    assert spared.log(event="worker died") == []  # no model was lost


def test_a_load_does_not_wait_for_a_spare_process(tmp_path: Path) -> None:
    """Both are loaded at the start, one right after the other, and only then is there time for a spare one."""
    models = {name: fake(load="start") for name in ("one", "two")}
    with fleet_of(models, tmp_path, standby=["fake"]) as fleet:
        assert fleet.switches()[0]["from"] == "cold"
        spare = _spare(fleet, "fake")
        pids = {one["pid"] for one in fleet.models().values()}
        assert len(pids) == 2 and spare not in pids


def test_a_spare_llamacpp() -> None:
    models = {"small": {**SMALL["llamacpp"], "load": "use"}}
    with fleet_of(models, standby=["llamacpp"]) as fleet:
        spare = _spare(fleet, "llamacpp")
        assert fleet.says("small", body=REAL)
        assert fleet.models()["small"]["pid"] == spare and fleet.switches()[-1]["from"] == "standby"
        fleet.order("unload", {"model": "small"})
        assert not alive(spare)
        _spare(fleet, "llamacpp", other_than=spare)


def test_a_spare_vllm_saves_the_import(vllm_fleet: Fleet) -> None:
    """Which takes half of a cold start."""
    for name in ("one", "two"):
        vllm_fleet.until_idle()
        if vllm_fleet.models()[name]["pid"]:
            vllm_fleet.order("unload", {"model": name})
    spare = _spare(vllm_fleet, "vllm", within_s=120)
    assert vllm_fleet.says("one", body=REAL)
    switch = vllm_fleet.switches()[-1]
    assert (switch["model"], switch["from"]) == ("one", "standby")
    assert vllm_fleet.models()["one"]["pid"] == spare  # which had imported it before
    [*_, ready] = vllm_fleet.log(event="standby ready")
    assert ready["engine"] == "vllm" and ready["import_s"] > 1
