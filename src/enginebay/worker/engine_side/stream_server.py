"""Sessions with server processes: requests and cancels come in, what the engine makes goes out.

A session is a unix socket with framed protobuf messages on it, not an RPC: a token would otherwise pay for two thread
switches and half a millisecond of bookkeeping. The engine's own thread writes to the socket. Only when the other side
reads too slowly for that, a thread of the session takes over until it has caught up.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from pathlib import Path
from queue import SimpleQueue
from typing import BinaryIO, cast

from enginebay.errors import EnginebayError
from enginebay.worker import codec
from enginebay.worker.engine_side.request_table import RequestTable
from enginebay.worker.frames import encode_frame, read_frames
from enginebay.worker.proto import worker_pb2 as pb

_log = logging.getLogger(__name__)


class StreamServer:
    """Accepts sessions on a socket of the worker's private directory."""

    def __init__(self, path: Path, requests: RequestTable) -> None:
        self._requests = requests
        self._closed = False
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(64)
        threading.Thread(target=self._accept_connections, name="sessions", daemon=True).start()

    def _accept_connections(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                _log.debug("a session could not be accepted: %s", error)
                time.sleep(0.1)  # out of file descriptors, perhaps; or closed
            else:
                _StreamConnection(connection, self._requests)

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


class _StreamConnection:
    def __init__(self, connection: socket.socket, requests: RequestTable) -> None:
        self._connection = connection
        self._requests = requests
        self._send_lock = threading.Lock()  # held by whoever writes to the socket, across threads when one takes over
        self._backlog: SimpleQueue[bytes | None] = SimpleQueue()  # what the kernel did not take at once; None: no more
        self._sender_thread: threading.Thread | None = None
        self._queue = requests.open_queue(self._send)
        threading.Thread(target=self._read_requests, name="session", daemon=True).start()

    # In

    def _read_requests(self) -> None:
        try:
            with self._connection.makefile("rb", buffering=1 << 16) as stream:
                for data in read_frames(cast("BinaryIO", stream)):
                    self._handle_ask(pb.Ask.FromString(data))
        except Exception as error:  # the stream broke, as it does whenever a client goes away
            _log.debug("a session ended: %s", error)
        finally:
            self._requests.close_queue(self._queue)
            self._connection.close()
            self._backlog.put(None)

    def _handle_ask(self, ask: pb.Ask) -> None:
        for submit in ask.submit:
            try:
                request = codec.decode_submit(submit)
            except EnginebayError as error:
                self._queue.put_failure(submit.number, error)
                self._queue.flush()
            else:
                self._requests.submit(submit.number, self._queue, request)
        for number in ask.cancel:
            self._requests.cancel(self._queue, number)

    # Out

    def _send(self) -> None:
        """Give the kernel what there is; never wait for it."""
        while self._queue.has_pending and self._send_lock.acquire(blocking=False):
            left = b""
            try:
                while not left and (flush := self._queue.take()) is not None:
                    left = self._try_send(encode_frame(flush))
            finally:
                if not left:
                    self._send_lock.release()  # whoever put something meanwhile found us sending: look once more
            if left:
                self._hand_to_sender(left)
                return

    def _hand_to_sender(self, data: bytes) -> None:
        """To a thread that may wait. It stays: each new one would leave a heap of its own behind."""
        self._backlog.put(data)
        if self._sender_thread is None:
            self._sender_thread = threading.Thread(target=self._run_sender, name="slow session", daemon=True)
            self._sender_thread.start()

    def _run_sender(self) -> None:
        while (data := self._backlog.get()) is not None:
            self._send_blocking(data)

    def _try_send(self, data: bytes) -> bytes:
        """Gives back what the kernel did not take."""
        try:
            return data[self._connection.send(data, socket.MSG_DONTWAIT) :]
        except BlockingIOError:
            return data
        except OSError:  # the other side has gone, and the listening thread knows
            return b""

    def _send_blocking(self, data: bytes) -> None:
        """Wait for a slow reader, and send what has come together meanwhile."""
        try:
            self._connection.sendall(data)
            while (flush := self._queue.take()) is not None:
                self._connection.sendall(encode_frame(flush))
        except OSError:
            return  # nothing more can be sent: the lock stays taken
        self._send_lock.release()
        self._send()
