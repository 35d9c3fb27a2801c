"""The result of a fetch, and the disk errors that all sources share."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from enginebay.errors import FetchFailed
from enginebay.util.number_format import format_bytes

DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT)
MODEL_DIRECTORY = "model"  # subfolder for a model of several files


@dataclass(frozen=True, slots=True)
class FetchResult:
    path: Path  # what engines load, inside the target folder
    sha256: dict[Path, str] = field(default_factory=dict)  # hashes computed during the fetch
    revision: str | None = None


@contextmanager
def translate_disk_errors(label: str, folder: Path) -> Iterator[None]:
    """Turn an `OSError` of the disk into a one-line `FetchFailed`."""
    try:
        yield
    except OSError as error:
        if error.errno in DISK_FULL_ERRNOS:
            raise build_disk_full_error(label, folder) from error
        raise FetchFailed(
            f"{label}: cannot access {error.filename or folder}: {error.strerror or error}",
            "check permissions and disk, or set ENGINEBAY_HOME to a writable directory",
        ) from error


def build_disk_full_error(label: str, folder: Path) -> FetchFailed:
    return FetchFailed(
        f"the disk is full: no space for {label} in {folder}",
        "free some space (see: bay models list), or set ENGINEBAY_HOME to a larger disk",
    )


def check_disk_space(label: str, folder: Path, needed: int) -> None:
    """Raise `FetchFailed` before a download that would not fit."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise FetchFailed(
            f"{label} needs {format_bytes(needed)}, but {folder} has only {format_bytes(free)} free",
            "free some space, or set ENGINEBAY_HOME to a larger disk",
        )
