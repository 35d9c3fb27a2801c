"""Loads that hang, fail, crash or do not fit, and crash loops: reported at once and retried later."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import httpx2 as httpx
import psutil
import pytest
import yaml

from enginebay.server.auth.api_keys import create_key
from tests.integration.fleet.background_clients import BackgroundWorkload
from tests.integration.fleet.server_site import ServerSite, find_workers, read_worker_deaths, wait_until
from tests.integration.server.bay_process import BayProcess, run_server
from tests.integration.server.fake_requests import ask, build_bearer
from tests.integration.server.raw_http import assert_error

GB = 1 << 30
QUICK = {"backoff_s": 0.05, "backoff_max_s": 0.1}


def _config(fleet: dict[str, Any] | None = None, **models: dict[str, Any]) -> dict[str, object]:
    """Build models of the fake engine that load on first use; engine settings are under `fake`."""
    found = {name: {"engine": "fake", "load": "use", **keys} for name, keys in models.items()}
    return {"models": found, "fleet": {**QUICK, **(fleet or {})}}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "cause"),
    [("hang", "failed_load"), ("error", "failed_load"), ("crash", "failed_load"), ("out_of_memory", "out_of_memory")],
)
async def test_a_load_that_never_succeeds(how: str, cause: str, site: ServerSite) -> None:
    """Its clients get an error; the others do not notice."""
    fleet, models = {"restarts": 1000}, {"toy": {}, "bad": {"fake": {"fail_load": how}}}
    file = site.home / "enginebay.yaml"
    file.write_text(yaml.safe_dump(_config(fleet, **models)))
    with run_server(options=["--config", str(file)], environ=site.alone) as server:
        if how == "hang":
            assert ask(server).status == 200  # a load that succeeds may take as long as it likes
            file.write_text(yaml.safe_dump(_config({**fleet, "load_timeout_s": 2}, **models)))
            httpx.post(f"{server.url}/admin/reload", headers=server.admin_headers, timeout=60).raise_for_status()
        async with (
            BackgroundWorkload(server.url, ["toy"]) as good,
            BackgroundWorkload(server.url, ["bad"], pause_s=0.05) as bad,
        ):
            while bad.ended < 24 or not (bad.streamed.refused and bad.unstreamed.refused):
                await bad.wait_for_end()
        assert good.streamed.whole + good.unstreamed.whole == good.asked
        assert bad.ended == bad.asked and not bad.lost
        assert set(bad.streamed.refused) == set(bad.unstreamed.refused) == {(503, "engine_unavailable")}
        assert bad.slowest_s < 30
        assert read_worker_deaths(server) and all(f"cause={cause}" in line for line in read_worker_deaths(server))
        [worker] = find_workers(server)  # of the good one
        assert worker.is_running()


def test_a_load_that_never_succeeds_at_the_start(site: ServerSite) -> None:
    """The server does not start and reports why."""
    command = [sys.executable, "-m", "enginebay.cli.main", "serve", "toy", "--engine", "fake", "--port", "0"]
    environ = {**psutil.Process().environ(), **site.alone}
    found = subprocess.run(
        [*command, "--set", "fail_load=crash"], env=environ, capture_output=True, text=True, timeout=60
    )
    assert found.returncode == 1 and "SIGSEGV" in found.stderr and "Traceback" not in found.stderr


@pytest.mark.parametrize("allowed", [True, False])
def test_a_load_that_runs_out_of_memory(allowed: bool, site: ServerSite) -> None:
    """Retried once with smaller settings if the configuration allows it."""
    fake = {"context_length": 4096, "oom_above": 2048}
    config = _config(toy={"smaller_on_out_of_memory": allowed, "fake": fake})
    with run_server(config=config, environ=site.alone) as server:
        answer = ask(server)
        if allowed:
            assert answer.status == 200 and "loading with smaller settings" in server.read_log()
            long = [{"role": "user", "content": "x" * 3000}]
            assert_error(ask(server, messages=long), 400)  # the context is what it says
        else:
            assert assert_error(answer, 503)["code"] == "engine_unavailable"
            assert "loading with smaller settings" not in server.read_log()


async def test_two_models_of_which_one_fits(site: ServerSite) -> None:
    """They take turns, and all requests are answered. A standby for the next turn may exist."""
    fleet = {"memory_bytes": 3 * GB, "min_residency_s": 0.2, "sleep": "off"}
    model = {"memory_bytes": 2 * GB, "fake": {"step_s": 0.002}}
    with run_server(config=_config(fleet, one=model, two=model), environ=site.alone) as server:
        async with BackgroundWorkload(server.url, ["one", "two"]) as load:
            for _ in range(5):
                await load.wait_answers_for_all(streams=True)
                assert len(site.list_loads()) <= 1
        assert load.streamed.whole + load.unstreamed.whole == load.asked
        assert read_worker_deaths(server) == []


async def test_a_model_that_never_fits(site: ServerSite) -> None:
    toy, huge = {"memory_bytes": "1MiB", "load": "start", "pinned": True}, {"memory_bytes": "2GiB", "load": "start"}
    config = _config({"memory_bytes": "1GiB"}, toy=toy, huge=huge)
    with run_server(config=config, environ=site.alone) as server:
        assert "warning: huge does not fit on this host: it needs 2.0 GiB of ram" in server.log.read_text()
        assert "first request" not in server.log.read_text(), "it never loads"
        began = time.monotonic()
        refused = ask(server, model="huge")
        error = assert_error(refused, 503)
        assert error["code"] == "model_too_large" and "retry-after" not in refused.headers
        assert "it needs 2.0 GiB of ram, but the budget is 1.0 GiB" in error["message"]
        assert time.monotonic() - began < 30  # it would wait for 300
        async with (
            BackgroundWorkload(server.url, ["toy"]) as good,
            BackgroundWorkload(server.url, ["huge"], pause_s=0.05) as huge,
        ):
            await good.wait_answers_for_all(3, streams=True)
        assert good.streamed.whole + good.unstreamed.whole == good.asked
        assert huge.unstreamed.refused.total() + huge.streamed.refused.total() == huge.asked
        assert huge.slowest_s < 30


@pytest.mark.slow
def test_a_worker_that_never_stays_alive(site: ServerSite) -> None:
    """In a crash loop requests are rejected at once, until an administrator or the end of the window allows a retry."""
    keys = site.home / "keys.yaml"
    plain, admin = create_key(keys, "plain")[0], create_key(keys, "admin", admin=True)[0]
    config = _config({"restarts": 2, "restart_window_s": 20}, toy={"fake": {"crash_after_tokens": 20}})
    with run_server(config=config, environ=site.alone) as server:
        assert ask(server, build_bearer(plain), max_tokens=4).status == 200
        assert_error(ask(server, build_bearer(plain), max_tokens=100), 503)
        wait_until(lambda: len(read_worker_deaths(server)) >= 3, 20, "word of them")
        assert len(read_worker_deaths(server)) == 3 and "crash_loop=true" in read_worker_deaths(server)[-1].lower()
        _refused_at_once(server, plain, 3)
        loaded = httpx.post(f"{server.url}/admin/load", json={"model": "toy"}, headers=build_bearer(admin), timeout=30)
        assert loaded.status_code == 200
        assert ask(server, build_bearer(plain), max_tokens=4).status == 200
        assert_error(ask(server, build_bearer(plain), max_tokens=100), 503)  # again, and this time nobody sees to it
        wait_until(lambda: len(read_worker_deaths(server)) >= 6, 20, "word of them")
        _refused_at_once(server, plain, 6)
        wait_until(lambda: ask(server, build_bearer(plain), max_tokens=4).status == 200, 60, "the end of the window")


def _refused_at_once(server: BayProcess, key: str, known: int) -> None:
    """They trigger no load and do not wait for the end of the 20 s window."""
    began = time.monotonic()
    for stream in (False, True, False):
        assert assert_error(ask(server, build_bearer(key), stream=stream), 503)["code"] == "engine_unavailable"
    assert len(read_worker_deaths(server)) == known and time.monotonic() - began < 15
