"""A key that fills the model keeps no other key waiting: its short request waits at most for one slot."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from enginebay.server.auth.api_keys import create_key
from tests.contract.engine_profiles import PROFILES
from tests.hostile.hostile_case import COMPLETIONS, TEXT_MODEL
from tests.hostile.hostile_site import build_headers, nest_settings
from tests.integration.server.bay_process import run_server

SLOTS = 4
LONG, WAITING = 200, 2100
ENGINES = ("fake", "llamacpp")
SETTINGS: dict[str, dict[str, Any]] = {
    "fake": {"step_s": 0.01, "max_batch": SLOTS},
    "llamacpp": {"context_length": 256, "max_batch": SLOTS},
}
LONG_TOKENS = {"fake": 200, "llamacpp": 40}


class BusyKey:
    """Key A: many long requests at once, and how they ended."""

    def __init__(self, url: str, key: str, prompt: str, tokens: int) -> None:
        self._url, self._headers = url, build_headers(key)
        self._body = {"model": TEXT_MODEL, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "temperature": 0}
        self.statuses: list[int] = []

    async def ask(self, client: httpx.AsyncClient) -> None:
        response = await client.post(self._url + COMPLETIONS, json=self._body, headers=self._headers)
        self.statuses.append(response.status_code)

    @asynccontextmanager
    async def run(self, count: int) -> AsyncIterator[None]:
        """Have this many requests under way."""
        limits = httpx.Limits(max_connections=count)
        async with httpx.AsyncClient(timeout=300, limits=limits) as client:
            tasks = [asyncio.create_task(self.ask(client)) for _ in range(count)]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)


async def ask_shortly(url: str, key: str, prompt: str) -> httpx.Response:
    body = {"model": TEXT_MODEL, "prompt": prompt, "max_tokens": 1, "temperature": 0}
    async with httpx.AsyncClient(timeout=120) as client:
        return await client.post(url + COMPLETIONS, json=body, headers=build_headers(key))


async def read_gauge(url: str, key: str, name: str) -> float:
    async with httpx.AsyncClient(timeout=60) as client:
        text = (await client.get(url + "/metrics", headers=build_headers(key))).text
    return sum(
        float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith((f"{name}{{", f"{name} "))
    )


async def wait_until_held(url: str, key: str, count: int) -> None:
    """Until the server holds this many requests, running or waiting."""
    deadline = time.monotonic() + 60
    names = ("enginebay_requests_running", "enginebay_requests_waiting")
    while sum([await read_gauge(url, key, name) for name in names]) < count:
        assert time.monotonic() < deadline, "the requests did not arrive"
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_short_request_waits_at_most_for_one_slot(engine: str, tmp_path: Path) -> None:
    """With 200 long ones of another key before it, no more of them end first than the model runs at once."""
    async with _open(engine, tmp_path) as (url, busy, keys, prompt), busy.run(LONG):
        await wait_until_held(url, keys["b"], LONG - SLOTS)
        before = len(busy.statuses)
        for _ in range(3):
            assert (await ask_shortly(url, keys["b"], prompt)).status_code == 200
        ended = len(busy.statuses) - before
        assert ended <= 3 * (SLOTS + 1), f"{ended} of the other key's requests ended first"
        assert set(busy.statuses) <= {200}


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_full_queue_is_full_for_one_key_only(engine: str, tmp_path: Path) -> None:
    """With 2,100 requests of another key, some of them refused, a short one is admitted."""
    async with _open(engine, tmp_path) as (url, busy, keys, prompt), busy.run(WAITING):
        await wait_until_held(url, keys["b"], 900)
        deadline = time.monotonic() + 60
        while not busy.statuses or (min(busy.statuses) == 200 and max(busy.statuses) == 200):
            assert time.monotonic() < deadline, "none was refused"
            await asyncio.sleep(0.05)
        answer = await ask_shortly(url, keys["b"], prompt)
        assert answer.status_code == 200, answer.text


@asynccontextmanager
async def _open(engine: str, folder: Path) -> AsyncIterator[tuple[str, BusyKey, dict[str, str], str]]:
    profile, file = PROFILES[engine], folder / "keys.yaml"
    keys = {name: create_key(file, name)[0] for name in ("a", "b")}
    model: dict[str, Any] = {"engine": engine, engine: nest_settings(SETTINGS[engine])}
    if engine != "fake":
        model["source"] = profile.model
    config: dict[str, object] = {"models": {TEXT_MODEL: model}, "server": {"log_level": "error", "drain_s": 1}}
    with run_server(config=config, options=["--keys-file", str(file)]) as server:
        assert (await ask_shortly(server.url, keys["b"], profile.certain)).status_code == 200
        yield server.url, BusyKey(server.url, keys["a"], profile.long, LONG_TOKENS[engine]), keys, profile.certain
