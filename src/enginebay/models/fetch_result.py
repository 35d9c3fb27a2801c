"""What every source hands over, and the failures they share."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from enginebay.errors import FetchFailed
from enginebay.util.progress import format_bytes

DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT)
MODEL_DIRECTORY = "model"  # a model of several files lies in this folder below its own


@dataclass(frozen=True, slots=True)
class FetchResult:
    path: Path  # what engines load, inside the folder the source was given
    sha256: dict[Path, str] = field(default_factory=dict)  # hashes that were computed on the way
    revision: str | None = None


@contextmanager
def translate_disk_errors(what: str, folder: Path) -> Iterator[None]:
    """A full disk, or one that may not be written, in one line."""
    try:
        yield
    except OSError as error:
        if error.errno in DISK_FULL_ERRNOS:
            raise build_disk_full_error(what, folder) from error
        raise FetchFailed(
            f"{what}: {error.filename or folder} cannot be used: {error.strerror or error}",
            "check its rights and its disk, or set ENGINEBAY_HOME to a directory of yours",
        ) from error


def build_disk_full_error(what: str, folder: Path) -> FetchFailed:
    return FetchFailed(
        f"the disk is full: no room for {what} in {folder}",
        "free some space, or set ENGINEBAY_HOME to a larger disk; `bay models list` shows what takes it",
    )


def check_disk_space(what: str, folder: Path, needed: int) -> None:
    """Fail before the download rather than in the middle of it."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise FetchFailed(
            f"{what} needs {format_bytes(needed)}, and {folder} has {format_bytes(free)} free",
            "free some space, or set ENGINEBAY_HOME to a larger disk",
        )
