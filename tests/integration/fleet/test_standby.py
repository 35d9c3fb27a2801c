"""Standby workers: the next cold load takes one, and it is replaced."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.integration.fleet.fleet_client import REAL, FleetClient, fake_model, is_alive, run_fleet
from tests.integration.fleet.server_site import find_workers, wait_until
from tests.integration.fleet.shared_fleets import SMALL


def _spare(fleet: FleetClient, kind: str, within_s: float = 20, other_than: int = 0) -> int:
    """Wait for a standby and return its process id."""
    wait_until(
        lambda: fleet.post_admin("ps")["standby"].get(kind, other_than) != other_than, within_s, f"a spare {kind}"
    )
    return int(fleet.post_admin("ps")["standby"][kind])


@pytest.fixture(scope="module")
def spared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FleetClient]:
    models = {name: fake_model() for name in ("one", "two")}
    home = tmp_path_factory.mktemp("home")
    with run_fleet(models, home, standby=["fake"], max_awake=1, min_residency_s=0, sleep="off") as fleet:
        yield fleet
        spare = _spare(fleet, "fake")
    assert not is_alive(spare), "it has outlived its server"


@pytest.mark.slow
def test_a_cold_load_takes_the_standby(spared: FleetClient) -> None:
    for name in ("one", "two", "one"):
        spare = _spare(spared, "fake")
        assert [one.pid for one in find_workers(spared.server, "standby") if one.pid == spare]
        spared.ask_text(name)
        assert spared.list_admin_models()[name]["pid"] == spare
        switch = spared.list_switches()[-1]
        assert (switch["model"], switch["from"]) == (name, "standby")
        assert _spare(spared, "fake", other_than=spare) != spare  # the next one
    assert spared.post_admin("switches")["mean_s"].keys() == {"standby"}
    assert spared.read_metric("enginebay_switch_seconds_count", came_from="standby") == 3


def test_a_standby_that_dies_is_replaced(spared: FleetClient) -> None:
    spare = _spare(spared, "fake")
    psutil.Process(spare).kill()
    fresh = _spare(spared, "fake", other_than=spare)
    name = next(name for name, state in spared.read_states().items() if state == "cold")
    spared.ask_text(name)
    assert spared.list_admin_models()[name]["pid"] == fresh
    assert spared.read_log(event="worker died") == []  # no model was lost


def test_a_load_does_not_wait_for_a_standby(tmp_path: Path) -> None:
    """Both load at startup, one after the other; the standby starts only then."""
    models = {name: fake_model(load="start") for name in ("one", "two")}
    with run_fleet(models, tmp_path, standby=["fake"]) as fleet:
        assert fleet.list_switches()[0]["from"] == "cold"
        spare = _spare(fleet, "fake")
        pids = {one["pid"] for one in fleet.list_admin_models().values()}
        assert len(pids) == 2 and spare not in pids


def test_a_llamacpp_standby() -> None:
    models = {"small": {**SMALL["llamacpp"], "load": "use"}}
    with run_fleet(models, standby=["llamacpp"]) as fleet:
        spare = _spare(fleet, "llamacpp")
        assert fleet.ask_text("small", body=REAL)
        assert fleet.list_admin_models()["small"]["pid"] == spare and fleet.list_switches()[-1]["from"] == "standby"
        fleet.post_admin("unload", {"model": "small"})
        assert not is_alive(spare)
        _spare(fleet, "llamacpp", other_than=spare)


@pytest.mark.slow
def test_a_vllm_standby_saves_the_import(vllm_fleet: FleetClient) -> None:
    """The import takes half of a cold start."""
    for name in ("one", "two"):
        vllm_fleet.wait_idle()
        if vllm_fleet.list_admin_models()[name]["pid"]:
            vllm_fleet.post_admin("unload", {"model": name})
    spare = _spare(vllm_fleet, "vllm", within_s=120)
    assert vllm_fleet.ask_text("one", body=REAL)
    switch = vllm_fleet.list_switches()[-1]
    assert (switch["model"], switch["from"]) == ("one", "standby")
    assert vllm_fleet.list_admin_models()["one"]["pid"] == spare  # which had imported it before
    [*_, ready] = vllm_fleet.read_log(event="standby ready")
    assert ready["engine"] == "vllm" and ready["import_s"] > 1
