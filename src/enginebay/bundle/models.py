"""Putting a bundle's models into the store: unpacked out of sight, there in one step when all files are right."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

from enginebay.bundle.checking import as_our_errors
from enginebay.bundle.manifest import Model
from enginebay.bundle.standalone import Parts, is_inside, unpack
from enginebay.errors import EnginebayError, UsageError
from enginebay.fleet.lock import exclusive
from enginebay.fleet.models import Store
from enginebay.fleet.models.fetched import disk_errors
from enginebay.fleet.models.manifest import FileRecord, Manifest
from enginebay.fleet.models.progress import Advance, Say
from enginebay.fleet.models.sources import check_name


def is_here(model: Model, store: Store) -> bool:
    """Whether the store has this very model. Raises `UsageError` if it has another of that name."""
    if store.get(model.name) is None:
        return False
    have = {(file.path, file.sha256) for file in store.manifest(model.name).files}
    if have != {(file["path"], file["sha256"]) for file in model.manifest["files"]}:
        raise UsageError(
            f"the store has another model called {model.name}",
            f"remove it first: bay models remove {model.name}; or leave this one out: --no-models",
        )
    return True


@contextmanager
def locked(model: Model, store: Store, say: Say) -> Iterator[None]:
    """Be the only one who changes it, pulls included."""
    lock = store.root / ".locks" / check_name(model.name)
    told = f"another process works on {model.name}; waiting for it"
    with disk_errors(model.name, store.root), exclusive(lock, lambda: say(told)):
        yield


def put(model: Model, parts: Parts, store: Store, advance: Advance) -> None:
    """Its files, each checked, in a folder that nobody looks at; which then gets the model's name."""
    manifest = _manifest(model)
    stored = {file.path: file for file in model.files}
    folder = store.root / ".partial" / f"{model.name}~bundle"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        for record in manifest.files:
            found = stored.get(f"models/{model.name}/{record.path}")
            if found is None or not is_inside(record.path) or found.sha256 != record.sha256:
                raise _wrong(model, record.path)
            with as_our_errors():
                unpack(parts, asdict(found), folder / record.path, advance)
        manifest.write(folder)
        folder.rename(store.root / model.name)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _manifest(model: Model) -> Manifest:
    try:
        found = Manifest(**{**model.manifest, "files": tuple(FileRecord(**file) for file in model.manifest["files"])})
    except TypeError as error:
        raise _wrong(model, str(error)) from None
    if not is_inside(found.path) or not found.files:
        raise _wrong(model, found.path)
    return found


def _wrong(model: Model, what: str) -> EnginebayError:
    return EnginebayError(f"the manifest is wrong about {model.name}: {what}", "copy it again")
