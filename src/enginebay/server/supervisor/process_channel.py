"""Bidirectional RPC between the supervisor and one of its server processes.

It runs over a socket pair that only these two processes hold, so pickle is safe.
"""

from __future__ import annotations

import asyncio
import pickle
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from enginebay.errors import EnginebayError, WorkerDied

_LENGTH_BYTES = 4
_PEER_EXITED = "the peer process exited"

RpcHandler = Callable[..., Awaitable[Any]]


class ProcessChannel:
    """One end of the channel. `closed` completes when the other end is gone."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handlers: Mapping[str, RpcHandler]
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._handlers = handlers
        self._pending_calls: dict[int, asyncio.Future[Any]] = {}
        self._last_call_number = self._last_notify_key = 0
        self._tasks: dict[int, asyncio.Task[None]] = {}  # by the peer's call number; negative for notifications
        self.last_received_at = time.monotonic()
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._receiver = asyncio.create_task(self._receive())

    @classmethod
    async def open(cls, sock: socket.socket, handlers: Mapping[str, RpcHandler]) -> ProcessChannel:
        reader, writer = await asyncio.open_connection(sock=sock)
        return cls(reader, writer, handlers)

    async def call(self, method: str, *args: Any) -> Any:
        """Call a method of the peer. Raise the error that it raised, or `WorkerDied` if the peer exited."""
        if self.closed.done():
            raise WorkerDied(_PEER_EXITED)
        self._last_call_number += 1
        number = self._last_call_number
        reply = self._pending_calls[number] = asyncio.get_running_loop().create_future()
        self._send((number, method, args))
        try:
            return await reply
        except asyncio.CancelledError:
            self._send((number, "", ()))  # cancels the handler
            raise
        finally:
            self._pending_calls.pop(number, None)

    def notify(self, method: str, *args: Any) -> None:
        """Call a method of the peer without a reply."""
        if not self.closed.done():
            self._send((0, method, args))

    def _send(self, message: Any) -> None:
        data = pickle.dumps(message)
        self._writer.write(len(data).to_bytes(_LENGTH_BYTES) + data)

    async def _receive(self) -> None:
        try:
            while True:
                length = int.from_bytes(await self._reader.readexactly(_LENGTH_BYTES))
                number, method, value = pickle.loads(await self._reader.readexactly(length))
                self.last_received_at = time.monotonic()
                if method is None:
                    self._resolve_call(number, value)
                elif method:
                    self._start_handler(number, method, value)
                elif number in self._tasks:
                    self._tasks[number].cancel()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            if not self.closed.done():
                self.closed.set_result(None)
            for reply in self._pending_calls.values():
                if not reply.done():
                    reply.set_exception(WorkerDied(_PEER_EXITED))

    def _start_handler(self, number: int, method: str, args: tuple[Any, ...]) -> None:
        self._last_notify_key -= 1
        key = number or self._last_notify_key
        task = self._tasks[key] = asyncio.create_task(self._handle(number, method, args))
        task.add_done_callback(lambda _: self._tasks.pop(key, None))

    def _resolve_call(self, number: int, value: Any) -> None:
        reply = self._pending_calls.get(number)
        if reply is None or reply.done():
            return
        if isinstance(value, BaseException):
            reply.set_exception(value)
        else:
            reply.set_result(value)

    async def _handle(self, number: int, method: str, args: tuple[Any, ...]) -> None:
        try:
            value = await self._handlers[method](*args)
        except Exception as error:
            value = error if isinstance(error, EnginebayError) else EnginebayError(f"{method} failed: {error!r}")
        if number:
            self._send((number, None, value))

    async def close(self) -> None:
        self._receiver.cancel()
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(self._receiver, *self._tasks.values(), return_exceptions=True)
        self._writer.close()
