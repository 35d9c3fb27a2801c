"""Changes of the configuration, of an engine's version and of the awake model under constant load."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
import yaml

from enginebay.server.auth.api_keys import create_key, revoke_key
from tests.integration.fleet.background_clients import BackgroundWorkload
from tests.integration.fleet.fleet_client import (
    REAL,
    FleetClient,
    build_environ,
    fake_model,
    is_alive,
    make_home,
    run_fleet,
)
from tests.integration.fleet.server_site import wait_until
from tests.integration.fleet.shared_fleets import SMALL
from tests.integration.server.bay_process import run_server
from tests.integration.server.fake_requests import build_bearer

NOTHING: dict[str, Any] = {"added": [], "removed": [], "changed": [], "keys": 0}
OTHER_LLAMACPP = "2026.9.11063"  # an older one than that which is installed with the tests


class Configured(FleetClient):
    """A server whose configuration file can be rewritten."""

    file: Path
    workers = 1

    def write(self, models: dict[str, Any], **blocks: Any) -> None:
        blocks["server"] = {"workers": self.workers, **blocks.get("server", {})}
        self.file.write_text(_config(models, **blocks))

    def hang_up(self) -> None:
        """Reload by SIGHUP and wait until the server has logged it."""
        before = len(self.read_log(event="configuration reloaded"))
        os.kill(self.server.process.pid, signal.SIGHUP)
        wait_until(lambda: len(self.read_log(event="configuration reloaded")) > before, 60, "the new configuration")


def _config(models: dict[str, Any], **blocks: Any) -> str:
    blocks["server"] = {"log_format": "json", **blocks.get("server", {})}
    return yaml.safe_dump({"models": models, **blocks})


@contextmanager
def configured(folder: Path, models: dict[str, Any], home: Path | None = None, **blocks: Any) -> Iterator[Configured]:
    file = folder / "enginebay.yaml"
    file.write_text(_config(models, **blocks))
    environ = {"ENGINEBAY_HOME": str(home)} if home else None
    with run_server(options=["--config", str(file)], environ=environ) as server:
        fleet = Configured(server)
        fleet.file = file
        yield fleet
        assert "unexpected error" not in server.read_log() and "fleet task failed" not in server.read_log(), (
            server.read_log()
        )


@pytest.fixture
def changing(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Configured]:
    """Run one server process, or as many as the test requests."""
    server = {"workers": getattr(request, "param", 1)}
    with configured(tmp_path, {"toy": _toy(512), "gone": _toy(512)}, tmp_path, server=server) as fleet:
        fleet.workers = server["workers"]
        yield fleet


def _toy(context_length: int, **settings: Any) -> dict[str, Any]:
    return fake_model(load="start", step_s=0.002, context_length=context_length, **settings)


def _unharmed(load: BackgroundWorkload) -> None:
    """The tests wait for enough answers with `wait_answers_for_all`: on a busy machine they are few."""
    assert (load.streamed.refused, load.unstreamed.refused, load.streamed.told, load.lost) == ({}, {}, {}, [])
    assert load.streamed.whole + load.unstreamed.whole == load.asked == load.ended > 0


# The configuration


@pytest.mark.parametrize(("changing", "by"), [(1, "signal"), (1, "order"), (2, "signal")], indirect=["changing"])
async def test_a_configuration_is_applied_under_load(changing: Configured, by: str) -> None:
    old = changing.list_admin_models()["toy"]["pid"]
    async with BackgroundWorkload(changing.server.url, ["toy"]) as load:
        await load.wait_answers_for_all(streams=True)
        changing.write({"toy": _toy(1024), "fresh": fake_model(script="I am new")})
        if by == "signal":
            await asyncio.to_thread(changing.hang_up)
        else:
            told = await asyncio.to_thread(changing.post_admin, "reload")
            assert told == {"added": ["fresh"], "removed": ["gone"], "changed": ["toy"], "keys": 0}
        await load.wait_answers_for_all(2, streams=True)
        assert changing.describe_model("toy")["context_length"] == 1024
        assert changing.describe_model("toy")["settings"]["context_length"] == {"effective": 1024, "asked": 1024}
        assert (await asyncio.to_thread(changing.ask_text, "fresh", max_tokens=8)) == "I am new"
        for _ in range(changing.workers * 3):  # each on a connection of its own
            assert changing.ask("gone").status_code == 404
        assert sorted(changing.list_models()) == ["fresh", "toy"]
    _unharmed(load)
    wait_until(lambda: not is_alive(old), 30, "the end of the old worker")


@pytest.mark.parametrize("changing", [1, 2], indirect=True)
def test_metrics_forget_the_queue_of_a_model_that_was_removed(changing: Configured) -> None:
    def told() -> list[str]:
        lines = httpx.get(f"{changing.server.url}/metrics", timeout=60).text.splitlines()
        return [one for one in lines if one.startswith("enginebay_requests_") and one.endswith(" 0") and "gone" in one]

    assert changing.ask("gone").status_code == 200
    wait_until(lambda: len(told()) == 2, 20, "running and waiting, both at 0")
    changing.write({"toy": _toy(512)})
    assert changing.post_admin("reload")["removed"] == ["gone"]
    wait_until(lambda: told() == [], 20, "their end")


async def test_many_changes_under_load(changing: Configured) -> None:
    async with BackgroundWorkload(changing.server.url, ["toy"]) as load:
        for context_length in (600, 700, 800, 900):
            changing.write({"toy": _toy(context_length)})
            await asyncio.to_thread(changing.post_admin, "reload")
            assert changing.describe_model("toy")["context_length"] == context_length
            await load.wait_answers_for_all(streams=True)
        assert (await asyncio.to_thread(changing.post_admin, "reload")) == NOTHING
    _unharmed(load)
    assert len(changing.list_admin_models()) == 1


async def test_nothing_of_an_invalid_configuration_is_applied(changing: Configured) -> None:
    pid = changing.list_admin_models()["toy"]["pid"]
    async with BackgroundWorkload(changing.server.url, ["toy", "gone"]) as load:
        await load.wait_answers_for_all()
        changing.write({"toy": _toy(1024) | {"pinned": "perhaps"}})
        refused = await asyncio.to_thread(changing.try_post_admin, "reload")
        assert refused.status_code == 400
        assert "models.toy.pinned" in refused.json()["error"]["message"] and refused.json()["error"]["message"]
        os.kill(changing.server.process.pid, signal.SIGHUP)
        await asyncio.to_thread(_wait_for_errors, changing)
        await load.wait_answers_for_all()
    _unharmed(load)
    assert changing.list_admin_models()["toy"]["pid"] == pid and changing.describe_model("toy")["context_length"] == 512


def _wait_for_errors(fleet: Configured) -> None:
    """The command and the signal log the same error."""
    wait_until(lambda: len(fleet.read_log(event="reload failed")) == 2, 20, "the errors in the log")
    ordered, signalled = fleet.read_log(event="reload failed")
    assert "models.toy.pinned" in ordered["error"] and ordered["level"] == signalled["level"] == "error"
    assert ordered["error"] == signalled["error"]


async def test_settings_that_do_not_load_change_nothing(changing: Configured) -> None:
    """All or nothing: the valid ones are not applied either."""
    pids = {name: one["pid"] for name, one in changing.list_admin_models().items()}
    async with BackgroundWorkload(changing.server.url, ["toy", "gone"]) as load:
        await load.wait_answers_for_all()
        changing.write({"toy": _toy(1024), "gone": _toy(1024, fail_load="error"), "fresh": fake_model()})
        refused = await asyncio.to_thread(changing.try_post_admin, "reload")
        assert refused.status_code == 503 and "fail_load is error" in refused.json()["error"]["message"]
        await load.wait_answers_for_all()
    _unharmed(load)
    assert {name: one["pid"] for name, one in changing.list_admin_models().items()} == pids
    assert changing.describe_model("toy")["context_length"] == 512
    changing.write({"toy": _toy(1024), "gone": _toy(1024), "fresh": fake_model()})
    assert sorted(changing.post_admin("reload")["changed"]) == ["gone", "toy"]  # applied once corrected


@pytest.mark.slow
async def test_a_changed_model_that_loads_but_never_responds(tmp_path: Path) -> None:
    """It changes nothing and does not block later changes."""
    fleet = {"hang_s": 10}
    with configured(tmp_path, {"toy": _toy(512)}, tmp_path, fleet=fleet) as changing:
        pid = changing.list_admin_models()["toy"]["pid"]
        async with BackgroundWorkload(changing.server.url, ["toy"]) as load:
            await load.wait_answers_for_all()
            changing.write({"toy": _toy(1024, prefill_s=3000)}, fleet=fleet)
            refused = await asyncio.to_thread(changing.try_post_admin, "reload")
            assert refused.status_code == 503 and "did not respond within 10 s" in refused.json()["error"]["message"]
            changing.write({"toy": _toy(1024, prefill_s=3000)}, fleet={"hang_s": 3})  # what is written now counts
            refused = await asyncio.to_thread(changing.try_post_admin, "reload")
            assert "did not respond within 3 s" in refused.json()["error"]["message"]
            await load.wait_answers_for_all()
        _unharmed(load)
        assert (
            changing.list_admin_models()["toy"]["pid"] == pid
            and changing.describe_model("toy")["context_length"] == 512
        )
        changing.write({"toy": _toy(1024)}, fleet=fleet)
        assert changing.post_admin("reload")["changed"] == ["toy"]


def test_keys_that_need_a_restart(changing: Configured) -> None:
    changing.write({"toy": _toy(1024)}, server={"port": 1})
    # The port was given on the command line, which goes before the file.
    assert changing.post_admin("reload")["changed"] == ["toy"]
    changing.write({"toy": _toy(2048)}, server={"workers": 2})
    refused = changing.try_post_admin("reload")
    assert refused.status_code == 400 and "server.workers" in refused.json()["error"]["message"]
    assert changing.describe_model("toy")["context_length"] == 1024


def test_a_cold_model_on_another_engine_is_reported(tmp_path: Path) -> None:
    with configured(tmp_path, {"toy": _toy(512)}) as fleet:
        before = fleet.list_admin_models()["toy"]
        fleet.post_admin("unload", {"model": "toy"})
        fleet.write({"toy": {**SMALL["llamacpp"], "load": "use"}})
        assert fleet.post_admin("reload")["changed"] == ["toy"]
        after = fleet.list_admin_models()["toy"]
        assert (after["engine"], after["state"], after["last_switch"]) == ("llamacpp", "cold", None)
        assert before["last_switch"] is not None and after["version"] != before["version"]
        assert fleet.ask("toy").status_code == 200

        def engines() -> list[str]:
            return [line["engine"] for line in fleet.read_log() if line.get("endpoint") == "chat"]

        wait_until(lambda: engines() == ["llamacpp"], 20, "the line of the request")
        told = httpx.get(f"{fleet.server.url}/metrics", timeout=60).text
        counted = [one for one in told.splitlines() if one.startswith("enginebay_requests_")]
        assert any("total" in one and 'engine="llamacpp"' in one for one in counted), counted
        assert not any('engine="fake"' in one for one in counted), counted


def test_a_change_of_limits_and_defaults_without_a_new_worker(changing: Configured) -> None:
    pid = changing.list_admin_models()["toy"]["pid"]
    changing.write({"toy": _toy(512), "gone": _toy(512)}, server={"limits": {"messages": 1}})
    assert changing.post_admin("reload") == NOTHING
    refused = changing.ask("toy", messages=[{"role": "user", "content": "hi"}] * 2)
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "messages"
    assert changing.list_admin_models()["toy"]["pid"] == pid


def test_a_revoked_key_is_refused_after_a_reload(tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    good = create_key(keys, "good", admin=True)[0]
    bad = create_key(keys, "bad")[0]
    with configured(tmp_path, {"toy": _toy(512)}, tmp_path) as fleet:
        fleet.headers = build_bearer(good)
        assert fleet.ask("toy", build_bearer(bad)).status_code == 200
        revoke_key(keys, "bad")
        assert fleet.post_admin("reload") == {**NOTHING, "keys": 1}
        assert fleet.ask("toy", build_bearer(bad)).status_code == 401
        assert fleet.ask("toy").status_code == 200


@pytest.mark.slow
async def test_llamacpp_is_changed_under_load(tmp_path: Path) -> None:
    def small(context_length: int) -> dict[str, Any]:
        return {**SMALL["llamacpp"], "llamacpp": {"context_length": context_length, "max_batch": 8}}

    with configured(tmp_path, {"small": small(512)}) as fleet:
        said = fleet.ask_text("small", body=REAL)
        async with BackgroundWorkload(fleet.server.url, ["small"], streams=2, wholes=2, max_tokens=16) as load:
            await load.wait_answers_for_all(streams=True)
            fleet.write({"small": small(1024)})
            await asyncio.to_thread(fleet.hang_up)
            await load.wait_answers_for_all(2, streams=True)
            fleet.write({"small": small(1024) | {"llamacpp": {"context_length": 1024, "max_batch": 0}}})
            assert (await asyncio.to_thread(fleet.try_post_admin, "reload")).status_code == 400
            await load.wait_answers_for_all(streams=True)
        _unharmed(load)
        assert fleet.describe_model("small")["context_length"] == 1024
        assert fleet.ask_text("small", body=REAL) == said


# An engine's version


@pytest.fixture(scope="module")
def two_versions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with another llamacpp version than the one installed next to `bay`."""
    home = make_home(tmp_path_factory.mktemp("home"), "models")
    subprocess.run(
        [sys.executable, "-m", "enginebay.cli.main", "engines", "install", f"llamacpp=={OTHER_LLAMACPP}"],
        check=True, capture_output=True, timeout=300, env=build_environ(home),
    )  # fmt: skip
    return home


@pytest.mark.slow
async def test_an_engine_is_upgraded_under_load(two_versions: Path, tmp_path: Path) -> None:
    with configured(tmp_path, {"small": SMALL["llamacpp"]}, two_versions) as fleet:
        beside = fleet.list_admin_models()["small"]["version"]
        assert beside != OTHER_LLAMACPP
        async with BackgroundWorkload(fleet.server.url, ["small"], streams=2, wholes=2, max_tokens=16) as load:
            for version in (OTHER_LLAMACPP, beside):
                await load.wait_answers_for_all(streams=True)
                told = await asyncio.to_thread(fleet.post_admin, "engines/upgrade", {"engine": f"llamacpp=={version}"})
                assert told == {"engine": "llamacpp", "version": version, "models": ["small"]}
                answer = await asyncio.to_thread(fleet.ask, "small", body=REAL)
                assert answer.headers["x-enginebay-engine"] == f"llamacpp {version}"
                reloaded = await asyncio.to_thread(fleet.post_admin, "reload")
                assert reloaded["changed"] == [], "what was upgraded stays so"
                await load.wait_answers_for_all(streams=True)
        _unharmed(load)
        assert fleet.list_admin_models()["small"]["version"] == beside == fleet.describe_model("small")["version"]
        unknown = fleet.try_post_admin("engines/upgrade", {"engine": "llamacpp==1.2.3"})
        assert unknown.status_code >= 400 and "bay engines install llamacpp==1.2.3" in unknown.text
        assert fleet.ask_text("small", body=REAL)


# The awake model


@pytest.mark.slow
async def test_models_are_switched_under_load(tmp_path: Path) -> None:
    """Clients request both all the time although one fits, and an administrator switches as well."""
    models = {name: fake_model(step_s=0.002) for name in ("one", "two")}
    with run_fleet(models, tmp_path, max_awake=1, min_residency_s=0.2) as fleet:
        async with BackgroundWorkload(fleet.server.url, ["one", "two"], streams=4, wholes=4) as load:
            await load.wait_answers_for_all(3, streams=True)
            for order in ({"from": "one", "to": "two"}, {"from": "two", "to": "one"}):
                answer = await asyncio.to_thread(fleet.try_post_admin, "switch", order)
                assert answer.status_code in (200, 503)  # one that is moving already cannot be told to
            await load.wait_answers_for_all(streams=True)
            while len(fleet.list_switches()) < 4:
                await load.wait_answers_for_all(streams=True)
        _unharmed(load)
        assert {one["from"] for one in fleet.list_switches()[2:]} == {"asleep"}


@pytest.mark.slow
async def test_llamacpp_models_are_switched_under_load() -> None:
    models = {name: {**SMALL["llamacpp"], "load": "use"} for name in ("one", "two")}
    with run_fleet(models, max_awake=1, min_residency_s=0.2) as fleet:
        async with BackgroundWorkload(fleet.server.url, ["one", "two"], streams=2, wholes=2, max_tokens=8) as load:
            while len(fleet.list_switches()) < 4:
                await load.wait_answers_for_all(streams=True)
        _unharmed(load)
