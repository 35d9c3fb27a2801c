"""Write a file in one step: a reader sees the old content or the new one, never a part. Read one within limits."""

from __future__ import annotations

import errno
import json
import os
import secrets
import select
import time
from contextlib import suppress
from pathlib import Path
from stat import S_IMODE
from typing import Any


def write_atomically(
    path: Path, content: str | bytes, *, sync: bool = False, mode: int | None = None, overwrite: bool = True
) -> None:
    """Write the file. Creates its folder. Raises `FileExistsError` if it exists and must not be overwritten.

    `sync` returns once the content is on disk. `mode` is that of the file it replaces, unless given.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if mode is None else mode)
        with os.fdopen(descriptor, "wb") as file:
            if mode is None:
                with suppress(OSError):  # a new file, or a file system without modes
                    os.fchmod(descriptor, S_IMODE(path.stat().st_mode))
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            if sync:
                os.fsync(descriptor)
        if overwrite:
            temporary.replace(path)
        else:
            _rename_to_new(temporary, path)
    finally:
        with suppress(OSError):
            temporary.unlink()
    if sync:
        sync_to_disk(path.parent)


def write_json(path: Path, content: Any, **options: Any) -> None:
    write_atomically(path, json.dumps(content, indent=1, default=str) + "\n", **options)


def read_json_object(path: Path) -> dict[str, Any]:
    """Raises `OSError`, or `ValueError` if the file holds anything else."""
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ValueError(f"{path.name} is not a JSON object")
    return content


def read_json_or_none(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def read_within(path: Path, max_bytes: int, timeout_s: float) -> bytes:
    """Read at most `max_bytes` of a file, a pipe or a device. Raises `TimeoutError` if it has nothing to read."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    deadline = time.monotonic() + timeout_s
    content = b""
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        while len(content) < max_bytes:
            if not select.select([file], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError(errno.ETIMEDOUT, f"nothing to read within {timeout_s:g} s")
            chunk = file.read(max_bytes - len(content))
            if chunk == b"":
                break
            content += chunk or b""
    return content


def sync_to_disk(path: Path) -> None:
    """Flush a file's content, or a folder's entries, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL or not path.is_dir():  # some file systems cannot flush a folder
            raise
    finally:
        os.close(descriptor)


def _rename_to_new(temporary: Path, path: Path) -> None:
    try:
        path.hardlink_to(temporary)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links: a reader may briefly see an empty file
        path.touch(exist_ok=False)
        temporary.replace(path)
