"""Questions over gRPC: an embedding holds its session open, and keeps no other question waiting."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from enginebay.contract import Embedding
from enginebay.errors import Draining, WorkerDied
from enginebay.worker.client_side import worker_client as client_module
from enginebay.worker.client_side.worker_client import WorkerClient
from enginebay.worker.engine_side.request_table import RequestTable
from enginebay.worker.engine_side.servicer import WorkerServicer, build_handlers

MANY = 100  # more than there are threads for embeddings, and for all else


class Embedder:
    """An engine whose embeddings wait until they are let go."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.silent = False  # whatever it is asked, it says nothing until then either

    def running(self) -> int:
        assert not self.silent or self.go.wait(60)
        return 0

    def tokenize(self, text: str, add_special: bool) -> list[int]:
        return [self.running()]

    def add_lora(self, name: str, path: str) -> None:
        self.running()

    def remove_lora(self, name: str) -> None:
        self.running()

    def embed(self, inputs: Sequence[Sequence[int]]) -> Embedding:
        assert self.go.wait(60)
        return Embedding(((1.0, 0.0),) * len(inputs), 1)


@pytest.fixture
async def asking(tmp_path: Path) -> AsyncIterator[tuple[Embedder, WorkerClient]]:
    engine = Embedder()
    server = grpc.server(ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((build_handlers(WorkerServicer(engine, RequestTable(engine))),))  # type: ignore[arg-type]
    server.add_insecure_port(f"unix:{tmp_path / 's'}")
    server.start()
    client = WorkerClient(f"unix:{tmp_path / 's'}")
    try:
        yield engine, client
    finally:
        engine.go.set()
        await client.close()
        await asyncio.to_thread(server.stop(None).wait)


async def test_a_worker_full_of_embeddings_tells_its_state(asking: tuple[Embedder, WorkerClient]) -> None:
    engine, client = asking
    under_way = [asyncio.create_task(client.embed([[1]])) for _ in range(MANY)]
    while (await asyncio.wait_for(client.state(), 30)).requests < 8:  # more than the other questions have threads
        await asyncio.sleep(0.01)
    engine.go.set()
    assert len(await asyncio.gather(*under_way)) == MANY


async def test_an_embedding_keeps_its_session_from_being_idle(asking: tuple[Embedder, WorkerClient]) -> None:
    engine, client = asking
    assert client.idle
    under_way = asyncio.create_task(client.embed([[1]]))
    await asyncio.sleep(0)
    assert not client.idle
    engine.go.set()
    await under_way
    assert client.idle


async def test_a_question_whose_session_is_closed_is_to_be_asked_again(asking: tuple[Embedder, WorkerClient]) -> None:
    _, client = asking
    under_way = asyncio.create_task(client.embed([[1]]))
    while (await client.state()).requests < 1:
        await asyncio.sleep(0.01)
    await client.close()
    with pytest.raises(Draining):
        await asyncio.wait_for(under_way, 30)


async def test_a_question_that_is_called_off_is_called_off(asking: tuple[Embedder, WorkerClient]) -> None:
    _, client = asking
    under_way = asyncio.create_task(client.embed([[1]]))
    await asyncio.sleep(0)
    under_way.cancel()
    with pytest.raises(asyncio.CancelledError):
        await under_way
    assert client.idle


@pytest.mark.parametrize("question", ["state", "tokenize", "add_lora", "remove_lora"])
async def test_nobody_waits_for_ever_for_a_silent_worker(
    asking: tuple[Embedder, WorkerClient], question: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, client = asking
    monkeypatch.setattr(client_module, "_REPLY_TIMEOUT_S", 0.2)
    monkeypatch.setattr(client_module, "_WORK_TIMEOUT_S", 0.2)
    monkeypatch.setattr(client_module, "_ADAPTER_TIMEOUT_S", 0.2)
    ask = {
        "state": lambda: client.state(),
        "tokenize": lambda: client.tokenize("hello"),
        "add_lora": lambda: client.add_lora("a", "/a"),
        "remove_lora": lambda: client.remove_lora("a"),
    }[question]
    engine.silent = True
    with pytest.raises(WorkerDied, match="did not answer within"):
        await asyncio.wait_for(ask(), 30)
