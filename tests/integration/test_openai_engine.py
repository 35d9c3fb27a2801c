"""The openai engine in a worker, against third-party servers: `vllm serve` and `transformers serve`."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from bench.server.native_servers import NativeServer
from bench.server.server_process import post_json
from enginebay.contract import Delta, FinishReason, GenerateRequest, Guided, Load, Sampling
from enginebay.contract.engine_messages import Done
from enginebay.errors import ContextOverflow, EngineFailed, InvalidRequest, LoadFailed
from enginebay.util.paths import runtime_dir
from enginebay.worker.client_side.worker_client import WorkerClient
from enginebay.worker.client_side.worker_process import WorkerLaunch, WorkerProcess

SETTINGS: dict[str, dict[str, Any]] = {
    "vllm": {
        "max_model_len": 512,
        "dtype": "float32",
        "max_num_seqs": 16,
        "enforce_eager": True,
        "cpu_kvcache_space_gib": 1,
    },
    "transformers": {"context_length": 512, "dtype": "float32"},
}
MESSAGES = ({"role": "user", "content": "Name three colours of the rainbow."},)
GREEDY = Sampling(temperature=0, max_tokens=16)
CHAT = GenerateRequest(messages=MESSAGES, sampling=GREEDY)


@dataclass(frozen=True, slots=True)
class Remote:
    kind: str
    url: str
    model: str

    def load(self, **settings: Any) -> Load:
        # transformers serve lists what it has cached, not what it serves.
        chosen = {"url": f"{self.url}/v1", "model": self.model, "verify": self.kind == "vllm", **settings}
        return Load("openai", "enginebay.engines.openai.engine:OpenAIEngine", "far", "", chosen)

    def ask(self, path: str, **body: Any) -> Any:
        """Return the server's own, unstreamed response."""
        return post_json(
            f"{self.url}/v1{path}", {"model": self.model, "temperature": 0, "max_tokens": 16, **body}, {}, 120
        )


@pytest.fixture(scope="module", params=list(SETTINGS))
def remote(request: pytest.FixtureRequest) -> Iterator[Remote]:
    server = NativeServer(request.param, SETTINGS[request.param])
    try:
        yield Remote(request.param, server.start(), server.model)
    finally:
        server.stop()


@contextlib.asynccontextmanager
async def _worker(remote: Remote, log: Path, **settings: Any) -> AsyncIterator[WorkerClient]:
    launch = WorkerLaunch(remote.load(**settings), Path(sys.executable), runtime_dir(), log)
    process = await WorkerProcess.start(launch)
    client = WorkerClient(process.address, process.build_death_error)
    try:
        yield client
    finally:
        await client.close()
        await process.close()


@dataclass(frozen=True, slots=True)
class Answered:
    text: str
    pieces: int
    reason: FinishReason | None
    done: Done


async def _answer(client: WorkerClient, request: GenerateRequest) -> Answered:
    events = [event async for event in client.generate(request)]
    deltas = [event for event in events if isinstance(event, Delta)]
    done = events[-1]
    assert isinstance(done, Done)
    pieces = [delta.text for delta in deltas if delta.text]
    return Answered("".join(pieces), len(pieces), deltas[-1].finish_reason, done)


async def test_a_streamed_chat_equals_the_servers_own_response(remote: Remote, tmp_path: Path) -> None:
    async with _worker(remote, tmp_path / "log") as client:
        ours = await _answer(client, CHAT)
    theirs = await asyncio.to_thread(remote.ask, "/chat/completions", messages=list(MESSAGES))
    assert ours.text == theirs["choices"][0]["message"]["content"]
    assert ours.pieces > 1
    assert ours.reason is not None and ours.reason.value == theirs["choices"][0]["finish_reason"]
    assert ours.done.usage.prompt_tokens == theirs["usage"]["prompt_tokens"]
    assert ours.done.usage.completion_tokens == theirs["usage"]["completion_tokens"]
    assert 0 < ours.done.timing.ttft_s <= ours.done.timing.total_s


async def test_a_plain_prompt(remote: Remote, tmp_path: Path) -> None:
    async with _worker(remote, tmp_path / "log") as client:
        ours = await _answer(client, GenerateRequest(text="The sky is", sampling=GREEDY))
    theirs = await asyncio.to_thread(remote.ask, "/completions", prompt="The sky is")
    assert ours.text and ours.text == theirs["choices"][0]["text"]
    assert ours.done.usage.completion_tokens == theirs["usage"]["completion_tokens"]


async def test_many_at_once(remote: Remote, tmp_path: Path) -> None:
    async with _worker(remote, tmp_path / "log") as client:
        alone = await _answer(client, CHAT)
        together = await asyncio.gather(*(_answer(client, CHAT) for _ in range(12)))
        assert all(one.text and one.reason is not None for one in together)
        assert {one.done.usage.prompt_tokens for one in together} == {alone.done.usage.prompt_tokens}
        async with asyncio.timeout(10):
            while (await client.state()).running:
                await asyncio.sleep(0.02)


async def test_disconnecting_ends_the_request(remote: Remote, tmp_path: Path) -> None:
    async with _worker(remote, tmp_path / "log") as client:
        endless = replace(CHAT, sampling=Sampling(temperature=0, max_tokens=400))
        stream = client.generate(endless)
        async for event in stream:
            if isinstance(event, Delta) and event.text:
                break
        await stream.aclose()  # type: ignore[attr-defined]
        async with asyncio.timeout(10):
            while (await client.state()).running:
                await asyncio.sleep(0.02)
        assert (await _answer(client, CHAT)).text


async def test_n_is_supported_or_refused(remote: Remote, tmp_path: Path) -> None:
    two = replace(CHAT, sampling=replace(GREEDY, temperature=0.7, n=2))  # vLLM takes n with sampling only
    async with _worker(remote, tmp_path / "log") as client:
        if remote.kind == "transformers":  # which reads n and forgets it
            with pytest.raises(EngineFailed, match="1 of 2"):
                await _answer(client, two)
            return
        events = [event async for event in client.generate(two)]
    texts = ["".join(one.text for one in events if isinstance(one, Delta) and one.choice == place) for place in (0, 1)]
    assert all(texts)


async def test_the_servers_refusal_is_reported(remote: Remote, tmp_path: Path) -> None:
    async with _worker(remote, tmp_path / "log", extras=True) as client:
        if remote.kind == "transformers":  # which knows none of vLLM's fields
            with pytest.raises(InvalidRequest, match="Unexpected fields") as refused:
                await _answer(client, CHAT)
            assert remote.url.partition("://")[2] not in str(refused.value), "clients need not know where it is"
            return
        with pytest.raises(ContextOverflow, match="512") as overflow:
            await _answer(client, GenerateRequest(text="word " * 2000, sampling=GREEDY))
        assert remote.url.partition("://")[2] not in str(overflow.value)
        assert (await _answer(client, CHAT)).text, "the worker goes on"


async def test_vllms_own_fields(remote: Remote, tmp_path: Path) -> None:
    if remote.kind != "vllm":
        pytest.skip("only vLLM has them")
    async with _worker(remote, tmp_path / "log", extras=True) as client:
        picked = await _answer(client, replace(CHAT, sampling=replace(GREEDY, guided=Guided(choice=("mauve", "teal")))))
        assert picked.text in ("mauve", "teal")
        schema = '{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}'
        shaped = await _answer(
            client, replace(CHAT, sampling=Sampling(temperature=0, max_tokens=60, guided=Guided(json=schema)))
        )
        assert shaped.text.lstrip().startswith("{")
        long = await _answer(client, replace(CHAT, sampling=replace(GREEDY, ignore_eos=True, max_tokens=100)))
        assert long.done.usage.completion_tokens == 100
        ids = await _answer(client, GenerateRequest(token_ids=(504, 6811, 314), sampling=GREEDY))
        assert ids.done.usage.prompt_tokens == 3 and ids.text
        stop = await _answer(client, replace(CHAT, sampling=replace(GREEDY, stop=(" ",))))
        assert " " not in stop.text and stop.reason is FinishReason.STOP


async def test_the_context_and_the_names_come_from_the_server(remote: Remote, tmp_path: Path) -> None:
    if remote.kind != "vllm":
        pytest.skip("transformers serve does not list what it serves")
    async with _worker(remote, tmp_path / "log") as client:
        assert (await client.facts()).context_length == 512
    with pytest.raises(LoadFailed, match=f"it has {remote.model}"):
        async with _worker(remote, tmp_path / "log", model="another"):
            pass
