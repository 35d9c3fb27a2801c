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
from enginebay.worker import wire
from enginebay.worker.frames import frame, read_frames
from enginebay.worker.ledger import Ledger
from enginebay.worker.proto import worker_pb2 as pb

_log = logging.getLogger(__name__)


class Sessions:
    """Accepts sessions on a socket of the worker's private directory."""

    def __init__(self, path: Path, ledger: Ledger) -> None:
        self._ledger = ledger
        self._closed = False
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(path))
        self._listening.listen(64)
        threading.Thread(target=self._accept, name="sessions", daemon=True).start()

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._listening.accept()
            except OSError as error:
                _log.debug("a session could not be accepted: %s", error)
                time.sleep(0.1)  # out of file descriptors, perhaps; or closed
            else:
                _Session(connection, self._ledger)

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()


class _Session:
    def __init__(self, connection: socket.socket, ledger: Ledger) -> None:
        self._connection = connection
        self._ledger = ledger
        self._sending = threading.Lock()  # held by whoever writes to the socket, across threads when one takes over
        self._late: SimpleQueue[bytes | None] = SimpleQueue()  # what the kernel did not take at once; None: no more
        self._pushing: threading.Thread | None = None
        self._outbox = ledger.open(self._send)
        threading.Thread(target=self._listen, name="session", daemon=True).start()

    # In

    def _listen(self) -> None:
        try:
            with self._connection.makefile("rb", buffering=1 << 16) as stream:
                for data in read_frames(cast("BinaryIO", stream)):
                    self._take(pb.Ask.FromString(data))
        except Exception as error:  # the stream broke, as it does whenever a client goes away
            _log.debug("a session ended: %s", error)
        finally:
            self._ledger.close(self._outbox)
            self._connection.close()
            self._late.put(None)

    def _take(self, ask: pb.Ask) -> None:
        for submit in ask.submit:
            try:
                request = wire.submitted_request(submit)
            except EnginebayError as error:
                self._outbox.failure(submit.number, error)
                self._outbox.wake()
            else:
                self._ledger.submit(submit.number, self._outbox, request)
        for number in ask.cancel:
            self._ledger.cancel(self._outbox, number)

    # Out

    def _send(self) -> None:
        """Give the kernel what there is; never wait for it."""
        while self._outbox.waiting and self._sending.acquire(blocking=False):
            left = b""
            try:
                while not left and (flush := self._outbox.take()) is not None:
                    left = self._offer(frame(flush))
            finally:
                if not left:
                    self._sending.release()  # whoever put something meanwhile found us sending: look once more
            if left:
                self._hand_over(left)
                return

    def _hand_over(self, data: bytes) -> None:
        """To a thread that may wait. It stays: each new one would leave a heap of its own behind."""
        self._late.put(data)
        if self._pushing is None:
            self._pushing = threading.Thread(target=self._push_all, name="slow session", daemon=True)
            self._pushing.start()

    def _push_all(self) -> None:
        while (data := self._late.get()) is not None:
            self._push(data)

    def _offer(self, data: bytes) -> bytes:
        """Gives back what the kernel did not take."""
        try:
            return data[self._connection.send(data, socket.MSG_DONTWAIT) :]
        except BlockingIOError:
            return data
        except OSError:  # the other side has gone, and the listening thread knows
            return b""

    def _push(self, data: bytes) -> None:
        """Wait for a slow reader, and send what has come together meanwhile."""
        try:
            self._connection.sendall(data)
            while (flush := self._outbox.take()) is not None:
                self._connection.sendall(frame(flush))
        except OSError:
            return  # nothing more can be sent: the lock stays taken
        self._sending.release()
        self._send()
