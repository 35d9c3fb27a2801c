"""Placement on declared GPUs, with the fake engine: no GPU is needed, and each worker says which ones it sees."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.fleet.fleet_client import FleetClient, fake_model, run_fleet
from tests.integration.fleet.server_site import wait_until

GIB = 2**30
EIGHT = "8x80GiB; links 0-1 2-3 4-5 6-7"


def read_visible(fleet: FleetClient, model: str) -> list[int]:
    """Return the GPUs that the model's last worker sees, by its own word."""
    lines = fleet.post_admin(f"logs?model={model}&lines=50")["lines"]
    found = [line.partition("=")[2] for line in lines if line.startswith("CUDA_VISIBLE_DEVICES=")]
    return [int(name.removeprefix("GPU-"), 16) for name in found[-1].split(",")]


def list_gpus(fleet: FleetClient) -> dict[str, list[int]]:
    return {name: model["gpus"] for name, model in fleet.list_admin_models().items() if model["gpus"]}


@pytest.fixture(scope="module")
def eight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FleetClient]:
    models = {
        "one": fake_model(gpu_memory_bytes=73 * GIB),
        "two": fake_model(gpu_memory_bytes=73 * GIB),
        "pair": fake_model(gpu_memory_bytes=73 * GIB, tensor_parallel_size=2),
        "half": fake_model(gpus=0.5),
        "other-half": fake_model(gpus=0.5),
        "tied": fake_model(gpus=[7, 6], gpu_memory_bytes=10 * GIB),
        "cpu": fake_model(),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ENGINEBAY_FAKE_GPUS", EIGHT)
        with run_fleet(models, tmp_path_factory.mktemp("home")) as fleet:
            for name in models:
                fleet.ask_text(name)
            yield fleet


def test_each_model_has_its_gpus_and_its_worker_sees_no_other(eight: FleetClient) -> None:
    placed = list_gpus(eight)
    assert placed["one"] == [0] and placed["two"] == [1]
    assert placed["pair"] == [2, 3]
    assert placed["half"] == placed["other-half"]
    assert placed["tied"] == [7, 6]
    assert "cpu" not in placed
    for name, gpus in placed.items():
        assert read_visible(eight, name) == gpus
    assert {model["state"] for model in eight.list_admin_models().values()} == {"awake"}


def test_the_reason_is_shown(eight: FleetClient) -> None:
    models = eight.list_admin_models()
    assert models["pair"]["placement"].startswith("linked GPUs, the fullest of")
    assert models["tied"]["placement"] == "configured"
    assert models["other-half"]["placement"].endswith(", beside half")
    assert models["cpu"]["placement"] is None
    assert models["pair"]["needs_bytes"]["gpu2"] == models["pair"]["needs_bytes"]["gpu3"] == 73 * GIB
    for gpu in ("2", "3"):
        assert eight.read_metric("enginebay_gpu_reserved_bytes", model="pair", gpu=gpu) == 73 * GIB
    assert eight.read_metric("enginebay_gpu_reserved_bytes", reason="configured") == 20 * GIB


def test_the_command_line_shows_gpus_and_reasons(eight: FleetClient) -> None:
    shown = run_bay("ps", "-v", "--url", eight.server.url, environ=eight.server.environ)
    header, *rows = (line.split("\t") for line in shown.stdout.splitlines())
    by_name = {row[0]: row for row in rows}
    assert by_name["pair"][header.index("GPU")] == "2,3" and by_name["cpu"][header.index("GPU")] == "-"
    assert by_name["tied"][header.index("PLACEMENT")] == "configured"
    live = run_bay("top", "--once", "--interval", "0.1", "--url", eight.server.url, environ=eight.server.environ)
    header, *rows = (line.split("\t") for line in live.stdout.splitlines())
    assert {row[0]: row[header.index("GPU")] for row in rows}["pair"] == "2,3"


def test_a_new_model_moves_only_what_it_must(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINEBAY_FAKE_GPUS", "3x80GiB")
    models: dict[str, Any] = {name: fake_model(gpu_memory_bytes=50 * GIB) for name in ("one", "two", "three", "four")}
    models["pair"] = fake_model(gpu_memory_bytes=50 * GIB, tensor_parallel_size=2)
    with run_fleet(models, tmp_path, min_residency_s=0, sleep="off") as fleet:
        for name in ("one", "two", "three", "four"):
            fleet.ask_text(name)
            fleet.wait_idle()
        assert fleet.read_states() == {"one": "cold", "two": "awake", "three": "awake", "four": "awake", "pair": "cold"}
        assert list_gpus(fleet)["four"] == [0]  # where the longest idle one was
        fleet.ask_text("pair")
        states = fleet.read_states()
        assert states["pair"] == "awake" and [*states.values()].count("awake") == 2
        assert read_visible(fleet, "pair") == list_gpus(fleet)["pair"]


def test_a_sleeping_model_wakes_on_its_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINEBAY_FAKE_GPUS", "1x80GiB")
    models = {name: fake_model(gpus=1, gpu_memory_bytes=50 * GIB) for name in ("one", "two")}
    with run_fleet(models, tmp_path, min_residency_s=0) as fleet:
        for name in ("one", "two", "one"):
            fleet.ask_text(name)
        assert fleet.read_states() == {"one": "awake", "two": "asleep"}
        assert list_gpus(fleet) == {"one": [0], "two": [0]}
        assert fleet.list_switches()[-1]["from"] == "asleep"


def test_a_standby_gets_its_gpu_with_its_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINEBAY_FAKE_GPUS", EIGHT)
    models = {"first": fake_model(gpus=1), "second": fake_model(gpus=1)}
    with run_fleet(models, tmp_path, standby=["fake"]) as fleet:
        for name in models:
            wait_until(lambda: fleet.post_admin("ps")["standby"], 20, "a standby")
            fleet.ask_text(name)
            assert fleet.list_switches()[-1]["from"] == "standby"
        assert [read_visible(fleet, name) for name in models] == [[0], [1]]


def test_a_reload_moves_a_model_to_its_new_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.integration.server.bay_process import run_server

    monkeypatch.setenv("ENGINEBAY_FAKE_GPUS", EIGHT)
    monkeypatch.setenv("ENGINEBAY_HOME", str(tmp_path))
    config = tmp_path / "fleet.yaml"
    config.write_text(yaml.safe_dump({"models": {"one": fake_model(gpus=[2], load="start")}}))
    with run_server(options=("--config", str(config))) as server:
        fleet = FleetClient(server)
        config.write_text(yaml.safe_dump({"models": {"one": fake_model(gpus=[5], load="start")}}))
        assert fleet.post_admin("reload")["changed"] == ["one"]
        assert list_gpus(fleet) == {"one": [5]} and read_visible(fleet, "one") == [5]


def test_a_lost_gpu_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = tmp_path / "gpus"
    gpus.write_text("2x80GiB")
    monkeypatch.setenv("ENGINEBAY_FAKE_GPUS", str(gpus))
    models = {"free": fake_model(gpus=1), "tied": fake_model(gpus=[0])}
    with run_fleet(models, tmp_path, min_residency_s=0) as fleet:
        fleet.ask_text("free")
        assert list_gpus(fleet) == {"free": [0]}
        gpus.write_text("2x80GiB; lost 0")
        os.kill(fleet.list_admin_models()["free"]["pid"], signal.SIGKILL)  # as a worker dies of its GPU
        wait_until(lambda: list_gpus(fleet) == {"free": [1]} and fleet.read_states()["free"] == "awake", 20, "its move")
        assert fleet.ask_text("free")
        (line,) = fleet.read_log(event="GPU lost")
        assert (line["gpu"], line["reason"]) == (0, "GPU 0 cannot be used: declared as lost")
        refused = fleet.ask("tied")
        assert refused.status_code == 503
        assert "its GPU 0 does not respond" in refused.json()["error"]["message"]


def test_a_lost_gpu_does_not_keep_other_models_from_a_reload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.integration.server.bay_process import run_server

    gpus, config = tmp_path / "gpus", tmp_path / "fleet.yaml"
    gpus.write_text("2x80GiB")
    monkeypatch.setenv("ENGINEBAY_FAKE_GPUS", str(gpus))
    monkeypatch.setenv("ENGINEBAY_HOME", str(tmp_path))

    def write(**models: Any) -> None:
        config.write_text(yaml.safe_dump({"models": models}))

    write(tied=fake_model(gpus=[0], load="start"), free=fake_model(gpus=[1], load="start"))
    with run_server(options=("--config", str(config))) as server:
        fleet = FleetClient(server)
        gpus.write_text("2x80GiB; lost 0")
        os.kill(fleet.list_admin_models()["tied"]["pid"], signal.SIGKILL)
        wait_until(
            lambda: "does not respond" in (fleet.list_admin_models()["tied"]["last_failure"] or ""), 20, "the loss"
        )
        write(
            tied=fake_model(gpus=[0], load="start"),
            free=fake_model(gpus=[1], load="start", context_length=256),
            new=fake_model(),
        )
        changes = fleet.post_admin("reload")
        assert changes["added"] == ["new"] and changes["changed"] == ["free"]
        assert fleet.ask_text("free") and fleet.ask_text("new")
        rows = fleet.list_admin_models()
        assert "its GPU 0 does not respond" in rows["tied"]["last_failure"] and not rows["free"]["last_failure"]
        write(tied=fake_model(gpus=[0], load="start"), free=fake_model(gpus=[0], load="start"), new=fake_model())
        assert fleet.try_post_admin("reload").status_code >= 400, "a model that serves does not move to a lost GPU"
        assert fleet.ask_text("free")
        gpus.write_text("2x80GiB")
        wait_until(lambda: fleet.ask("tied").status_code == 200, 30, "its return")


# Bad input


def run_bay(*arguments: str, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "enginebay.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environ or dict(os.environ))


@pytest.mark.parametrize(
    ("keys", "words"),
    [({"gpus": 9}, "gpus is 9, but this host has only GPUs 0, 1"), ({"gpus": 1.5}, "expected whole GPUs")],
)
def test_bad_gpus_are_one_clear_line_before_anything_loads(
    tmp_path: Path, keys: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGINEBAY_FAKE_GPUS", "2x80GiB")
    monkeypatch.setenv("ENGINEBAY_HOME", str(tmp_path))
    config = {"models": {"first": {"engine": "fake"}, "toy": {"engine": "fake", **keys}}}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config))
    done = run_bay("serve", "--port", "0", "--config", str(tmp_path / "c.yaml"))
    assert done.returncode == 2, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if words in line]
    assert "toy" in line and "Traceback" not in done.stderr and "loading" not in done.stderr


def test_pins_that_clash_take_turns_and_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINEBAY_FAKE_GPUS", "2x80GiB")
    models = {name: fake_model(gpus=[1], gpu_memory_bytes=60 * GIB) for name in ("one", "two")}
    with run_fleet(models, tmp_path, min_residency_s=0) as fleet:
        assert (
            "one and two do not fit on GPU 1 together, but gpus places both there: they take turns"
            in fleet.server.read_log()
        )
        for name in ("one", "two", "one"):
            assert fleet.ask_text(name)
