"""Write files durably: complete on disk, or absent."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

READ_ONLY = 0o444


def sync_to_disk(path: Path) -> None:
    """Flush a file's content, or a folder's entries, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_synced(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def create_atomically(path: Path, content: bytes) -> None:
    """Create a file in one step: a reader sees all of it or nothing. Raise `FileExistsError`."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write_synced(temporary, content)
        _link_or_copy(temporary, path, content)
    finally:
        temporary.unlink(missing_ok=True)
    sync_to_disk(path.parent)


def _link_or_copy(temporary: Path, path: Path, content: bytes) -> None:
    try:
        path.hardlink_to(temporary)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links: a reader may briefly see a partial file
        with path.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())


def hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
