"""Managing a running server over HTTP and with `bay`: load, unload and switch models, and access control."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import psutil
import pytest
import yaml

from enginebay.server.auth.api_keys import create_key
from tests.integration.server.bay_process import BayProcess, run_server
from tests.integration.server.fake_requests import ask, build_bearer
from tests.integration.server.raw_http import build_request, connect, wait_until

SLOW_S = 2.5


class Managed:
    """A server that fits one model: `first`, loaded at the start, or `second`, which loads slowly; with keys."""

    def __init__(self, server: BayProcess, keys: dict[str, str], home: Path) -> None:
        self.server, self.keys, self.home = server, keys, home

    def send(self, endpoint: str, body: Any = None, key: str = "admin", **query: Any) -> httpx.Response:
        method = "GET" if endpoint in ("ps", "switches", "logs", "meters") else "POST"
        url = f"{self.server.url}/admin/{endpoint}"
        return httpx.request(method, url, json=body, params=query, headers=build_bearer(self.keys[key]), timeout=60)

    def models(self) -> dict[str, Any]:
        return {model["name"]: model for model in self.send("ps").json()["models"]}

    def bay(self, *words: str, key: str = "admin") -> subprocess.CompletedProcess[str]:
        environ = {**os.environ, "ENGINEBAY_URL": self.server.url, "ENGINEBAY_ADMIN_KEY": self.keys[key]}
        return subprocess.run(
            [sys.executable, "-m", "enginebay.cli.main", *words],
            capture_output=True, text=True, timeout=60, env={**environ, "ENGINEBAY_HOME": str(self.home)},
        )  # fmt: skip


@pytest.fixture(scope="module", params=[1, 2], ids=["one process", "two processes"])
def managed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Managed]:
    home = tmp_path_factory.mktemp("home")
    keys = {"plain": create_key(home / "keys.yaml", "plain")[0]}
    keys["admin"] = create_key(home / "keys.yaml", "admin", admin=True)[0]
    config: dict[str, object] = {
        "models": {
            "first": {"engine": "fake"},
            "second": {"engine": "fake", "load": "use", "fake": {"load_s": SLOW_S}},
            "broken": {"engine": "fake", "load": "use", "fake": {"fail_load": "error"}},
        },
        "fleet": {"max_awake": 1, "min_residency_s": 0, "sleep": "off"},
        "server": {"workers": request.param},
    }
    with run_server(config=config, environ={"ENGINEBAY_HOME": str(home)}) as server:
        yield Managed(server, keys, home)


def test_ps(managed: Managed) -> None:
    found = managed.send("ps").json()
    models = {model["name"]: model for model in found["models"]}
    assert set(models) == {"first", "second", "broken"}
    assert (models["first"]["engine"], models["first"]["pinned"]) == ("fake", False)
    broken = models["broken"]
    assert broken["state"] in ("cold", "failing") and broken["pid"] is None
    assert found["memory_bytes"]["ram"] > 0 and found["standby"] == {}


def test_a_model_is_loaded_and_unloaded(managed: Managed) -> None:
    loaded = managed.send("load", {"model": "second"})
    assert loaded.status_code == 200 and loaded.json()["state"] == "awake"
    assert psutil.pid_exists(loaded.json()["pid"])
    switch = loaded.json()["last_switch"]
    assert switch["from"] == "cold" and switch["phases"]["load"] >= SLOW_S
    assert switch["phases"][switch["slowest"]["phase"]] == max(switch["phases"].values())
    assert managed.models()["first"]["state"] == "cold"  # there is room for one
    assert ask(managed.server, build_bearer(managed.keys["plain"]), model="second").status == 200
    unloaded = managed.send("unload", {"model": "second"}).json()
    assert (unloaded["state"], unloaded["pid"]) == ("cold", None)
    assert not psutil.pid_exists(loaded.json()["pid"])
    assert managed.send("unload", {"model": "second"}).status_code == 200  # idempotent


def test_models_that_cannot_sleep(managed: Managed) -> None:
    managed.send("load", {"model": "first"})
    managed.send("unload", {"model": "second"})
    for model, words in (("first", "cannot put first to sleep"), ("second", "is not loaded")):
        told = managed.send("sleep", {"model": model})
        assert told.status_code == 400 and words in told.json()["error"]["message"]
    assert managed.send("sleep", {"model": "nobody"}).status_code == 404


def test_a_switch_is_recorded(managed: Managed) -> None:
    assert managed.send("load", {"model": "first"}).json()["state"] == "awake"
    switched = managed.send("switch", {"from": "first", "to": "second"}).json()
    assert (switched["name"], switched["state"]) == ("second", "awake")
    assert managed.models()["first"]["state"] == "cold"
    found = managed.send("switches").json()
    last = found["switches"][-1]
    assert (last["model"], last["from"], last["replaced"], last["met"]) == ("second", "cold", ["first"], True)
    assert {"drain", "free", "load"} <= set(last["phases"]) and last["total_s"] >= SLOW_S
    assert found["mean_s"]["cold"] > 0 and found["missed"] == 0
    assert managed.send("switch", {"from": "second", "to": "first"}).json()["state"] == "awake"


def test_a_command_continues_when_its_client_disconnects(managed: Managed) -> None:
    managed.send("load", {"model": "first"})
    with connect(managed.server.port) as sock:
        body = json.dumps({"model": "second"}).encode()
        sock.sendall(build_request("POST", "/admin/load", body, build_bearer(managed.keys["admin"])))
        wait_until(lambda: managed.models()["second"]["state"] != "cold", 30, "the load")
    wait_until(lambda: managed.models()["second"]["state"] == "awake", 30, "the end of the load")


def test_only_administrators_see_why_a_model_does_not_load(managed: Managed) -> None:
    told = managed.send("load", {"model": "broken"})
    assert told.status_code == 503 and "fail_load is error" in told.json()["error"]["message"]
    assert "load" in managed.models()["broken"]["last_failure"]
    asked = ask(managed.server, build_bearer(managed.keys["plain"]), model="broken")
    assert asked.status == 503 and "fail_load is error" not in asked.error["message"]


def test_logs(managed: Managed) -> None:
    lines = managed.send("logs", model="first", lines=1).json()["lines"]
    assert len(lines) == 1
    assert managed.send("logs", model="nobody").status_code == 404
    assert managed.send("logs", model="first", lines=0).json()["error"]["param"] == "lines"


def test_meters_read_the_server_and_its_workers(managed: Managed) -> None:
    pid = managed.send("load", {"model": "first"}).json()["pid"]
    before_s = time.monotonic()
    found = managed.send("meters").json()
    assert before_s <= found["monotonic_s"] <= time.monotonic()  # the same host has the same clock
    samples = {sample["device"]: sample for sample in found["samples"]}
    own = psutil.Process(managed.server.process.pid)
    alone = own.memory_info().rss
    assert pid in [one.pid for one in own.children(recursive=True)]
    assert samples["tree:server"]["memory_bytes"] > alone + psutil.Process(pid).memory_info().rss / 2
    assert samples["host"]["cpu_s"] > samples["tree:server"]["cpu_s"] > 0
    assert found["cores"] == os.cpu_count() and all(one["reason"] for one in found["absent"])
    again = {sample["device"]: sample for sample in managed.send("meters").json()["samples"]}
    assert again["host"]["time_s"] > samples["host"]["time_s"] and again["host"]["cpu_s"] >= samples["host"]["cpu_s"]


def test_an_adapter_is_added_and_removed(managed: Managed, tmp_path: Path) -> None:
    plain = build_bearer(managed.keys["plain"])
    managed.send("load", {"model": "first"})
    adapter = {"model": "first", "name": "tiny"}
    assert ask(managed.server, plain, model="tiny").status == 404
    missing = managed.send("adapters", {**adapter, "path": str(tmp_path / "nothing")})
    assert missing.status_code == 400 and missing.json()["error"]["param"] == "path"
    assert managed.send("adapters", {**adapter, "path": str(tmp_path)}).json()["adapters"] == ["tiny"]
    assert ask(managed.server, plain, model="tiny").status == 200
    again = managed.send("adapters", {**adapter, "path": str(tmp_path)})
    assert again.status_code == 400 and again.json()["error"]["param"] == "name"
    assert managed.send("adapters/remove", adapter).json()["adapters"] == []
    assert ask(managed.server, plain, model="tiny").status == 404
    assert managed.send("adapters/remove", adapter).json()["error"]["param"] == "name"


@pytest.mark.parametrize("endpoint", ["ps", "switches", "logs", "meters", "load", "sleep", "unload", "switch", "reload", "adapters",
                                   "adapters/remove", "engines/upgrade"])  # fmt: skip
def test_an_inference_key_cannot_manage(managed: Managed, endpoint: str) -> None:
    refused = managed.send(endpoint, {"model": "first"} if endpoint == "unload" else None, key="plain")
    assert refused.status_code == 403 and "admin" in refused.json()["error"]["message"]


def test_invalid_requests(managed: Managed) -> None:
    assert managed.send("load", {"model": "nobody"}).status_code == 404
    assert managed.send("switch", {"from": "first", "to": "first"}).json()["error"]["param"] == "to"
    unknown = managed.send("engines/upgrade", {"engine": "steam==1"})
    assert unknown.status_code == 400 and unknown.json()["error"]["param"] == "engine"


# By command


def test_commands(managed: Managed, tmp_path: Path) -> None:
    loaded = managed.bay("load", "second")
    assert loaded.returncode == 0 and loaded.stdout.startswith("second on fake ") and "is awake" in loaded.stdout
    shown = managed.bay("ps")
    lines = {line.split()[0]: line for line in shown.stdout.splitlines()}
    assert "\tawake\t" in lines["second"] and "\tcold\t" in lines["first"] and "(load " in lines["second"]
    assert next(line for line in shown.stderr.splitlines() if line.startswith("memory:")).count(" of ") == 1
    assert managed.bay("switch", "second", "first").stdout.startswith("first on fake ")
    switched = managed.bay("switches")
    header, *_, last = switched.stdout.splitlines()
    assert {"REPLACED", "DRAIN", "FREE", "LOAD", "OBJECTIVE"} <= set(header.split())
    assert last.split()[2:6] == ["first", "fake", "cold", "second"] and last.endswith("\tmet")
    assert "missed their objective" in switched.stderr
    assert managed.bay("logs", "first", "-n", "1").stdout.count("\n") == 1
    assert managed.bay("adapters", "add", "first", "small", str(tmp_path)).stdout.endswith("adapters: small\n")
    assert managed.bay("adapters", "remove", "first", "small").stdout.endswith("adapters: none\n")
    unloaded = managed.bay("unload", "first", "--json")
    assert json.loads(unloaded.stdout)["state"] == "cold"


def test_commands_that_fail(managed: Managed) -> None:
    unknown = managed.bay("load", "nobody")
    assert unknown.returncode == 2 and "unknown model 'nobody'" in unknown.stderr
    refused = managed.bay("ps", key="plain")
    assert refused.returncode == 1 and "ENGINEBAY_ADMIN_KEY" in refused.stderr
    assert "Traceback" not in unknown.stderr + refused.stderr


# Reload


def test_a_changed_configuration_is_applied_all_or_nothing(tmp_path: Path) -> None:
    file = tmp_path / "enginebay.yaml"
    config: dict[str, Any] = {"models": {"toy": {"engine": "fake"}}}
    file.write_text(yaml.safe_dump(config))
    environ = {"ENGINEBAY_HOME": str(tmp_path)}
    with run_server(options=["--config", str(file)], environ=environ) as server:

        def reload() -> httpx.Response:
            return httpx.post(f"{server.url}/admin/reload", headers=server.admin_headers, timeout=60)

        assert reload().json() == {"added": [], "removed": [], "changed": [], "keys": 0}
        config["models"]["other"] = {"engine": "fake", "load": "use"}
        file.write_text(yaml.safe_dump(config))
        assert reload().json()["added"] == ["other"]
        assert ask(server, model="other").status == 200
        file.write_text("models: {toy: {engine: steam}}")
        refused = reload()
        assert refused.status_code == 400 and str(file) in refused.json()["error"]["message"]
        assert ask(server, model="other").status == 200
        key, _ = create_key(tmp_path / "keys.yaml", "ops", admin=True)
        file.write_text(yaml.safe_dump(config))
        assert reload().status_code == 200
        assert reload().status_code == 401  # from now on there is a key
        assert httpx.get(f"{server.url}/admin/ps", headers=build_bearer(key), timeout=60).status_code == 200
