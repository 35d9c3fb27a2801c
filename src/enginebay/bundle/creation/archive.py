"""Writes the archive: one plain tar, split into parts and hashed as it is written."""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO

from enginebay.bundle.bundle_manifest import ArchivedFile, ArchivePart
from enginebay.bundle.standalone import CHUNK
from enginebay.errors import UsageError
from enginebay.util.number_format import parse_size

_MIN_PART_BYTES = 100_000
ARCHIVE_NAME = "bundle.tar"
_BLOCK = tarfile.BLOCKSIZE
_MAX_PARTS = 999  # so that `cat bundle.tar.*` sorts them


def parse_part_size(text: str) -> int:
    """Parse a size: `60MB` and `1.5GB` are decimal, `60MiB` is binary. Raises `UsageError`."""
    size = parse_size(text) or 0
    if size < _MIN_PART_BYTES:
        raise UsageError(f"{text!r} is not a valid part size", "use at least 100kB, as in --split 60MB")
    return size


def check_part_count(files: Iterable[tuple[str, Path]], split: int | None) -> None:
    """Raise `UsageError` if these files, by archive path, would make too many parts. Writes nothing."""
    size = sum(_compute_packed_size(path, source.stat().st_size) for path, source in files) + 2 * _BLOCK
    if split is not None and size > split * _MAX_PARTS:
        raise _too_many_parts_error()


def _compute_packed_size(path: str, size: int) -> int:
    return len(_build_header(path, size)) + size + -size % _BLOCK


def _build_header(path: str, size: int) -> bytes:
    header = tarfile.TarInfo(path)
    header.size, header.mode = size, 0o644
    return header.tobuf(tarfile.PAX_FORMAT)


def _too_many_parts_error() -> UsageError:
    return UsageError(f"the bundle would have more than {_MAX_PARTS} parts", "use a larger --split size")


class BundleArchive:
    """The archive writer. The same files in the same order make the same bytes."""

    def __init__(self, folder: Path, split: int | None) -> None:
        self._out = _SplitWriter(folder, split)

    def add(self, path: str, source: Path, advance: Callable[[int], None]) -> ArchivedFile:
        """Append the file `source` under `path`."""
        size = source.stat().st_size
        self._out.write(_build_header(path, size))
        offset, digest, written = self._out.position, hashlib.sha256(), 0
        with source.open("rb") as file:
            while chunk := file.read(CHUNK):
                digest.update(chunk)
                self._out.write(chunk)
                written += len(chunk)
                advance(len(chunk))
        if written != size:
            raise OSError(f"{source} changed during packing")
        self._out.write(bytes(-size % _BLOCK))
        return ArchivedFile(path, size, digest.hexdigest(), offset)

    def close(self) -> tuple[ArchivePart, ...]:
        self._out.write(bytes(2 * _BLOCK))
        return self._out.close()


class _SplitWriter:
    """Writes a byte stream into files of limited size."""

    def __init__(self, folder: Path, limit: int | None) -> None:
        self._folder, self._limit = folder, limit
        self._parts: list[ArchivePart] = []
        self._file: BinaryIO | None = None
        self._size, self._digest = 0, hashlib.sha256()
        self.position = 0

    def write(self, content: bytes) -> None:
        self.position += len(content)
        view = memoryview(content)
        while view:
            if self._file is None:
                self._open_part()
            count = len(view) if self._limit is None else min(len(view), self._limit - self._size)
            assert self._file is not None
            self._file.write(view[:count])
            self._digest.update(view[:count])
            self._size += count
            view = view[count:]
            if self._size == self._limit:
                self._finish_part()

    def close(self) -> tuple[ArchivePart, ...]:
        if self._file is not None:
            self._finish_part()
        return tuple(self._parts)

    def _open_part(self) -> None:
        if len(self._parts) == _MAX_PARTS:
            raise _too_many_parts_error()
        self._file = (self._folder / self._build_part_name()).open("wb")
        self._size, self._digest = 0, hashlib.sha256()

    def _finish_part(self) -> None:
        assert self._file is not None
        self._file.close()
        self._file = None
        self._parts.append(ArchivePart(self._build_part_name(), self._size, self._digest.hexdigest()))

    def _build_part_name(self) -> str:
        return ARCHIVE_NAME if self._limit is None else f"{ARCHIVE_NAME}.{len(self._parts) + 1:03d}"
