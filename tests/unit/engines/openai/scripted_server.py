"""A scripted server, and a sink that records its calls."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from enginebay.contract import FinishReason, GenerateRequest, Load, Sampling, TokenLogprobs
from enginebay.engines.openai.engine import OpenAIEngine
from enginebay.errors import EnginebayError

MODEL = "far-away"
HELLO = GenerateRequest(messages=({"role": "user", "content": "hello"},), sampling=Sampling(max_tokens=8))
KEY = "sk-very-secret-0123456789"


@dataclass(slots=True)
class ReceivedRequest:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Answering = Callable[[ReceivedRequest, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class ScriptedServer:
    """Responds with its scripts in order: bytes, or a function that writes. Repeats the last one."""

    scripts: list[bytes | Answering]
    asked: list[ReceivedRequest] = field(default_factory=list)
    connections: int = 0
    gone: asyncio.Event = field(default_factory=asyncio.Event)  # a client closed its connection
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while (asked := await _read_request(reader)) is not None:
                self.asked.append(asked)
                script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
                if isinstance(script, bytes):
                    writer.write(script)
                    await writer.drain()
                else:
                    await script(asked, writer)
                if writer.is_closing():
                    break
        except ConnectionError:
            pass
        finally:
            self.gone.set()
            writer.close()


async def _read_request(reader: asyncio.StreamReader) -> ReceivedRequest | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.strip().split("\r\n")
    method, path, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return ReceivedRequest(method, path, headers, body)


@contextlib.asynccontextmanager
async def run_scripted_server(*scripts: bytes | Answering) -> AsyncIterator[ScriptedServer]:
    server = ScriptedServer(list(scripts))
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()


# What servers say


def encode_events(*chunks: Any, done: bool = True) -> bytes:
    """Chunks as server-sent events."""
    said = b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks)
    return said + (b"data: [DONE]\n\n" if done else b"")


def build_delta(choice: int = 0, finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": choice, "delta": fields, "finish_reason": finish}]}


def build_usage(prompt: int, completion: int, cached: int = 0) -> dict[str, Any]:
    counts = {"prompt_tokens": prompt, "completion_tokens": completion}
    return {"choices": [], "usage": {**counts, "prompt_tokens_details": {"cached_tokens": cached}}}


USUAL = encode_events(build_delta(role="assistant", content=""), build_delta(content="Hi "), build_delta(content="there"),
               build_delta(finish="stop"), build_usage(7, 2, 3))  # fmt: skip


def build_head(status: int = 200, kind: str = "text/event-stream", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} Whatever", f"Content-Type: {kind}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def encode_chunked(body: bytes, size: int = 1 << 20) -> bytes:
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def build_stream(body: bytes = USUAL, size: int = 1 << 20) -> bytes:
    return build_head(transfer_encoding="chunked") + encode_chunked(body, size)


def build_response(status: int, body: Any = None, kind: str = "application/json", **headers: str) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return build_head(status, kind, content_length=str(len(data)), **headers) + data


def build_models(*names: str, **fields: Any) -> bytes:
    return build_response(200, {"object": "list", "data": [{"id": name, **fields} for name in names]})


def make_slow_writer(data: bytes, size: int, pause_s: float = 0.0) -> Answering:
    async def write(_: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        for at in range(0, len(data), size):
            writer.write(data[at : at + size])
            await writer.drain()
            await asyncio.sleep(pause_s)

    return write


def make_closing_writer(data: bytes) -> Answering:
    async def write(_: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()
        writer.close()

    return write


def make_hanging_writer(data: bytes) -> Answering:
    async def write(_: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()
        await asyncio.sleep(30)

    return write


# The engine


class RecordingSink:
    """Records all output by request; `flush` marks what was sent together."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self.said: list[tuple[Any, ...]] = []

    def _record(self, *what: Any) -> None:
        self.said.append(what)
        self._loop.call_soon_threadsafe(self._changed.set)

    def accepted(self, number: int, prompt_tokens: int, cached_tokens: int = 0) -> None:
        self._record("accepted", number, prompt_tokens)

    def token(
        self, number: int, text: str, token_ids: Sequence[int], choice: int = 0, logprobs: Sequence[TokenLogprobs] = ()
    ) -> None:
        assert not token_ids and not logprobs
        self._record("token", number, choice, text)

    def finish(self, number: int, reason: FinishReason, choice: int = 0, stop_reason: str | int | None = None) -> None:
        self._record("finish", number, choice, reason, stop_reason)

    def usage(self, number: int, prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0) -> None:
        self._record("usage", number, prompt_tokens, completion_tokens, cached_tokens)

    def error(self, number: int, error: EnginebayError) -> None:
        self._record("error", number, error)

    def flush(self) -> None:
        self._record("flush")

    def select(self, kind: str, number: int = 1) -> list[tuple[Any, ...]]:
        return [one[2:] for one in self.said if one[0] == kind and one[1] == number]

    def text(self, number: int = 1, choice: int = 0) -> str:
        return "".join(text for place, text in self.select("token", number) if place == choice)

    def get_failure(self, number: int = 1) -> EnginebayError:
        (found,) = self.select("error", number)
        error: EnginebayError = found[0]
        return error

    async def wait_until(self, condition: Callable[[], bool], within_s: float = 30.0) -> None:
        async with asyncio.timeout(within_s):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def wait_ended(self, number: int = 1, choices: int = 1) -> None:
        await self.wait_until(
            lambda: len(self.select("finish", number)) == choices or bool(self.select("error", number))
        )


@contextlib.asynccontextmanager
async def open_engine(server: ScriptedServer, **settings: Any) -> AsyncIterator[tuple[OpenAIEngine, RecordingSink]]:
    """With verify off, so that every script serves a request."""
    chosen = {"url": server.url, "verify": False, **settings}
    load = Load("openai", "", MODEL, "", chosen)
    engine = await asyncio.to_thread(OpenAIEngine, load)
    sink = RecordingSink()
    engine.start(sink)
    try:
        yield engine, sink
    finally:
        await asyncio.to_thread(engine.close)


async def run_script(
    script: bytes | Answering, request: GenerateRequest = HELLO, **settings: Any
) -> tuple[RecordingSink, ScriptedServer]:
    """One request, one script."""
    async with run_scripted_server(script) as server, open_engine(server, **settings) as (engine, sink):
        engine.submit(1, request)
        await sink.wait_ended(1, request.sampling.n)
        assert await _wait_until(lambda: engine.running() == 0)
    return sink, server


async def _wait_until(condition: Callable[[], bool]) -> bool:
    for _ in range(2000):
        if condition():
            return True
        await asyncio.sleep(0.01)
    return False
