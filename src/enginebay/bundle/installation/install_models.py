"""Putting a bundle's models into the store: unpacked out of sight, there in one step when all files are right."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

from enginebay.bundle.bundle_manifest import BundledModel
from enginebay.bundle.standalone import SplitArchive, is_inside, unpack
from enginebay.bundle.verification import translate_bundle_errors
from enginebay.errors import EnginebayError, UsageError
from enginebay.models import ModelStore
from enginebay.models.fetch_result import translate_disk_errors
from enginebay.models.model_manifest import FileRecord, ModelManifest
from enginebay.models.model_sources import validate_name
from enginebay.util.file_lock import exclusive_lock
from enginebay.util.progress import Advance, Say


def is_stored(model: BundledModel, store: ModelStore) -> bool:
    """Whether the store has this very model. Raises `UsageError` if it has another of that name."""
    if store.get(model.name) is None:
        return False
    have = {(file.path, file.sha256) for file in store.read_manifest(model.name).files}
    if have != {(file["path"], file["sha256"]) for file in model.manifest["files"]}:
        raise UsageError(
            f"the store has another model called {model.name}",
            f"remove it first: bay models remove {model.name}; or leave this one out: --no-models",
        )
    return True


@contextmanager
def lock_model(model: BundledModel, store: ModelStore, say: Say) -> Iterator[None]:
    """Be the only one who changes it, pulls included."""
    lock = store.root / ".locks" / validate_name(model.name)
    told = f"another process works on {model.name}; waiting for it"
    with translate_disk_errors(model.name, store.root), exclusive_lock(lock, lambda: say(told)):
        yield


def install_model(model: BundledModel, parts: SplitArchive, store: ModelStore, advance: Advance) -> None:
    """Its files, each checked, in a folder that nobody looks at; which then gets the model's name."""
    manifest = _parse_model_manifest(model)
    stored = {file.path: file for file in model.files}
    folder = store.root / ".partial" / f"{model.name}~bundle"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        for record in manifest.files:
            found = stored.get(f"models/{model.name}/{record.path}")
            if found is None or not is_inside(record.path) or found.sha256 != record.sha256:
                raise _invalid_manifest_error(model, record.path)
            with translate_bundle_errors():
                unpack(parts, asdict(found), folder / record.path, advance)
        manifest.write(folder)
        folder.rename(store.root / model.name)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _parse_model_manifest(model: BundledModel) -> ModelManifest:
    try:
        found = ModelManifest(
            **{**model.manifest, "files": tuple(FileRecord(**file) for file in model.manifest["files"])}
        )
    except TypeError as error:
        raise _invalid_manifest_error(model, str(error)) from None
    if not is_inside(found.path) or not found.files:
        raise _invalid_manifest_error(model, found.path)
    return found


def _invalid_manifest_error(model: BundledModel, what: str) -> EnginebayError:
    return EnginebayError(f"the manifest is wrong about {model.name}: {what}", "copy it again")
