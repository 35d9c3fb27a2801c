"""An exposed server whose last key was revoked refuses everyone until there is a new key."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import httpx2 as httpx
import pytest
import yaml

from enginebay.server.auth.api_keys import create_key, revoke_key
from tests.integration.server.bay_process import BayProcess, run_server
from tests.integration.server.fake_requests import ask, build_bearer, build_config
from tests.integration.server.raw_http import assert_error, wait_until


def reload(server: BayProcess, key: str) -> httpx.Response:
    return httpx.post(f"http://127.0.0.1:{server.port}/admin/reload", headers=build_bearer(key), timeout=60)


@pytest.mark.parametrize("processes", [1, 2])
def test_without_its_last_key_everyone_is_refused(processes: int, tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    leaked, _ = create_key(file, "only", admin=True)
    options = ["--host", "0.0.0.0", "--keys-file", str(file), "--workers", str(processes)]
    with run_server(config=build_config(), options=options) as server:
        assert ask(server, build_bearer(leaked)).status == 200
        revoke_key(file, "only")
        refused = reload(server, leaked)
        assert refused.status_code == 400 and "all requests are now refused" in refused.json()["error"]["message"]
        way_out = f"kill -HUP {server.process.pid}"
        assert way_out in refused.json()["error"]["message"]
        wait_until(lambda: way_out in server.read_log(), 20, "the same in the log")
        for _ in range(4):  # whichever process answers
            for headers in ({"host": "localhost"}, {}, build_bearer(leaked)):
                told = assert_error(ask(server, headers), 401)["message"]
                assert "requires an API key, but none exists" in told and way_out not in told
        assert reload(server, leaked).status_code == 401
        second, _ = create_key(file, "second")
        os.kill(server.process.pid, signal.SIGHUP)
        wait_until(lambda: ask(server, build_bearer(second)).status == 200, 20)
        assert ask(server, build_bearer(leaked)).status == 401


def test_a_revoked_key_is_refused_after_a_reload_that_failed(tmp_path: Path) -> None:
    keys, file = tmp_path / "keys.yaml", tmp_path / "config.yaml"
    leaked, kept = create_key(keys, "leaked")[0], create_key(keys, "kept")[0]
    good = yaml.safe_dump(build_config())
    file.write_text(good)
    options = ["--host", "0.0.0.0", "--keys-file", str(keys), "--config", str(file)]
    with run_server(options=options) as server:
        assert ask(server, build_bearer(leaked)).status == 200
        revoke_key(keys, "leaked")
        file.write_text(f"{good}bad: 1\n")
        os.kill(server.process.pid, signal.SIGHUP)
        wait_until(lambda: "the keys were reloaded, but the configuration is unchanged" in server.read_log(), 20)
        assert ask(server, build_bearer(leaked)).status == 401 and ask(server, build_bearer(kept)).status == 200
