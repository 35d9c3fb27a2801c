"""The server's client of a worker: one token stream, demultiplexed to the listeners of its requests."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Protocol, cast

from enginebay.contract import Delta, Embedding, Facts, FinishReason, GenerateRequest
from enginebay.contract.engine_messages import Done
from enginebay.errors import Cancelled, Draining, EnginebayError, EngineFailed, WorkerDied
from enginebay.worker import codec
from enginebay.worker.frames import FrameDecoder, encode_frame
from enginebay.worker.proto import SERVICE
from enginebay.worker.proto import worker_pb2 as pb

_CHANNEL_OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]

_REPLY_TIMEOUT_S = 10.0  # for calls that return at once
_WORK_TIMEOUT_S = 120.0  # to move the weights of a large model, or to tokenize a long text
_ADAPTER_TIMEOUT_S = 600.0  # some engines first finish what they compute


class GenerationListener(Protocol):
    """Receives the output of one request, on the event loop. The last call is one `on_done` or `on_error`."""

    def on_token(self, text: str, token_id: int) -> None:
        """Handle one token of choice 0 without logprobs: the hot path, which creates no object."""

    def on_delta(self, delta: Delta) -> None:
        """Handle anything else: several tokens, another choice, logprobs, the end of a choice."""

    def on_flush(self) -> None:
        """Pass on what has arrived: the current batch is complete."""

    def on_done(self, done: Done) -> None: ...

    def on_error(self, error: EnginebayError) -> None: ...


def import_grpc() -> Any:
    """Import gRPC, which takes a third of a second. Call it in a thread first if the event loop must not block."""
    # Set before the import. A worker's exit must not print to the terminal, and gRPC's fork handlers occasionally
    # crash a process that has channels and forks.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    import grpc.aio

    return grpc


class WorkerClient(asyncio.Protocol):
    """One connection to one worker: tokens over a socket, everything else over gRPC."""

    def __init__(self, address: str, build_death_error: Callable[[], WorkerDied] | None = None) -> None:
        self._address = address
        self._build_death_error = build_death_error or (lambda: WorkerDied("the worker's connection broke"))
        self._loop = asyncio.get_running_loop()
        self._listeners: dict[int, GenerationListener] = {}
        self._last_number = 0
        self._open_calls = 0  # RPCs in flight
        self._pending_ask = pb.Ask()
        self.on_load: Callable[[int], None] | None = None  # gets the requests of all clients when their number changes
        self._last_load = 0
        self._send_scheduled = False
        self._closing = False
        self.disconnected = False  # a moment before `broken`, which has the reason
        self._broken_error: EnginebayError | None = None
        self._frame_decoder = FrameDecoder()
        self._transport: asyncio.Transport | None = None
        self._channel: Any = None  # opened by the first RPC
        self._tasks = {self._loop.create_task(self._connect())}

    @property
    def _stream_path(self) -> str:
        return os.path.join(os.path.dirname(self._address.removeprefix("unix:")), "t")

    @property
    def idle(self) -> bool:
        """Whether no request and no RPC of this client is in flight."""
        return not self._listeners and not self._open_calls

    @property
    def broken(self) -> bool:
        """Whether the connection is lost: the worker has exited or sent invalid data."""
        return self._broken_error is not None

    # Requests

    def submit(self, request: GenerateRequest, listener: GenerationListener) -> int:
        """Send a request whose output goes to the listener. Return its number, for `cancel`."""
        if self._broken_error is not None:
            raise self._broken_error
        self._last_number = self._last_number % 0xFFFFFFFF + 1
        number = self._last_number
        message = codec.encode_submit(number, request)
        self._listeners[number] = listener
        self._pending_ask.submit.append(message)
        self._schedule_send()
        return number

    def cancel(self, number: int) -> None:
        """Cancel a request. The listener gets no more calls; the engine frees its slot within a step."""
        if self._listeners.pop(number, None) is not None:
            self._pending_ask.cancel.append(number)
            self._schedule_send()

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Delta | Done]:
        """Yield deltas, then `Done`. Leaving the loop early cancels the request."""
        events = _EventQueue()
        number = self.submit(request, events)
        try:
            while True:
                for event in await events.take():
                    if isinstance(event, EnginebayError):
                        raise event
                    yield event
                    if isinstance(event, Done):
                        return
        finally:
            self.cancel(number)

    async def check_listening(self) -> None:
        """Raise `OSError` if the worker does not accept connections."""
        _, writer = await asyncio.open_unix_connection(self._stream_path)
        writer.close()

    # RPCs

    async def facts(self) -> Facts:
        reply: pb.FactsReply = await self._call_rpc("Facts", pb.FactsRequest(), pb.FactsReply, _REPLY_TIMEOUT_S)
        return codec.decode_facts(reply.json)

    async def state(self) -> pb.StateReply:
        reply: pb.StateReply = await self._call_rpc("State", pb.StateRequest(), pb.StateReply, _REPLY_TIMEOUT_S)
        return reply

    async def embed(self, inputs: Sequence[Sequence[int]]) -> Embedding:
        request = pb.EmbedRequest(inputs=[pb.Tokens(ids=ids) for ids in inputs])
        reply: pb.EmbedReply = await self._call_rpc("Embed", request, pb.EmbedReply)
        return Embedding(tuple(tuple(vector.values) for vector in reply.vectors), reply.prompt_tokens)

    async def tokenize(self, text: str, add_special: bool = True) -> list[int]:
        request = pb.TokenizeRequest(text=text, add_special=add_special)
        reply: pb.TokenizeReply = await self._call_rpc("Tokenize", request, pb.TokenizeReply, _WORK_TIMEOUT_S)
        return list(reply.token_ids)

    async def drain(self, timeout_s: float) -> int:
        """Make the worker reject new requests and wait for the running ones. Return how many still run."""
        request, rpc_timeout_s = pb.DrainRequest(patience_s=timeout_s), timeout_s + _REPLY_TIMEOUT_S
        reply: pb.DrainReply = await self._call_rpc("Drain", request, pb.DrainReply, rpc_timeout_s)
        return int(reply.running)

    async def open(self) -> None:
        await self._call_rpc("Open", pb.OpenRequest(), pb.OpenReply, _REPLY_TIMEOUT_S)

    async def sleep(self, level: int) -> int:
        """Put a drained worker to sleep. Return the bytes it still holds."""
        reply: pb.SleepReply = await self._call_rpc(
            "Sleep", pb.SleepRequest(level=level), pb.SleepReply, _WORK_TIMEOUT_S
        )
        return int(reply.memory_bytes)

    async def wake(self) -> int:
        reply: pb.WakeReply = await self._call_rpc("Wake", pb.WakeRequest(), pb.WakeReply, _WORK_TIMEOUT_S)
        return int(reply.memory_bytes)

    async def add_lora(self, name: str, path: str) -> None:
        await self._call_rpc("AddLora", pb.AddLoraRequest(name=name, path=path), pb.AddLoraReply, _ADAPTER_TIMEOUT_S)

    async def remove_lora(self, name: str) -> None:
        await self._call_rpc("RemoveLora", pb.RemoveLoraRequest(name=name), pb.RemoveLoraReply, _ADAPTER_TIMEOUT_S)

    async def _call_rpc(self, method: str, request: Any, reply: Any, timeout_s: float | None = None) -> Any:
        grpc = import_grpc()
        if self._channel is None:
            self._channel = grpc.aio.insecure_channel(self._address, options=_CHANNEL_OPTIONS)
        call = self._channel.unary_unary(
            f"/{SERVICE}/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=reply.FromString,
        )
        self._open_calls += 1
        try:
            return await call(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            raise self._to_error(error, timeout_s) from None
        except asyncio.CancelledError:
            if self._closing and not _is_task_cancelling():  # gRPC's sign for a closed channel
                raise _build_closed_error() from None
            raise
        finally:
            self._open_calls -= 1

    def _to_error(self, error: Any, timeout_s: float | None) -> EnginebayError:
        for name, value in error.trailing_metadata() or ():
            if name == "enginebay-error-bin":
                return codec.decode_failure(pb.Failure.FromString(value))
        if error.code().name in ("UNAVAILABLE", "CANCELLED"):  # the worker stops: our own cancellation is no such error
            return self._build_death_error()
        if error.code().name == "DEADLINE_EXCEEDED" and timeout_s is not None:
            return WorkerDied(
                f"the worker did not respond within {timeout_s:g} s", "it may still complete the operation"
            )
        return EngineFailed(error.details() or "the engine failed on this request")

    async def close(self) -> None:
        self._closing = True
        self._broken_error = self._broken_error or _build_closed_error()
        self._fail_all(Cancelled("the worker was closed"))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._transport is not None:
            self._transport.close()
        if self._channel is not None:
            await self._channel.close()

    # Stream

    async def _connect(self) -> None:
        try:
            await self._loop.create_unix_connection(lambda: self, self._stream_path)
        except OSError:
            await self._handle_disconnect()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._schedule_send()

    def connection_lost(self, error: Exception | None) -> None:
        self.disconnected = True
        if not self._closing:
            self._tasks.add(self._loop.create_task(self._handle_disconnect()))

    async def _handle_disconnect(self) -> None:
        await asyncio.sleep(0.05)  # the process exit is seen a moment after the disconnect
        self._broken_error = self._broken_error or self._build_death_error()
        self._fail_all(self._broken_error)

    def _schedule_send(self) -> None:
        """Send all requests of one event loop iteration as one message."""
        if not self._send_scheduled and self._transport is not None:
            self._send_scheduled = True
            self._loop.call_soon(self._send)

    def _send(self) -> None:
        self._send_scheduled = False
        asks, self._pending_ask = self._pending_ask, pb.Ask()
        if self._transport is None or self._transport.is_closing():
            return  # `connection_lost` fails the waiting requests
        if asks.submit or asks.cancel:
            self._transport.write(encode_frame(asks))

    def data_received(self, data: bytes) -> None:
        touched: dict[int, GenerationListener] = {}
        try:
            for message in self._frame_decoder.feed(data):
                self._deliver(pb.Flush.FromString(message), touched)
        except Exception as error:  # no request may be left waiting
            self._broken_error = EngineFailed(f"the worker's output cannot be read: {type(error).__name__}: {error}")
            assert self._transport is not None
            self._transport.abort()
        for number, listener in touched.items():
            try:
                listener.on_flush()
            except Exception as error:
                self._fail_request(number, error)

    def _notify(self, number: int, method: Callable[[Any], None], event: Any) -> None:
        try:
            method(event)
        except Exception as error:
            self._fail_request(number, error)

    def _fail_request(self, number: int, error: Exception) -> None:
        """Fail the request of a listener that raised. Other requests continue."""
        self._loop.call_exception_handler({"message": "a generation listener failed", "exception": error})
        listener = self._listeners.get(number)
        if listener is not None:
            self.cancel(number)
            _notify_error(
                listener, EngineFailed(f"the response could not be delivered: {type(error).__name__}: {error}")
            )

    def _fail_all(self, error: EnginebayError) -> None:
        listeners, self._listeners = self._listeners, {}
        for listener in listeners.values():
            _notify_error(listener, error)

    def _deliver(self, flush: pb.Flush, touched: dict[int, GenerationListener]) -> None:
        listeners = self._listeners
        if flush.count or flush.choice or flush.logprobs:
            self._deliver_mixed(flush, touched)
        else:
            for number, text, token_id in zip(flush.request, flush.text, flush.token_id, strict=True):
                listener = listeners.get(number)
                if listener is not None:
                    try:
                        listener.on_token(text, token_id)
                    except Exception as error:
                        self._fail_request(number, error)
                    touched[number] = listener
        if flush.finish or flush.done or flush.failure:
            self._deliver_ends(flush, touched)
        if self.on_load is not None and flush.running != self._last_load:
            self._last_load = flush.running
            self.on_load(flush.running)

    def _deliver_mixed(self, flush: pb.Flush, touched: dict[int, GenerationListener]) -> None:
        rows = len(flush.request)
        counts = flush.count or [1] * rows
        choices = flush.choice or [0] * rows
        logprobs = {entry.row: codec.decode_logprobs(entry) for entry in flush.logprobs}
        ids = list(flush.token_id)
        start = 0
        for row in range(rows):
            end = start + counts[row]
            number = flush.request[row]
            listener = self._listeners.get(number)
            if listener is not None:
                delta = Delta(flush.text[row], tuple(ids[start:end]), choices[row], logprobs.get(row, ()))
                self._notify(number, listener.on_delta, delta)
                touched[number] = listener
            start = end

    def _deliver_ends(self, flush: pb.Flush, touched: dict[int, GenerationListener]) -> None:
        for finish in flush.finish:
            listener = self._listeners.get(finish.request)
            if listener is not None:
                reason = FinishReason(finish.reason)
                delta = Delta("", (), finish.choice, (), reason, codec.decode_stop_reason(finish))
                self._notify(finish.request, listener.on_delta, delta)
                touched[finish.request] = listener
        for done in flush.done:
            listener = self._listeners.get(done.request)
            if listener is not None:
                self._notify(done.request, listener.on_done, codec.decode_done(done))
                self._listeners.pop(done.request, None)
                touched[done.request] = listener
        for failure in flush.failure:
            listener = self._listeners.pop(failure.request, None)
            if listener is not None:
                _notify_error(listener, codec.decode_failure(failure))


def _build_closed_error() -> Draining:
    return Draining("the connection to this worker is closed", "retry the request")


def _is_task_cancelling() -> bool:
    """Return whether the current task is being cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _notify_error(listener: GenerationListener, error: EnginebayError) -> None:
    with contextlib.suppress(Exception):  # a failing listener must not affect the others
        listener.on_error(error)


class _EventQueue:
    """A listener whose events an `async for` can read."""

    __slots__ = ("_events", "_waiter")

    def __init__(self) -> None:
        self._events: list[Delta | Done | EnginebayError] = []
        self._waiter: asyncio.Future[None] | None = None

    def on_token(self, text: str, token_id: int) -> None:
        self._events.append(Delta(text, (token_id,)))

    def on_delta(self, delta: Delta) -> None:
        self._events.append(delta)

    def on_done(self, done: Done) -> None:
        self._events.append(done)
        self.on_flush()

    def on_error(self, error: EnginebayError) -> None:
        self._events.append(error)
        self.on_flush()

    def on_flush(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def take(self) -> list[Delta | Done | EnginebayError]:
        while not self._events:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
            self._waiter = None
        events, self._events = self._events, []
        return events
