"""Token streams to server processes: requests and cancels come in, engine output goes out.

A stream is a unix socket with framed protobuf messages, not an RPC, which would cost two thread switches and half a
millisecond per token. The engine's own thread writes to the socket. If the client reads too slowly, a sender thread
takes over until it has caught up.
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
    """Accepts stream connections on a socket in the worker's private directory."""

    def __init__(self, path: Path, requests: RequestTable) -> None:
        self._requests = requests
        self._closed = False
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(64)
        threading.Thread(target=self._accept_connections, name="streams", daemon=True).start()

    def _accept_connections(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                _log.debug("failed to accept a stream: %s", error)
                time.sleep(0.1)  # closed, or out of file descriptors
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
        self._send_lock = threading.Lock()  # held while writing; passes to the sender thread with the backlog
        self._backlog: SimpleQueue[bytes | None] = SimpleQueue()  # what the kernel did not accept at once; None: closed
        self._sender_thread: threading.Thread | None = None
        self._queue = requests.open_queue(self._send)
        threading.Thread(target=self._read_requests, name="stream", daemon=True).start()

    # Input

    def _read_requests(self) -> None:
        try:
            with self._connection.makefile("rb", buffering=1 << 16) as stream:
                for data in read_frames(cast("BinaryIO", stream)):
                    self._handle_ask(pb.Ask.FromString(data))
        except Exception as error:  # usually the client disconnected
            _log.debug("a stream ended: %s", error)
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

    # Output

    def _send(self) -> None:
        """Send what is queued without blocking."""
        while self._queue.has_pending and self._send_lock.acquire(blocking=False):
            left = b""
            try:
                while not left and (flush := self._queue.take()) is not None:
                    left = self._try_send(encode_frame(flush))
            finally:
                if not left:
                    self._send_lock.release()  # then check again: another thread may have queued output meanwhile
            if left:
                self._hand_to_sender(left)
                return

    def _hand_to_sender(self, data: bytes) -> None:
        """Pass data to the sender thread, which may block. It is kept: each new thread would leave a heap behind."""
        self._backlog.put(data)
        if self._sender_thread is None:
            self._sender_thread = threading.Thread(target=self._run_sender, name="stream-sender", daemon=True)
            self._sender_thread.start()

    def _run_sender(self) -> None:
        while (data := self._backlog.get()) is not None:
            self._send_blocking(data)

    def _try_send(self, data: bytes) -> bytes:
        """Send without blocking. Return what the kernel did not accept."""
        try:
            return data[self._connection.send(data, socket.MSG_DONTWAIT) :]
        except BlockingIOError:
            return data
        except OSError:  # disconnected: the reading thread cleans up
            return b""

    def _send_blocking(self, data: bytes) -> None:
        """Send to a slow reader, together with what is queued meanwhile."""
        try:
            self._connection.sendall(data)
            while (flush := self._queue.take()) is not None:
                self._connection.sendall(encode_frame(flush))
        except OSError:
            return  # nothing more can be sent: keep the lock
        self._send_lock.release()
        self._send()
