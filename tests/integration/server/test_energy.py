"""Energy per request, reported on demand. The fake engine has an energy counter of known power."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2 as httpx
import pytest

from tests.integration.server.abused_server import CHAT, COMPLETIONS, HELLO, RESPONSES, AbusedServer
from tests.integration.server.bay_process import run_server
from tests.integration.server.fake_requests import build_config
from tests.integration.server.raw_http import wait_until

pytestmark = pytest.mark.alone

IDLE_W, BUSY_W = 80.0, 380.0
TOKEN_S = 0.002
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": HELLO, "max_tokens": 20, "ignore_eos": True},
    COMPLETIONS: {"prompt": "hello", "max_tokens": 20, "ignore_eos": True},
    RESPONSES: {"input": "hello", "max_output_tokens": 20},
}
BATCH, STREAMS = 6, 12  # some always wait: the engine's batch is full in a mix as alone, however slow this client is
CLASSES = {"reads": (120, 6), "writes": (8, 24)}  # tokens in, tokens out


@pytest.fixture(scope="module")
def metered() -> Iterator[AbusedServer]:
    fake = {"idle_w": IDLE_W, "busy_w": BUSY_W, "token_s": TOKEN_S, "max_batch": BATCH, "script": "x" * 64}
    with run_server(config=build_config(fake)) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        found = AbusedServer(server, client)
        first = used(found, CHAT)
        assert "energy_j" not in first and first["energy_absent"]  # nobody had asked, so nothing is known
        wait_until(lambda: time.sleep(2) or "energy_j" in used(found, CHAT), 60, "a known idle power")
        yield found


@pytest.fixture(scope="module")
def without() -> Iterator[AbusedServer]:
    with run_server(config=build_config()) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        yield AbusedServer(server, client)


def asked(server: AbusedServer, path: str, **fields: Any) -> dict[str, Any]:
    """The usage of a whole answer."""
    answer = server.post(path, {"model": "toy", **BODIES[path], **fields})
    assert answer.status == 200, answer.body
    return dict(json.loads(answer.body)["usage"])


def used(server: AbusedServer, path: str, **fields: Any) -> dict[str, Any]:
    return dict(asked(server, path, include_energy=True, **fields)["enginebay"])


def streamed(server: AbusedServer, path: str, **fields: Any) -> list[Any]:
    """The usage of every event of a stream; False where an event says nothing of it."""
    answer = server.post(path, {"model": "toy", **BODIES[path], "stream": True, **fields})
    assert answer.status == 200, answer.body
    events = [json.loads(line[6:]) for line in answer.body.decode().splitlines() if line.startswith("data: {")]
    return [event.get("response", event).get("usage", False) for event in events]


@pytest.mark.parametrize("path", list(BODIES))
def test_a_response_reports_its_energy(metered: AbusedServer, path: str) -> None:
    started = time.monotonic()
    found = used(metered, path)
    assert set(found) == {"energy_j", "energy_idle_w"}
    assert found["energy_idle_w"] == pytest.approx(IDLE_W, rel=0.05)
    least_s = 20 * TOKEN_S
    assert (BUSY_W - IDLE_W) * least_s * 0.5 < found["energy_j"] < (BUSY_W - IDLE_W) * (time.monotonic() - started)


@pytest.mark.parametrize("path", list(BODIES))
@pytest.mark.parametrize("fields", [{"include_energy": True}, {"stream_options": {"include_energy": True}}])
def test_a_stream_reports_it_with_the_last_usage(metered: AbusedServer, path: str, fields: dict[str, Any]) -> None:
    *before, last = streamed(metered, path, **fields)
    assert last["enginebay"]["energy_j"] > 0 and not any(before)


def test_times_and_joules_together(metered: AbusedServer) -> None:
    last = streamed(metered, CHAT, stream_options={"include_energy": True, "include_timing": True})[-1]
    assert set(last["enginebay"]) == {"queue_s", "ttft_s", "total_s", "energy_j", "energy_idle_w"}


def test_several_prompts_are_one_sum(metered: AbusedServer) -> None:
    started = time.monotonic()
    many = used(metered, COMPLETIONS, prompt=["x" * 200] * 4, max_tokens=4)["energy_j"]
    least_s = 4 * 204 * TOKEN_S
    assert (BUSY_W - IDLE_W) * least_s * 0.9 < many < (BUSY_W - IDLE_W) * (time.monotonic() - started)


@pytest.mark.parametrize("path", list(BODIES))
def test_it_is_reported_only_on_demand(metered: AbusedServer, path: str) -> None:
    assert "enginebay" not in asked(metered, path)
    assert "enginebay" not in asked(metered, path, include_energy=False)


def test_in_stream_options_it_is_for_streams(metered: AbusedServer) -> None:
    for path, body in BODIES.items():
        metered.assert_refused(
            path, {"model": "toy", **body, "stream_options": {"include_energy": True}}, "stream_options"
        )


@pytest.mark.parametrize("path", list(BODIES))
def test_without_a_meter_the_reason_is_reported(without: AbusedServer, path: str) -> None:
    found = used(without, path)
    assert set(found) == {"energy_absent"} and len(found["energy_absent"]) > 10


def load(server: AbusedServer, kinds: Sequence[str]) -> dict[str, float]:
    """Joules per token of each class. A machine that stalls lets those at work then pay for it: the best of a few tries."""
    tries: list[tuple[float, dict[str, float]]] = []
    while len(tries) < 3 and not (tries and tries[-1][0] < 1.1):
        tries.append(load_once(server, kinds))
    return min(tries, key=lambda one: one[0])[1]


def load_once(server: AbusedServer, kinds: Sequence[str]) -> tuple[float, dict[str, float]]:
    """With as many in flight whatever they are; and how many times longer than it had to the engine worked."""

    def one(kind: str) -> tuple[str, int, float]:
        tokens_in, tokens_out = CLASSES[kind]
        found = asked(
            server, COMPLETIONS, prompt="p" * tokens_in, max_tokens=tokens_out, include_energy=True
        )  # fmt: skip
        assert found["prompt_tokens"] == tokens_in and found["completion_tokens"] == tokens_out
        return kind, found["total_tokens"], found["enginebay"]["energy_j"]

    started = time.monotonic()
    with ThreadPoolExecutor(STREAMS) as threads:
        found = list(threads.map(one, kinds))
    most_s, least_s = time.monotonic() - started, TOKEN_S * sum(tokens for _, tokens, _ in found)
    worked_s = sum(joules for _, _, joules in found) / (BUSY_W - IDLE_W)  # the power is the same whenever there is work
    assert 0.97 * least_s < worked_s < 1.03 * most_s, (least_s, worked_s, most_s)
    joules, tokens = dict.fromkeys(kinds, 0.0), dict.fromkeys(kinds, 0)
    for kind, count, used_j in found:
        joules[kind] += used_j
        tokens[kind] += count
    return worked_s / least_s, {kind: joules[kind] / tokens[kind] for kind in joules}


@pytest.mark.slow
def test_a_class_of_requests_costs_the_same_in_a_mix_as_alone(metered: AbusedServer) -> None:
    """Long prompts with short answers, and the other way round."""
    alone = load(metered, ["reads"] * 24) | load(metered, ["writes"] * 48)
    mixed = load(metered, ["reads", "writes"] * 20)
    for kind, joules in mixed.items():
        assert joules == pytest.approx(alone[kind], rel=0.15), (kind, alone, mixed)
