"""Streams whose worker is killed: they continue on the next one, and their clients only see a pause."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2 as httpx

from tests.integration.fleet.server_site import ServerSite, find_worker, read_worker_deaths
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


async def test_a_hundred_kills_change_no_stream(site: ServerSite) -> None:
    """Every text, tool call, logprob, count and finish reason is the one of an undisturbed request."""
    names, rounds, dice = ["a", "b", "c", "d"], 25, random.Random(21)
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
            assert await read_metric(client, "enginebay_requests_resumed_total") >= 100
        assert len(read_worker_deaths(server)) == len(names) * rounds
