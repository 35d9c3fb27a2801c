"""A key that fills the model keeps no other key waiting: its short request waits at most for one slot."""

from __future__ import annotations

import json
import select
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from enginebay.server.auth.api_keys import create_key
from tests.contract.engine_profiles import PROFILES
from tests.hostile.hostile_case import COMPLETIONS, TEXT_MODEL
from tests.hostile.hostile_site import LOAD_S, build_headers
from tests.integration.server.bay_process import BayProcess, run_server
from tests.integration.server.raw_http import build_request, connect, wait_until

SLOTS = 4
LONG, MANY = 200, 2100
ENGINES = ("fake", "llamacpp")
SETTINGS: dict[str, dict[str, Any]] = {
    "fake": {"step_s": 0.01, "max_batch": SLOTS},
    "llamacpp": {"context_length": 256, "max_batch": SLOTS},
}
LONG_TOKENS = {"fake": 200, "llamacpp": 40}


class SharedModel:
    """A model with four slots, and two keys to it."""

    def __init__(self, engine: str, server: BayProcess, keys: dict[str, str]) -> None:
        self.server, self._keys = server, keys
        self._profile, self._tokens = PROFILES[engine], LONG_TOKENS[engine]

    def send_long(self, stack: ExitStack, count: int) -> list[socket.socket]:
        """Key A: this many long requests, whose answers nobody reads."""
        body = {"model": TEXT_MODEL, "prompt": self._profile.long, "max_tokens": self._tokens, "ignore_eos": True}
        data = build_request("POST", COMPLETIONS, json.dumps(body).encode(), build_headers(self._keys["a"]))
        sockets = []
        for _ in range(count):
            sockets.append(stack.enter_context(connect(self.server.port, LOAD_S)))
            sockets[-1].sendall(data)
        return sockets

    def ask_shortly(self) -> int:
        """Key B: the status of one short request."""
        body = {"model": TEXT_MODEL, "prompt": self._profile.certain, "max_tokens": 1, "temperature": 0}
        url, headers = self.server.url + COMPLETIONS, build_headers(self._keys["b"])
        return httpx.post(url, json=body, headers=headers, timeout=LOAD_S).status_code

    def count_held(self) -> float:
        """The requests that run or wait."""
        names = ("enginebay_requests_running{", "enginebay_requests_waiting{")
        text = httpx.get(f"{self.server.url}/metrics", headers=build_headers(self._keys["b"]), timeout=LOAD_S).text
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(names))


def count_answered(sockets: Sequence[socket.socket]) -> int:
    poll = select.poll()
    for sock in sockets:
        poll.register(sock, select.POLLIN)
    return len(poll.poll(0))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_short_request_waits_at_most_for_one_slot(engine: str, tmp_path: Path) -> None:
    """With 200 long ones of another key before it, no more of them end first than the model runs at once."""
    with _serve(engine, tmp_path) as model, ExitStack() as stack:
        sockets = model.send_long(stack, LONG)
        wait_until(lambda: model.count_held() + count_answered(sockets) >= LONG, 60, "200 requests")
        for _ in range(3):
            before = count_answered(sockets)
            assert model.ask_shortly() == 200
            ended = count_answered(sockets) - before
            assert ended <= 2 * SLOTS, f"{ended} of the other key's requests ended first"


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_a_full_queue_is_full_for_one_key_only(engine: str, tmp_path: Path) -> None:
    """With 2,100 requests of another key, half of them refused, a short one is admitted."""
    with _serve(engine, tmp_path) as model, ExitStack() as stack:
        sockets = model.send_long(stack, MANY)
        wait_until(lambda: count_answered(sockets) > MANY // 3, 120, "a full queue")
        assert [model.ask_shortly() for _ in range(3)] == [200] * 3


@contextmanager
def _serve(engine: str, folder: Path) -> Iterator[SharedModel]:
    file = folder / "keys.yaml"
    keys = {name: create_key(file, name)[0] for name in ("a", "b")}
    model: dict[str, Any] = {"engine": engine, engine: SETTINGS[engine]}
    if engine != "fake":
        model["source"] = PROFILES[engine].model
    config: dict[str, object] = {"models": {TEXT_MODEL: model}, "server": {"log_level": "error", "drain_s": 1}}
    with run_server(config=config, options=["--keys-file", str(file)]) as server:
        shared = SharedModel(engine, server, keys)
        assert shared.ask_shortly() == 200
        yield shared
