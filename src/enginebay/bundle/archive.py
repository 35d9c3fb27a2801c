"""Writing the archive: one plain tar, cut into parts as it is written, each byte hashed on its way."""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO

from enginebay.bundle.manifest import Part, Stored
from enginebay.bundle.standalone import CHUNK
from enginebay.errors import UsageError

ARCHIVE = "bundle.tar"
_BLOCK = tarfile.BLOCKSIZE
_MOST_PARTS = 999  # so that `cat bundle.tar.*` has them in order


def check_parts(files: Iterable[tuple[str, Path]], split: int | None) -> None:
    """Raises `UsageError` if these files, by their paths in the archive, make too many parts. Writes nothing."""
    size = sum(_packed_size(path, source.stat().st_size) for path, source in files) + 2 * _BLOCK
    if split is not None and size > split * _MOST_PARTS:
        raise _too_many_parts()


def _packed_size(path: str, size: int) -> int:
    return len(_header(path, size)) + size + -size % _BLOCK


def _header(path: str, size: int) -> bytes:
    header = tarfile.TarInfo(path)
    header.size, header.mode = size, 0o644
    return header.tobuf(tarfile.PAX_FORMAT)


def _too_many_parts() -> UsageError:
    return UsageError(f"the bundle would have more than {_MOST_PARTS} parts", "give --split a larger size")


class Archive:
    """`add` files, then `close`. The same files in the same order make the same bytes."""

    def __init__(self, folder: Path, split: int | None) -> None:
        self._out = _Cut(folder, split)

    def add(self, path: str, source: Path, advance: Callable[[int], None]) -> Stored:
        size = source.stat().st_size
        self._out.write(_header(path, size))
        offset, digest, written = self._out.position, hashlib.sha256(), 0
        with source.open("rb") as file:
            while chunk := file.read(CHUNK):
                digest.update(chunk)
                self._out.write(chunk)
                written += len(chunk)
                advance(len(chunk))
        if written != size:
            raise OSError(f"{source} changed while it was packed")
        self._out.write(bytes(-size % _BLOCK))
        return Stored(path, size, digest.hexdigest(), offset)

    def close(self) -> tuple[Part, ...]:
        self._out.write(bytes(2 * _BLOCK))
        return self._out.close()


class _Cut:
    """A stream of bytes that becomes files of a limited size."""

    def __init__(self, folder: Path, limit: int | None) -> None:
        self._folder, self._limit = folder, limit
        self._parts: list[Part] = []
        self._file: BinaryIO | None = None
        self._size, self._digest = 0, hashlib.sha256()
        self.position = 0

    def write(self, content: bytes) -> None:
        self.position += len(content)
        view = memoryview(content)
        while view:
            if self._file is None:
                self._open()
            room = len(view) if self._limit is None else min(len(view), self._limit - self._size)
            assert self._file is not None
            self._file.write(view[:room])
            self._digest.update(view[:room])
            self._size += room
            view = view[room:]
            if self._size == self._limit:
                self._finish()

    def close(self) -> tuple[Part, ...]:
        if self._file is not None:
            self._finish()
        return tuple(self._parts)

    def _open(self) -> None:
        if len(self._parts) == _MOST_PARTS:
            raise _too_many_parts()
        self._file = (self._folder / self._name()).open("wb")
        self._size, self._digest = 0, hashlib.sha256()

    def _finish(self) -> None:
        assert self._file is not None
        self._file.close()
        self._file = None
        self._parts.append(Part(self._name(), self._size, self._digest.hexdigest()))

    def _name(self) -> str:
        return ARCHIVE if self._limit is None else f"{ARCHIVE}.{len(self._parts) + 1:03d}"
