"""The openai engine: forwards requests to a remote server. One thread with an event loop serves all streams."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from enginebay import __version__
from enginebay.contract import Embedding, Facts, GenerateRequest, Load, Probe, Sink, Stats
from enginebay.engines.openai.model_listing import ListedModel, fetch_listed_model
from enginebay.engines.openai.remote_client import RemoteClient
from enginebay.engines.openai.remote_server import parse_remote_server, resolve_settings
from enginebay.engines.openai.request_body import OpenAIBodyBuilder
from enginebay.engines.openai.spec import EXTRA_PARAMETERS, EXTRAS, SPEC
from enginebay.errors import EnginebayError, EngineFailed, LoadFailed, Unsupported
from enginebay.meters.sample import Absent

_log = logging.getLogger(__name__)
_CLOSE_TIMEOUT_S = 5.0


@dataclass(eq=False, slots=True)
class _RemoteRequest:
    """A submitted request that has not finished."""

    number: int
    path: str
    body: bytes
    choices: int
    prompt_tokens: int
    task: asyncio.Task[None] | None = None


class OpenAIEngine:
    """Implements `contract.Engine` for a model on a remote server."""

    def __init__(self, load: Load) -> None:
        if load.task != "generate":
            raise LoadFailed(
                "the openai engine only supports task: generate", f"use a local engine for task: {load.task}"
            )
        if load.loras:
            raise LoadFailed("the openai engine does not support adapters", SPEC.request["lora"].detail)
        self._load = load
        self._settings = resolve_settings(load)
        self._server = parse_remote_server(load)
        listed = asyncio.run(fetch_listed_model(self._server)) if self._settings["verify"] else ListedModel()
        self._context_length: int = self._settings["context_length"] or listed.context_length
        self._warnings = (*self._server.warnings, *listed.warnings)
        self._body_builder = OpenAIBodyBuilder(
            self._server.model,
            self._context_length,
            self._settings["extras"],
            self._settings["neutral"],
            self._settings["max_tokens_name"],
        )
        self._thread: threading.Thread | None = None
        self._active: dict[int, _RemoteRequest] = {}
        self._waiting: deque[_RemoteRequest] = deque()  # from here on: used only in the loop's thread
        self._running: set[_RemoteRequest] = set()

    @classmethod
    def probe(cls) -> Probe:
        return Probe(version=__version__)

    def start(self, sink: Sink) -> None:
        self._sink = sink
        self._client = RemoteClient(self._server)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="remote", daemon=True)
        self._thread.start()

    def facts(self) -> Facts:
        effective = {**self._settings, "model": self._server.model, "context_length": self._context_length or None}
        return Facts(
            kind=self._load.kind,
            version=__version__,
            model=self._load.model,
            context_length=self._context_length,
            max_batch=self._settings["max_batch"],
            memory_bytes=0,
            asked=dict(self._load.settings),
            effective=effective,
            warnings=self._warnings,
            refused={} if self._settings["extras"] else dict.fromkeys(EXTRA_PARAMETERS, EXTRAS),
        )

    def meter(self) -> Absent:
        return Absent("openai", "the model runs on a remote server")

    # Called by the worker's threads

    def submit(self, number: int, request: GenerateRequest) -> None:
        path, body = self._body_builder.build(request)
        call = _RemoteRequest(number, path, body, request.sampling.n, len(request.token_ids or ()))
        self._active[number] = call
        self._loop.call_soon_threadsafe(self._enqueue, call)

    def cancel(self, number: int) -> None:
        call = self._active.pop(number, None)
        if call is not None:
            self._loop.call_soon_threadsafe(self._cancel_request, call)

    def embed(self, inputs: Sequence[Sequence[int]]) -> Embedding:
        raise Unsupported("openai does not support embeddings", SPEC.request["embeddings"].detail, param="embeddings")

    def tokenize(self, text: str, add_special: bool) -> list[int]:
        raise Unsupported("the tokenizer of a remote model is unknown", "tokenize on the remote server")

    def running(self) -> int:
        return len(self._active)

    def stats(self) -> Stats:
        return Stats(waiting=len(self._waiting))

    def close(self) -> None:
        if self._thread is None:
            return
        done = asyncio.run_coroutine_threadsafe(self._cancel_all(), self._loop)
        try:
            done.result(_CLOSE_TIMEOUT_S)
        except TimeoutError:
            _log.warning("connections to %s did not close in time", self._server.authority)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSE_TIMEOUT_S)
        if not self._thread.is_alive():
            self._loop.close()

    # In the loop's thread

    def _enqueue(self, call: _RemoteRequest) -> None:
        if self._active.get(call.number) is call:  # else cancelled meanwhile
            self._waiting.append(call)
            self._start_waiting()

    def _cancel_request(self, call: _RemoteRequest) -> None:
        if call.task is not None:
            call.task.cancel()
        elif call in self._waiting:
            self._waiting.remove(call)

    def _start_waiting(self) -> None:
        while self._waiting and len(self._running) < self._settings["max_batch"]:
            call = self._waiting.popleft()
            self._running.add(call)
            call.task = self._loop.create_task(self._run_request(call))
            call.task.add_done_callback(self._make_done_callback(call))

    def _make_done_callback(self, call: _RemoteRequest) -> Callable[[asyncio.Task[None]], None]:
        def ended(_: asyncio.Task[None]) -> None:
            self._running.discard(call)
            self._start_waiting()

        return ended

    async def _run_request(self, call: _RemoteRequest) -> None:
        problem: EnginebayError | None = None
        try:
            await self._client.generate(call.number, call.path, call.body, call.choices, call.prompt_tokens, self._sink)
        except EnginebayError as error:
            problem = error
        except Exception as error:  # one request must not fail the others
            _log.exception("a request failed unexpectedly")
            problem = EngineFailed(f"the request to {self._server.authority} failed: {type(error).__name__}")
        finally:
            self._active.pop(call.number, None)
        if problem is not None:
            self._sink.error(call.number, problem)
            self._sink.flush()

    async def _cancel_all(self) -> None:
        self._waiting.clear()
        self._active.clear()
        tasks = [call.task for call in self._running if call.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._client.close()
