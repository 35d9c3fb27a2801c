"""Sleeping models: one that does not wake, one that crashes asleep, one whose worker hangs."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil

from tests.integration.fleet.fleet_client import FleetClient, fake_model, run_fleet
from tests.integration.fleet.server_site import wait_until
from tests.integration.server.bay_process import run_server


def _put_to_sleep(fleet: FleetClient) -> int:
    """Put one model to sleep and wake the other. Return the sleeping worker's process."""
    fleet.ask_text("one")
    fleet.ask_text("two")
    wait_until(lambda: fleet.read_states() == {"one": "asleep", "two": "awake"}, 30, "one of them asleep")
    return int(fleet.list_admin_models()["one"]["pid"])


def test_a_model_that_does_not_wake_is_reloaded(tmp_path: Path) -> None:
    models = {"one": fake_model(wake_fails=True), "two": fake_model()}
    with run_fleet(models, tmp_path, max_awake=1, min_residency_s=0) as fleet:
        sleeper = _put_to_sleep(fleet)
        assert fleet.ask_text("one")
        assert fleet.list_admin_models()["one"]["pid"] != sleeper and not psutil.pid_exists(sleeper)
        assert fleet.list_switches()[-1]["from"] == "cold"


def test_a_request_that_wakes_its_model_waits_once_and_is_no_retry(tmp_path: Path) -> None:
    with run_fleet({"one": fake_model(), "two": fake_model()}, tmp_path, max_awake=1, min_residency_s=0) as fleet:
        _put_to_sleep(fleet)
        assert fleet.ask_text("one")
        wait_until(
            lambda: fleet.read_metric("enginebay_requests_total", model="one", endpoint="chat") == 2, 20, "both counted"
        )
        assert fleet.read_metric("enginebay_queue_time_seconds_count", model="one") == 2
        assert fleet.read_metric("enginebay_retries_total", model="one") == 0


def test_the_crash_of_a_sleeping_worker_evicts_nobody(tmp_path: Path) -> None:
    with run_fleet({"one": fake_model(), "two": fake_model()}, tmp_path, max_awake=1, min_residency_s=0) as fleet:
        os.kill(_put_to_sleep(fleet), signal.SIGKILL)
        wait_until(lambda: fleet.read_states()["one"] == "cold", 30, "the sleeper's death")
        before = len(fleet.list_switches())
        assert fleet.ask_text("two") and fleet.read_states() == {"one": "cold", "two": "awake"}
        assert len(fleet.list_switches()) == before
        assert fleet.ask_text("one")


def test_a_reload_applies_fleet_keys(tmp_path: Path) -> None:
    config = tmp_path / "fleet.yaml"
    config.write_text("fleet: {memory_bytes: 1000000000, queue: 0}\nmodels: {one: {engine: fake}}\n")
    with run_server(options=("--config", str(config)), environ={"ENGINEBAY_HOME": str(tmp_path)}) as server:
        fleet = FleetClient(server)  # a queue of none is for clients: it starts all the same
        assert fleet.post_admin("ps")["memory_bytes"]["ram"] == 1_000_000_000
        config.write_text("fleet: {memory_bytes: 2000000000}\nmodels: {one: {engine: fake}}\n")
        fleet.post_admin("reload")
        wait_until(lambda: fleet.post_admin("ps")["memory_bytes"]["ram"] == 2_000_000_000, 30, "the new limit")
