"""Tokens of responses whose clients disconnect early are charged too, though the server sees few of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from enginebay.server.auth.api_keys import create_key
from tests.integration.server.bay_process import run_server
from tests.integration.server.fake_requests import build_bearer, build_config
from tests.integration.server.raw_http import wait_until

SLOW: dict[str, object] = {"step_s": 0.01, "script": "word " * 500}


def tokens(url: str, headers: dict[str, str], model: str) -> float:
    lines = httpx.get(f"{url}/metrics", headers=headers, timeout=60).text.splitlines()
    name = f'enginebay_completion_tokens_total{{model="{model}"'
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


def has_left(url: str, headers: dict[str, str]) -> bool:
    return 'status="499"' in httpx.get(f"{url}/metrics", headers=headers, timeout=60).text


@pytest.mark.slow
@pytest.mark.parametrize(("model", "fields"), [("toy", {"best_of": 4}), ("far", {})])
def test_disconnecting_does_not_evade_the_rate_limit(model: str, fields: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    few, _ = create_key(file, "few", tokens_per_minute=50)
    with run_server(config=build_config(SLOW)) as remote:
        config = build_config(SLOW)
        address = {"url": f"{remote.url}/v1", "model": "toy"}
        config["models"]["far"] = {"engine": "openai", "may_leave_host": True, "openai": address}
        with run_server(config=config, options=["--keys-file", str(file)]) as server:
            asked = {"model": model, "prompt": "word " * 20, "max_tokens": 2000, **fields}
            with httpx.Client(timeout=60, headers=build_bearer(few)) as client:
                with pytest.raises(httpx.TimeoutException):
                    client.post(f"{server.url}/v1/completions", json=asked, timeout=8.0)  # the answer takes 20 s
                wait_until(lambda: tokens(server.url, build_bearer(few), model) >= 50, 20, "the count")
                wait_until(lambda: has_left(server.url, build_bearer(few)), 20, "its end, which charges the key")
                assert client.post(f"{server.url}/v1/completions", json=asked).status_code == 429
