"""A multipart body: its fields in memory, its files in one unlinked temporary file, written off the event loop."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Protocol

from enginebay.server.http.client_budget import BudgetLease, ClientBudget
from enginebay.server.http.exchange import Exchange
from enginebay.server.http.form_parser import FormParser, FormPart
from enginebay.server.http.http_settings import HttpSettings
from enginebay.server.http.refusal import Refusal

IN_MEMORY_BYTES = 64 << 10  # of files; more go to disk
_WRITE_BYTES = 256 << 10  # that one write gathers
_READ_BYTES = 1 << 20
_PROGRESS_BYTES = 1 << 20  # sending this much before the deadline extends it


class FormSpool:
    """The bytes of a form's files. Small forms never touch the disk."""

    def __init__(self, find_folder: Callable[[], Path]) -> None:
        self._find_folder = find_folder
        self._file: IO[bytes] | None = None
        self._gathered = bytearray()  # not handed to a write yet
        self._disk_bytes = 0  # written, or being written

    @property
    def size(self) -> int:
        return self._disk_bytes + len(self._gathered)

    @property
    def needs_write(self) -> bool:
        """Whether enough has gathered for a write."""
        return len(self._gathered) > (_WRITE_BYTES if self._disk_bytes else IN_MEMORY_BYTES)

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to write: all is on disk, or all is small."""
        return not self._gathered or not self._disk_bytes

    def append(self, data: bytes) -> None:
        self._gathered += data

    def take_gathered(self) -> bytearray:
        gathered, self._gathered = self._gathered, bytearray()
        self._disk_bytes += len(gathered)
        return gathered

    def write(self, data: bytearray) -> None:
        """Write to disk. Runs in a thread, one at a time."""
        if self._file is None:  # 0600, and without a name from the start
            self._file = tempfile.TemporaryFile(dir=self._find_folder(), prefix="form-", buffering=0)  # noqa: SIM115
        left = memoryview(data)
        while left:
            left = left[os.write(self._file.fileno(), left) :]

    def read(self, offset: int, size: int) -> bytes:
        if self._file is not None:
            return os.pread(self._file.fileno(), size, offset)
        return bytes(self._gathered[offset : offset + size])

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._gathered = bytearray()


class FormFile:
    """One uploaded file. Valid until the request has been answered; reading may touch the disk, so do it in a thread."""

    __slots__ = ("_offset", "_spool", "content_type", "filename", "size")

    def __init__(self, part: FormPart, spool: FormSpool) -> None:
        self.filename = part.filename or ""  # as the client wrote it: never a path on this host
        self.content_type = part.content_type
        self.size = part.size
        self._offset = part.offset
        self._spool = spool

    def read(self, start: int = 0, size: int | None = None) -> bytes:
        """Return `size` bytes from `start`, or all that follow."""
        left = max(0, self.size - start)
        return self._spool.read(self._offset + start, left if size is None else min(size, left))

    def chunks(self, size: int = _READ_BYTES) -> Iterator[bytes]:
        for start in range(0, self.size, size):
            yield self.read(start, size)


class FormSource(Protocol):
    """The connection that a form arrives on."""

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def fail_form(self, exchange: Exchange, refusal: Refusal) -> None: ...


class Form:
    """A multipart body. It has its `fields` and `files`, by name, once the request is handled."""

    def __init__(
        self,
        boundary: bytes,
        settings: HttpSettings,
        budget: ClientBudget,
        lease: BudgetLease,
        source: FormSource,
        exchange: Exchange,
    ) -> None:
        self._settings = settings
        self._budget = budget
        self._lease = lease
        self._source = source
        self._exchange: Exchange | None = exchange
        self._on_complete: Callable[[], object] | None = None
        self._spool = FormSpool(settings.find_form_folder)
        self._parser = FormParser(boundary, settings.form_limits, self._spool.append)
        self._writing: asyncio.Future[None] | None = None
        self._failure: Refusal | None = None
        self._closed = False
        self._bytes_to_progress = _PROGRESS_BYTES
        self.fields: dict[str, list[str]] = {}
        self.files: dict[str, list[FormFile]] = {}

    def get(self, name: str, default: str | None = None) -> str | None:
        """Return the first field of this name."""
        values = self.fields.get(name)
        return values[0] if values else default

    # While the body arrives

    @property
    def field_bytes(self) -> int:
        return self._parser.field_bytes

    def feed(self, data: bytes) -> None:
        """Parse the next bytes. Raise `Refusal`."""
        self._bytes_to_progress -= len(data)
        self._parser.feed(data)
        if self._parser.field_bytes > self._settings.max_body_bytes:
            raise Refusal(413, f"the form's fields exceed {self._settings.max_body_bytes} bytes", "body_bytes")
        self._budget.resize(self._lease, self._spool.size)
        if self._writing is None and self._spool.needs_write:
            self._write()

    def has_progress(self) -> bool:
        """Whether the client has sent enough since this was last true to get more time."""
        if self._bytes_to_progress > 0:
            return False
        self._bytes_to_progress = _PROGRESS_BYTES
        return True

    def finish(self) -> None:
        """Check that the form is complete, and fill `fields` and `files`. Raise `Refusal`."""
        self._parser.finish()
        for part in self._parser.parts:
            if part.filename is not None:
                self.files.setdefault(part.name, []).append(FormFile(part, self._spool))
                continue
            try:
                value = part.value.decode()
            except UnicodeDecodeError:
                raise Refusal(400, f"the form field {part.name[:100]!r} is not UTF-8") from None
            self.fields.setdefault(part.name, []).append(value)

    def when_written(self, on_complete: Callable[[], object]) -> None:
        """Call back once all files can be read, now or later."""
        self._on_complete = on_complete
        if self._writing is None:
            self._continue()

    def _write(self) -> None:
        """Write in a thread what has gathered. The client waits meanwhile."""
        self._source.pause_reading()
        self._writing = asyncio.get_running_loop().run_in_executor(None, self._spool.write, self._spool.take_gathered())
        self._writing.add_done_callback(self._on_written)

    def _on_written(self, writing: asyncio.Future[None]) -> None:
        self._writing = None
        if writing.cancelled() or writing.exception() is not None:
            self._failure = Refusal(503, "the server cannot write the form to disk")
        if self._closed:
            self._spool.close()
        else:
            self._continue()

    def _continue(self) -> None:
        """Go on after a write: read more of the form, write the rest, or report the end."""
        if self._failure is not None:
            if self._exchange is not None:
                self._source.fail_form(self._exchange, self._failure)
        elif self._on_complete is None:
            self._source.resume_reading()
        elif not self._spool.is_complete:
            self._write()
        else:
            self._source.resume_reading()
            self._on_complete()

    def close(self) -> None:
        """Give the disk back. May be called twice."""
        self._closed = True
        self._parser.release()
        self._exchange = self._on_complete = None  # breaks reference cycles
        self._budget.release(self._lease)
        if self._writing is None:  # else the thread is still using the file
            self._spool.close()
