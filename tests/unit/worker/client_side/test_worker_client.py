"""RPCs of the worker client: an embedding keeps its connection in use and blocks no other RPC."""

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

MANY = 100  # more than all RPC threads


class Embedder:
    """An engine whose embeddings wait for `go`."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.silent = False  # all other calls wait for it, too

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
async def connection(tmp_path: Path) -> AsyncIterator[tuple[Embedder, WorkerClient]]:
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


async def test_a_worker_busy_with_embeddings_reports_its_state(connection: tuple[Embedder, WorkerClient]) -> None:
    engine, client = connection
    pending = [asyncio.create_task(client.embed([[1]])) for _ in range(MANY)]
    while (await asyncio.wait_for(client.state(), 30)).requests < 8:  # more than the other RPCs have threads
        await asyncio.sleep(0.01)
    engine.go.set()
    assert len(await asyncio.gather(*pending)) == MANY


async def test_an_embedding_keeps_the_client_from_being_idle(connection: tuple[Embedder, WorkerClient]) -> None:
    engine, client = connection
    assert client.idle
    pending = asyncio.create_task(client.embed([[1]]))
    await asyncio.sleep(0)
    assert not client.idle
    engine.go.set()
    await pending
    assert client.idle


async def test_an_rpc_of_a_closed_client_can_be_retried(connection: tuple[Embedder, WorkerClient]) -> None:
    _, client = connection
    pending = asyncio.create_task(client.embed([[1]]))
    while (await client.state()).requests < 1:
        await asyncio.sleep(0.01)
    await client.close()
    with pytest.raises(Draining):
        await asyncio.wait_for(pending, 30)


async def test_an_rpc_can_be_cancelled(connection: tuple[Embedder, WorkerClient]) -> None:
    _, client = connection
    pending = asyncio.create_task(client.embed([[1]]))
    await asyncio.sleep(0)
    pending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pending
    assert client.idle


@pytest.mark.parametrize("method", ["state", "tokenize", "add_lora", "remove_lora"])
async def test_an_rpc_to_a_silent_worker_times_out(
    connection: tuple[Embedder, WorkerClient], method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, client = connection
    monkeypatch.setattr(client_module, "_REPLY_TIMEOUT_S", 0.2)
    monkeypatch.setattr(client_module, "_WORK_TIMEOUT_S", 0.2)
    monkeypatch.setattr(client_module, "_ADAPTER_TIMEOUT_S", 0.2)
    call = {
        "state": lambda: client.state(),
        "tokenize": lambda: client.tokenize("hello"),
        "add_lora": lambda: client.add_lora("a", "/a"),
        "remove_lora": lambda: client.remove_lora("a"),
    }[method]
    engine.silent = True
    with pytest.raises(WorkerDied, match="did not respond within"):
        await asyncio.wait_for(call(), 30)


async def test_a_lost_connection_is_known_at_once(tmp_path: Path) -> None:
    """Its reason is known a moment later. No request may be sent to the worker meanwhile."""
    accepted: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
    server = await asyncio.start_unix_server(lambda _, writer: accepted.put_nowait(writer), tmp_path / "t")
    client = WorkerClient(f"unix:{tmp_path / 's'}")
    (await accepted.get()).close()
    async with asyncio.timeout(30):
        while not client.disconnected:
            assert not client.broken
            await asyncio.sleep(0)
    await client.close()
    server.close()


async def test_a_call_that_a_stopping_worker_cancels_is_its_death(tmp_path: Path) -> None:
    """So that the request is sent to the next one. gRPC has two codes for it, depending on the moment."""

    def abort(_: object, context: grpc.ServicerContext) -> None:
        context.abort(grpc.StatusCode.CANCELLED, "CANCELLED")

    server = grpc.server(ThreadPoolExecutor(1))
    methods = {"Embed": grpc.unary_unary_rpc_method_handler(abort)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(client_module.SERVICE, methods),))
    server.add_insecure_port(f"unix:{tmp_path / 's'}")
    server.start()
    client = WorkerClient(f"unix:{tmp_path / 's'}")
    try:
        with pytest.raises(WorkerDied):
            await client.embed([[1]])
    finally:
        await client.close()
        await asyncio.to_thread(server.stop(None).wait)
