"""A request that kills workers is refused; honest ones beside it are answered, and the model stays."""

from __future__ import annotations

import json
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from enginebay.server.auth.api_keys import create_key
from tests.integration.server.abused_server import COMPLETIONS, EMBEDDINGS
from tests.integration.server.bay_process import BayProcess, run_server
from tests.integration.server.fake_requests import build_bearer, build_config
from tests.integration.server.raw_http import RawResponse, assert_error, wait_until

POISON = "deadly"


@contextmanager
def serve(
    fleet: dict[str, object], fake: dict[str, object], **server: object
) -> Iterator[tuple[BayProcess, dict[str, str]]]:
    """A server with the keys `good` and `bad`."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "keys.yaml"
        keys = {name: create_key(file, name)[0] for name in ("good", "bad")}
        config = build_config(fake, keys_file=str(file), log_format="json", **server)
        with run_server(config={**config, "fleet": fleet}) as found:
            yield found, keys


def send(server: BayProcess, key: str, prompt: str, max_tokens: int = 4) -> RawResponse:
    return post(server, key, COMPLETIONS, {"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True})


def post(server: BayProcess, key: str, path: str, body: dict[str, Any]) -> RawResponse:
    url = f"http://127.0.0.1:{server.port}{path}"
    found = httpx.post(url, json={"model": "toy", **body}, headers=build_bearer(key), timeout=120)
    return RawResponse(found.status_code, dict(found.headers), found.content)


def read_events(server: BayProcess, event: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in server.read_log().splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] == event]


class HonestClients:
    """Clients that send one request after the other, each with its own prompt."""

    def __init__(self, server: BayProcess, key: str, count: int = 4) -> None:
        self.answers: list[RawResponse] = []
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(server, key, number)) for number in range(count)]

    def _run(self, server: BayProcess, key: str, number: int) -> None:
        while not self._stopping.is_set():
            self.answers.append(send(server, key, f"hello {number}", max_tokens=20))

    def __enter__(self) -> HonestClients:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_poison_beside_honest_clients(workers: int) -> None:
    """Five different ones, where three deaths would be a crash loop."""
    fake = {"step_s": 0.005, "crash_on_prompt": POISON}
    with serve({"restarts": 2}, fake, workers=workers) as (server, keys):
        with HonestClients(server, keys["good"]) as honest:
            for number in range(5):
                error = assert_error(send(server, keys["bad"], f"{POISON} {number}"), 422)
                assert error["code"] == "poison_request"
        assert {answer.status for answer in honest.answers} == {200} and len(honest.answers) >= 4
        deaths = read_events(server, "worker died")
        assert 10 <= len(deaths) <= 15 and not any(death.get("crash_loop") for death in deaths)
        convicted = read_events(server, "a request killed its worker twice and is refused from now on")
        assert [line["key"] for line in convicted] == ["bad"] * 5
        for _ in range(2 * workers):  # also in the other process
            assert_error(send(server, keys["good"], f"{POISON} 3"), 422)
        assert len(read_events(server, "worker died")) == len(deaths), "it never reaches a worker again"
        assert send(server, keys["bad"], "harmless").status == 200


def test_poison_on_an_idle_server_kills_two_workers() -> None:
    with serve({}, {"crash_on_prompt": POISON}) as (server, keys):
        assert_error(send(server, keys["bad"], POISON), 422)
        wait_until(lambda: len(read_events(server, "worker died")) >= 2, 20, "word of both")
        assert send(server, keys["good"], "hello").status == 200
        assert len(read_events(server, "worker died")) == 2
        assert send(server, keys["good"], "hello").status == 200


def test_a_request_that_hangs_the_engine_is_refused_too() -> None:
    with serve({"hang_s": 1}, {"hang_on_prompt": POISON}) as (server, keys):
        assert_error(send(server, keys["bad"], POISON), 422)
        wait_until(lambda: len(read_events(server, "worker died")) >= 2, 20, "word of both")
        assert [death["cause"] for death in read_events(server, "worker died")] == ["hang", "hang"]
        assert send(server, keys["good"], "hello").status == 200


def test_an_engine_that_crashes_on_everything_is_a_crash_loop() -> None:
    """Then it is the model that fails, and no request is to blame."""
    with serve({"restarts": 2, "backoff_s": 0.05}, {"crash_after_tokens": 3}) as (server, keys):
        for number in range(2):
            assert assert_error(send(server, keys["good"], f"hello {number}", max_tokens=20), 503)["code"]
        assert any(death.get("crash_loop") for death in read_events(server, "worker died"))
        assert not read_events(server, "a request killed its worker twice and is refused from now on")


def test_a_text_to_embed_can_be_poison() -> None:
    with serve({}, {"crash_on_prompt": POISON}) as (server, keys):
        assert_error(post(server, keys["bad"], EMBEDDINGS, {"input": ["hello", POISON]}), 422)
        wait_until(lambda: len(read_events(server, "worker died")) >= 2, 20, "word of both")
        assert post(server, keys["good"], EMBEDDINGS, {"input": ["hello"]}).status == 200
