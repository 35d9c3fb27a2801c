"""The server's end of a worker: one session, demultiplexed to the listeners of its requests."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Protocol

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # before the import: a worker that ends is not news for the terminal

import grpc
import grpc.aio

from enginebay.contract import Delta, Embedding, Facts, FinishReason, GenerateRequest
from enginebay.contract.messages import Done
from enginebay.errors import Cancelled, EnginebayError, EngineFailed, WorkerDied
from enginebay.worker import wire
from enginebay.worker.proto import SERVICE
from enginebay.worker.proto import worker_pb2 as pb

_OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


class Listener(Protocol):
    """Gets what one request produces, on the event loop. `done` or `failed` is the last call, once."""

    def token(self, text: str, token_id: int) -> None:
        """One token of choice 0 without logprobs: the hot path, so it builds no object."""

    def delta(self, delta: Delta) -> None:
        """Anything else: several tokens at once, another choice, logprobs, the end of a choice."""

    def flushed(self) -> None:
        """All that one engine flush had for this request has been given."""

    def done(self, done: Done) -> None: ...

    def failed(self, error: EnginebayError) -> None: ...


class WorkerClient:
    """One session with one worker."""

    def __init__(self, address: str, death: Callable[[], WorkerDied] | None = None) -> None:
        self._channel = grpc.aio.insecure_channel(address, options=_OPTIONS)
        self._death = death or (lambda: WorkerDied("the worker's connection broke"))
        self._listeners: dict[int, Listener] = {}
        self._next = 0
        self._asks = pb.Ask()
        self._asked = asyncio.Event()
        self._closing = False
        self._broken: EnginebayError | None = None
        session = self._channel.stream_stream(
            f"/{SERVICE}/Session",
            request_serializer=pb.Ask.SerializeToString,
            response_deserializer=pb.Flush.FromString,
        )
        self._call: Any = session()
        self._tasks = [asyncio.create_task(self._send()), asyncio.create_task(self._receive())]

    @property
    def broken(self) -> bool:
        """The worker has gone, or speaks nonsense: nothing more will come of this session."""
        return self._broken is not None

    # Requests

    def submit(self, request: GenerateRequest, listener: Listener) -> int:
        """Send a request; what it produces goes to the listener. Gives back the number to cancel it by."""
        if self._broken is not None:
            raise self._broken
        self._next = self._next % 0xFFFFFFFF + 1
        number = self._next
        message = wire.submit_message(number, request)
        self._listeners[number] = listener
        self._asks.submit.append(message)
        self._asked.set()
        return number

    def cancel(self, number: int) -> None:
        """The engine frees the request's place within a step; the listener hears no more."""
        if self._listeners.pop(number, None) is not None:
            self._asks.cancel.append(number)
            self._asked.set()

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Delta | Done]:
        """Deltas as they come, then `Done`. Leaving the loop early cancels the request."""
        pipe = _Pipe()
        number = self.submit(request, pipe)
        try:
            while True:
                for event in await pipe.take():
                    if isinstance(event, EnginebayError):
                        raise event
                    yield event
                    if isinstance(event, Done):
                        return
        finally:
            self.cancel(number)

    # Questions

    async def facts(self) -> Facts:
        reply: pb.FactsReply = await self._ask("Facts", pb.FactsRequest(), pb.FactsReply)
        return wire.received_facts(reply.json)

    async def state(self) -> pb.StateReply:
        reply: pb.StateReply = await self._ask("State", pb.StateRequest(), pb.StateReply)
        return reply

    async def embed(self, inputs: Sequence[Sequence[int]]) -> Embedding:
        request = pb.EmbedRequest(inputs=[pb.Tokens(ids=ids) for ids in inputs])
        reply: pb.EmbedReply = await self._ask("Embed", request, pb.EmbedReply)
        return Embedding(tuple(tuple(vector.values) for vector in reply.vectors), reply.prompt_tokens)

    async def tokenize(self, text: str, add_special: bool = True) -> list[int]:
        request = pb.TokenizeRequest(text=text, add_special=add_special)
        reply: pb.TokenizeReply = await self._ask("Tokenize", request, pb.TokenizeReply)
        return list(reply.token_ids)

    async def _ask(self, method: str, request: Any, reply: Any) -> Any:
        call = self._channel.unary_unary(
            f"/{SERVICE}/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=reply.FromString,
        )
        try:
            return await call(request)
        except grpc.aio.AioRpcError as error:
            raise self._unary_error(error) from None

    def _unary_error(self, error: grpc.aio.AioRpcError) -> EnginebayError:
        for name, value in error.trailing_metadata() or ():
            if name == "enginebay-error-bin":
                return wire.received_failure(pb.Failure.FromString(value))
        if error.code() is grpc.StatusCode.UNAVAILABLE:
            return self._death()
        return EngineFailed(error.details() or "the engine failed on this request")

    async def close(self) -> None:
        self._closing = True
        self._fail_all(Cancelled("the worker was closed"))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._channel.close()

    # The session

    async def _send(self) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while True:
                await self._asked.wait()
                self._asked.clear()
                asks, self._asks = self._asks, pb.Ask()
                await self._call.write(asks)

    async def _receive(self) -> None:
        try:
            while (flush := await self._call.read()) is not grpc.aio.EOF:
                self._deliver(flush)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass
        except Exception as error:  # whatever it is, nobody may be left waiting for it
            self._broken = EngineFailed(f"the worker's answer could not be read: {type(error).__name__}: {error}")
        if not self._closing:
            await asyncio.sleep(0.05)  # the process' own end is known a moment after its connection's
            self._broken = self._broken or self._death()
            self._fail_all(self._broken)

    def _fail_all(self, error: EnginebayError) -> None:
        listeners, self._listeners = self._listeners, {}
        for listener in listeners.values():
            listener.failed(error)

    def _deliver(self, flush: pb.Flush) -> None:
        touched: dict[int, Listener] = {}
        listeners = self._listeners
        if flush.count or flush.choice or flush.logprobs:
            self._deliver_mixed(flush, touched)
        else:
            for number, text, token_id in zip(flush.request, flush.text, flush.token_id, strict=True):
                listener = listeners.get(number)
                if listener is not None:
                    listener.token(text, token_id)
                    touched[number] = listener
        if flush.finish or flush.done or flush.failure:
            self._deliver_ends(flush, touched)
        for listener in touched.values():
            listener.flushed()

    def _deliver_mixed(self, flush: pb.Flush, touched: dict[int, Listener]) -> None:
        rows = len(flush.request)
        counts = flush.count or [1] * rows
        choices = flush.choice or [0] * rows
        logprobs = {one.row: wire.received_logprobs(one) for one in flush.logprobs}
        ids = list(flush.token_id)
        start = 0
        for row in range(rows):
            end = start + counts[row]
            number = flush.request[row]
            listener = self._listeners.get(number)
            if listener is not None:
                listener.delta(Delta(flush.text[row], tuple(ids[start:end]), choices[row], logprobs.get(row, ())))
                touched[number] = listener
            start = end

    def _deliver_ends(self, flush: pb.Flush, touched: dict[int, Listener]) -> None:
        for finish in flush.finish:
            listener = self._listeners.get(finish.request)
            if listener is not None:
                reason = FinishReason(finish.reason)
                listener.delta(Delta("", (), finish.choice, (), reason, wire.received_stop_reason(finish)))
                touched[finish.request] = listener
        for done in flush.done:
            listener = self._listeners.pop(done.request, None)
            if listener is not None:
                listener.done(wire.received_done(done))
                touched[done.request] = listener
        for failure in flush.failure:
            listener = self._listeners.pop(failure.request, None)
            if listener is not None:
                listener.failed(wire.received_failure(failure))


class _Pipe:
    """A listener that an `async for` can read from."""

    __slots__ = ("_events", "_waiter")

    def __init__(self) -> None:
        self._events: list[Delta | Done | EnginebayError] = []
        self._waiter: asyncio.Future[None] | None = None

    def token(self, text: str, token_id: int) -> None:
        self._events.append(Delta(text, (token_id,)))

    def delta(self, delta: Delta) -> None:
        self._events.append(delta)

    def done(self, done: Done) -> None:
        self._events.append(done)
        self.flushed()

    def failed(self, error: EnginebayError) -> None:
        self._events.append(error)
        self.flushed()

    def flushed(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def take(self) -> list[Delta | Done | EnginebayError]:
        while not self._events:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
            self._waiter = None
        events, self._events = self._events, []
        return events
