"""Streams whose worker is killed: they continue on the next one, and their clients only see a pause."""

from __future__ import annotations

import asyncio
import json
import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx2 as httpx
import pytest

from tests.integration.fleet.server_site import (
    ServerSite,
    find_worker,
    find_workers,
    read_worker_deaths,
    wait_another_worker,
)
from tests.integration.fleet.streamed_answers import CHAT, COMPLETIONS, RESPONSES, StreamedAnswer, StreamReader
from tests.integration.server.bay_process import BayProcess, run_server

# Restart at once and without limit: here the test causes the crashes.
PATIENT = {"restarts": 1000, "backoff_s": 0.05, "backoff_max_s": 0.1}
CALM = "calm"  # a model whose worker is never killed
CALL = '<tool_call>\n{"name": "find", "arguments": {"city": "Zürich", "days": [1, 2, 3]}}\n</tool_call>'
SCRIPTS = {
    "accents": "naïve façade 🙂🙃 ЖЖЖ 漢字 über — Ωmega " * 3,
    "tool": f"Let me see. {CALL}",
    "stop": "one two sto sto- stop: never shown",
}
FAKE = {"step_s": 0.003, "script_by_prompt": SCRIPTS}
FIND = {"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}
SCHEMA = {
    "type": "object",
    "properties": {name: {"type": "string"} for name in ("first", "second", "third")},
    "required": ["first", "second", "third"],
}

# Endpoint and body of each kind of request; `{}` in a prompt is a number, so that no two requests are the same.
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "greedy": (COMPLETIONS, {"prompt": "{} hello", "temperature": 0, "max_tokens": 60, "ignore_eos": True}),
    "penalties": (
        COMPLETIONS,
        {
            "prompt": "{} hello", "temperature": 0, "max_tokens": 60, "min_tokens": 40,
            "frequency_penalty": 0.7, "presence_penalty": 0.3, "repetition_penalty": 1.2,
        },
    ),
    "seeded": (COMPLETIONS, {"prompt": "{} hi", "temperature": 1, "seed": 7, "max_tokens": 60, "ignore_eos": True}),
    "accents": (COMPLETIONS, {"prompt": "{} accents", "max_tokens": 500}),
    "stop": (CHAT, {"messages": [{"role": "user", "content": "{} stop"}], "stop": ["stop:", "never"]}),
    "logprobs": (
        CHAT,
        {
            "messages": [{"role": "user", "content": "{} hello"}], "temperature": 0, "max_tokens": 60,
            "logprobs": True, "top_logprobs": 2, "ignore_eos": True,
        },
    ),
    "tool": (CHAT, {"messages": [{"role": "user", "content": "{} tool"}], "tools": [FIND]}),
    "schema": (
        CHAT,
        {
            "messages": [{"role": "user", "content": "{} hello"}],
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
        },
    ),
    "response": (RESPONSES, {"input": "{} accents", "max_output_tokens": 400}),
}  # fmt: skip


def number_request(body: dict[str, Any], number: int) -> dict[str, Any]:
    return json.loads(json.dumps(body).replace("{}", f"{number:04}"))  # type: ignore[no-any-return]


@contextmanager
def serve(site: ServerSite, names: list[str], fake: dict[str, Any] = FAKE, **server: Any) -> Iterator[BayProcess]:
    models = {name: {"engine": "fake", "tool_format": "hermes", "fake": fake} for name in names}
    config: dict[str, object] = {"models": models, "fleet": PATIENT, "server": server}
    with run_server(config=config, environ=site.alone) as server_process:
        yield server_process


async def kill_in_a_stream(
    server: BayProcess, client: httpx.AsyncClient, model: str, kinds: list[str], number: int, dice: random.Random
) -> list[StreamedAnswer]:
    """Send one request of each kind, and kill the worker a moment after the first has begun."""
    readers = [
        StreamReader(client, path, {**number_request(body, number), "model": model})
        for path, body in (REQUESTS[kind] for kind in kinds)
    ]
    reading = [asyncio.create_task(reader.read()) for reader in readers]
    await readers[0].begun.wait()
    await asyncio.sleep(dice.uniform(0, 0.12))
    find_worker(server, model).kill()
    return await asyncio.gather(*reading)


async def read_metric(client: httpx.AsyncClient, name: str) -> float:
    lines = (await client.get("/metrics")).text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


@pytest.mark.parametrize("rounds", [3, pytest.param(25, marks=pytest.mark.slow)])
async def test_kills_change_no_stream(site: ServerSite, rounds: int) -> None:
    """Every text, tool call, logprob, count and finish reason is the one of an undisturbed request."""
    names, dice = ["a", "b", "c", "d"], random.Random(21)
    with serve(site, [CALM, *names]) as server:
        async with httpx.AsyncClient(base_url=server.url, limits=httpx.Limits(max_connections=None)) as client:
            calm = {
                kind: (await StreamReader(client, path, {**number_request(body, 0), "model": CALM}).read()).normalize()
                for kind, (path, body) in REQUESTS.items()
            }

            async def run_rounds(model: str) -> None:
                for number in range(rounds):
                    kinds = dice.sample(list(REQUESTS), 2)
                    answers = await kill_in_a_stream(server, client, model, kinds, number, dice)
                    for kind, answer in zip(kinds, answers, strict=True):
                        assert answer.normalize() == calm[kind], f"{kind} in round {number}"

            await asyncio.gather(*map(run_rounds, names))
            assert await read_metric(client, "enginebay_requests_resumed_total") >= len(names) * rounds
        assert len(read_worker_deaths(server)) == len(names) * rounds


async def send_and_kill(
    server: BayProcess, client: httpx.AsyncClient, body: dict[str, Any], *after_s: float
) -> StreamedAnswer:
    """Send a completion, and kill its worker so long after its first output, and after the first since then."""
    reader = StreamReader(client, COMPLETIONS, {"model": "toy", "prompt": "hello", "ignore_eos": True, **body})
    reading = asyncio.create_task(reader.read())
    for pause_s in after_s:
        await reader.begun.wait()
        await asyncio.sleep(pause_s)
        known = {worker.pid for worker in find_workers(server)}
        find_worker(server).kill()
        await wait_another_worker(server, known)
        reader.begun.clear()
    return await reading


@pytest.mark.slow
async def test_which_responses_are_resumed(site: ServerSite) -> None:
    slow = {"step_s": 0.01}
    models = {
        "toy": {"engine": "fake", "fake": slow},
        "fixed": {"engine": "fake", "fake": slow, "resume": False},
    }
    config: dict[str, object] = {"models": models, "fleet": PATIENT, "server": {"log_format": "json"}}
    with run_server(config=config, environ=site.alone) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            whole = await send_and_kill(server, client, {"max_tokens": 40, "prompt": "one kill"}, 0.05)
            assert (whole.finish_reasons, whole.usage["completion_tokens"], whole.errors) == (["length"], 40, [])
            alone_s = 2.5  # longer than it runs alone after the first death: the second does not prove it guilty
            twice = await send_and_kill(server, client, {"max_tokens": 600, "prompt": "two kills"}, 0.05, alone_s)
            assert [error["code"] for error in twice.errors] == ["engine_unavailable"], "it may be the cause"
            several = await send_and_kill(server, client, {"max_tokens": 60, "n": 2, "prompt": "two choices"}, 0.05)
            assert [error["code"] for error in several.errors] == ["engine_unavailable"]

            reader = StreamReader(client, COMPLETIONS, {"model": "fixed", "prompt": "hello", "max_tokens": 100})
            reading = asyncio.create_task(reader.read())
            await reader.begun.wait()
            find_worker(server, "fixed").kill()
            assert [error["code"] for error in (await reading).errors] == ["engine_unavailable"]

            unstreamed = {"model": "toy", "prompt": "a whole one", "max_tokens": 60, "ignore_eos": True}
            await client.post(COMPLETIONS, json={**unstreamed, "max_tokens": 1})  # its worker is ready
            asking = asyncio.create_task(client.post(COMPLETIONS, json=unstreamed))
            await asyncio.sleep(0.3)
            find_worker(server).kill()
            found = (await asking).json()
            assert found["usage"]["completion_tokens"] == 60 and found["choices"][0]["finish_reason"] == "length"
            assert await read_metric(client, "enginebay_requests_resumed_total") == 3
        records = [json.loads(line) for line in server.read_log().splitlines() if '"event":"request"' in line]
        resumed = [record.get("resumed") for record in records if record["endpoint"] == "completions"]
        assert resumed == [1, 1, None, None, None, 1]


async def test_a_poison_stream_ends_after_two_deaths(site: ServerSite) -> None:
    """The control request of its trial takes 32 tokens."""
    with serve(site, ["toy"], {"step_s": 0.002, "crash_after_tokens": 60}) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            body = {"model": "toy", "prompt": "poison", "max_tokens": 500, "ignore_eos": True}
            answer = await StreamReader(client, COMPLETIONS, body).read()
            assert len(answer.text) > 60 and [error["code"] for error in answer.errors] == ["poison_request"]
            again = await StreamReader(client, COMPLETIONS, body).read()
            assert again.text == "" and [error["code"] for error in again.errors] == ["poison_request"]
        assert len(read_worker_deaths(server)) == 2


@pytest.mark.slow
async def test_clients_that_leave_or_run_out_of_time_in_the_pause(site: ServerSite) -> None:
    fake = {"step_s": 0.01, "load_s": 2.0}
    with serve(site, ["toy"], fake, limits={"request_timeout_s": 1.5}) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            late = await send_and_kill(server, client, {"max_tokens": 1000, "prompt": "late"}, 0.05)
            assert [error["code"] for error in late.errors] == ["timeout"]

            reader = StreamReader(client, COMPLETIONS, {"model": "toy", "prompt": "gone", "max_tokens": 1000})
            reading = asyncio.create_task(reader.read())
            await reader.begun.wait()
            find_worker(server).kill()
            await asyncio.sleep(0.5)
            reading.cancel()
            after = await StreamReader(client, COMPLETIONS, {"model": "toy", "prompt": "after"}).read()
            assert after.ends == ["[DONE]"]
            assert await read_metric(client, "enginebay_requests_running") == 0
            assert await read_metric(client, "enginebay_requests_waiting") == 0


@pytest.mark.slow
async def test_a_client_that_reads_nothing_in_the_pause_gets_the_whole_stream(site: ServerSite) -> None:
    body = {"model": "toy", "prompt": "slow", "max_tokens": 3000, "temperature": 0, "ignore_eos": True}
    with serve(site, ["toy"], {"step_s": 0.0005}) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            calm = (await StreamReader(client, COMPLETIONS, body).read()).text
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect(("127.0.0.1", server.port))
            data = json.dumps({**body, "stream": True}).encode()
            head = f"POST {COMPLETIONS} HTTP/1.0\r\ncontent-length: {len(data)}\r\n\r\n".encode()
            connection.sendall(head + data)
            await asyncio.sleep(0.7)
            find_worker(server).kill()
            await asyncio.sleep(3)
            connection.settimeout(30)
            received = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
    events = [json.loads(line[6:]) for line in received.splitlines() if line.startswith("data: {")]
    assert received.rstrip().endswith("data: [DONE]")
    assert "".join(event["choices"][0]["text"] for event in events) == calm


@dataclass(frozen=True)
class RealCase:
    engine: str
    kills: int
    settings: dict[str, Any]


LLAMACPP = {"context_length": 1024, "max_batch": 8}
VLLM = {
    "max_model_len": 1024, "dtype": "float32", "max_num_seqs": 8, "enforce_eager": True, "cpu_kvcache_space_gib": 1,
}  # fmt: skip
CASES = [
    RealCase("llamacpp", 4, LLAMACPP),
    *(
        pytest.param(case, marks=pytest.mark.exhaustive)
        for case in (RealCase("llamacpp", 20, LLAMACPP), RealCase("transformers", 5, {}), RealCase("vllm", 5, VLLM))
    ),
]
CITY = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "days": {"type": "integer", "minimum": 1, "maximum": 99},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
FIND_CITY = {"type": "function", "function": {"name": "find", "parameters": CITY}}
REAL_REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "greedy": (COMPLETIONS, {"prompt": "{}: The capital of France is", "temperature": 0, "max_tokens": 24, "ignore_eos": True}),
    "sampled": (COMPLETIONS, {"prompt": "{}: Once upon a time", "temperature": 1, "max_tokens": 24, "ignore_eos": True}),
    "schema": (
        CHAT,
        {
            "messages": [{"role": "user", "content": "{}: Name a city, and how many days to stay."}], "temperature": 1,
            "max_tokens": 80, "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": CITY}},
        },
    ),
    "tool": (
        CHAT,
        {
            "messages": [{"role": "user", "content": "{}: Find a city."}], "temperature": 0, "max_tokens": 80,
            "tools": [FIND_CITY], "tool_choice": {"type": "function", "function": {"name": "find"}},
        },
    ),
}  # fmt: skip


def check_real_answer(kind: str, answer: StreamedAnswer, greedy: StreamedAnswer) -> None:
    assert answer.errors == [] and answer.ends == ["[DONE]"] and len(answer.finish_reasons) == 1
    if kind in ("greedy", "sampled"):
        assert (answer.finish_reasons, answer.usage["completion_tokens"]) == (["length"], 24)
        assert kind == "sampled" or answer.text == greedy.text
        return
    [found] = [json.loads(answer.text)] if kind == "schema" else answer.arguments
    assert set(found) == {"city", "days"} and len(found["city"]) <= 20 and 1 <= found["days"] <= 99


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.engine}-{case.kills}")
async def test_kills_on_a_real_engine(case: RealCase, site: ServerSite) -> None:
    """Greedy texts stay the same, sampled ones are complete, JSON and tool calls are valid."""
    model = {"engine": case.engine, "source": "smollm2", "tool_format": "hermes", case.engine: case.settings}
    config: dict[str, object] = {"models": {"toy": model}, "fleet": PATIENT}
    dice, kinds = random.Random(21), list(REAL_REQUESTS)
    with run_server(config=config, environ=site.environ) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=300) as client:
            for number in range(case.kills):
                path, body = REAL_REQUESTS["greedy"]
                calm = await StreamReader(client, path, {**number_request(body, number), "model": "toy"}).read()
                first, second = kinds[number % 4], kinds[(number + 1) % 4]
                readers = [
                    StreamReader(client, path, {**number_request(body, number), "model": "toy"})
                    for path, body in (REAL_REQUESTS[kind] for kind in (first, second))
                ]
                reading = [asyncio.create_task(reader.read()) for reader in readers]
                await readers[0].begun.wait()
                await asyncio.sleep(dice.uniform(0, 0.3))
                find_worker(server).kill()
                for kind, answer in zip((first, second), await asyncio.gather(*reading), strict=True):
                    check_real_answer(kind, answer, calm)
            assert await read_metric(client, "enginebay_requests_resumed_total") >= case.kills * 0.8
        assert len(read_worker_deaths(server)) == case.kills
