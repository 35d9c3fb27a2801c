"""Loads that hang, fail, crash or do not fit, and workers that never stay alive: told at once, and tried again in time."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import httpx2 as httpx
import psutil
import pytest
import yaml

from enginebay.server.keys import create_key
from tests.integration.fleet.load import Load
from tests.integration.fleet.site import Site, deaths, until, workers_of
from tests.integration.server.asking import ask, bearer
from tests.integration.server.raw_http import is_error
from tests.integration.server.serving import Server, serving

GB = 1 << 30
QUICK = {"backoff_s": 0.05, "backoff_max_s": 0.1}


def _config(fleet: dict[str, Any] | None = None, **models: dict[str, Any]) -> dict[str, object]:
    """Models of the fake engine, loaded when they are asked for; keys of its own are under `fake`."""
    found = {name: {"engine": "fake", "load": "use", **keys} for name, keys in models.items()}
    return {"models": found, "fleet": {**QUICK, **(fleet or {})}}


@pytest.mark.parametrize(
    ("how", "cause"),
    [("hang", "failed_load"), ("error", "failed_load"), ("crash", "failed_load"), ("out_of_memory", "out_of_memory")],
)
async def test_a_load_that_never_succeeds(how: str, cause: str, site: Site) -> None:
    """Those who ask for it are told; the others do not notice."""
    fleet, models = {"restarts": 1000}, {"toy": {}, "bad": {"fake": {"fail_load": how}}}
    file = site.home / "enginebay.yaml"
    file.write_text(yaml.safe_dump(_config(fleet, **models)))
    with serving(options=["--config", str(file)], environ=site.alone) as server:
        if how == "hang":
            assert ask(server).status == 200  # a load that succeeds may take as long as it likes
            file.write_text(yaml.safe_dump(_config({**fleet, "load_timeout_s": 2}, **models)))
            httpx.post(f"{server.url}/admin/reload", timeout=60).raise_for_status()
        async with Load(server.url, ["toy"]) as good, Load(server.url, ["bad"], pause_s=0.05) as bad:
            while bad.ended < 24 or not (bad.streamed.refused and bad.unstreamed.refused):
                await bad.ending()
        assert good.streamed.whole + good.unstreamed.whole == good.asked
        assert bad.ended == bad.asked and not bad.lost
        assert set(bad.streamed.refused) == set(bad.unstreamed.refused) == {(503, "engine_unavailable")}
        assert bad.slowest_s < 30
        assert deaths(server) and all(f"cause={cause}" in line for line in deaths(server))
        [worker] = workers_of(server)  # of the good one
        assert worker.is_running()


def test_a_load_that_never_succeeds_at_the_start(site: Site) -> None:
    """The server then does not start, and says why."""
    command = [sys.executable, "-m", "enginebay.cli.main", "serve", "toy", "--engine", "fake", "--port", "0"]
    environ = {**psutil.Process().environ(), **site.alone}
    found = subprocess.run(
        [*command, "--set", "fail_load=crash"], env=environ, capture_output=True, text=True, timeout=60
    )
    assert found.returncode == 1 and "SIGSEGV" in found.stderr and "Traceback" not in found.stderr


@pytest.mark.parametrize("allowed", [True, False])
def test_a_load_that_runs_out_of_memory(allowed: bool, site: Site) -> None:
    """With smaller settings, once, where the configuration allows it."""
    fake = {"context_length": 4096, "oom_above": 2048}
    config = _config(toy={"smaller_on_out_of_memory": allowed, "fake": fake})
    with serving(config=config, environ=site.alone) as server:
        answer = ask(server)
        if allowed:
            assert answer.status == 200 and "loading with smaller settings" in server.words()
            is_error(ask(server, max_tokens=3000), 400)  # the context is what it says
        else:
            assert is_error(answer, 503)["code"] == "engine_unavailable"
            assert "loading with smaller settings" not in server.words()


async def test_two_models_of_which_one_fits(site: Site) -> None:
    """They take turns, and all requests are answered. A process for the next turn may wait beside it, without a model."""
    fleet = {"memory_bytes": 3 * GB, "min_residency_s": 0.2, "sleep": "off"}
    model = {"memory_bytes": 2 * GB, "fake": {"step_s": 0.002}}
    with serving(config=_config(fleet, one=model, two=model), environ=site.alone) as server:
        async with Load(server.url, ["one", "two"]) as load:
            for _ in range(5):
                await load.answers_for_all(streams=True)
                assert len(site.loads()) <= 1
        assert load.streamed.whole + load.unstreamed.whole == load.asked
        assert deaths(server) == []


async def test_a_model_that_never_fits(site: Site) -> None:
    config = _config({"memory_bytes": GB}, toy={"memory_bytes": 1 << 20}, huge={"memory_bytes": 2 * GB})
    with serving(config=config, environ=site.alone) as server:
        began = time.monotonic()
        refused = ask(server, model="huge")
        assert is_error(refused, 503)["code"] == "overloaded" and int(refused.headers["retry-after"]) > 0
        assert time.monotonic() - began < 30  # it would wait for 300
        async with Load(server.url, ["toy"]) as good, Load(server.url, ["huge"], pause_s=0.05) as huge:
            await good.answers_for_all(3, streams=True)
        assert good.streamed.whole + good.unstreamed.whole == good.asked
        assert huge.unstreamed.refused.total() + huge.streamed.refused.total() == huge.asked
        assert huge.slowest_s < 30


def test_a_worker_that_never_stays_alive(site: Site) -> None:
    """After so many deaths requests are refused at once, until an administrator or the end of the window says otherwise."""
    keys = site.home / "keys.yaml"
    plain, admin = create_key(keys, "plain")[0], create_key(keys, "admin", admin=True)[0]
    config = _config({"restarts": 2, "restart_window_s": 20}, toy={"fake": {"crash_after_tokens": 20}})
    with serving(config=config, environ=site.alone) as server:
        assert ask(server, bearer(plain), max_tokens=4).status == 200
        is_error(ask(server, bearer(plain), max_tokens=100), 503)
        until(lambda: len(deaths(server)) >= 3, 20, "word of them")
        assert len(deaths(server)) == 3 and "crash_loop=true" in deaths(server)[-1].lower()
        _refused_at_once(server, plain, 3)
        loaded = httpx.post(f"{server.url}/admin/load", json={"model": "toy"}, headers=bearer(admin), timeout=30)
        assert loaded.status_code == 200
        assert ask(server, bearer(plain), max_tokens=4).status == 200
        is_error(ask(server, bearer(plain), max_tokens=100), 503)  # again, and this time nobody sees to it
        until(lambda: len(deaths(server)) >= 6, 20, "word of them")
        _refused_at_once(server, plain, 6)
        until(lambda: ask(server, bearer(plain), max_tokens=4).status == 200, 60, "the end of the window")


def _refused_at_once(server: Server, key: str, known: int) -> None:
    """Nothing is tried for them, nor do they wait for the end of the window of 20 s."""
    began = time.monotonic()
    for stream in (False, True, False):
        assert is_error(ask(server, bearer(key), stream=stream), 503)["code"] == "engine_unavailable"
    assert len(deaths(server)) == known and time.monotonic() - began < 15
