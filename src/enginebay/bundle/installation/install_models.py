"""Installs a bundle's models: unpacks into a hidden folder, then renames it into the store."""

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
    """Return whether the store has this model. Raises `UsageError` if it has another one by that name."""
    if store.get(model.name) is None:
        return False
    stored = {(file.path, file.sha256) for file in store.read_manifest(model.name).files}
    if stored != {(file["path"], file["sha256"]) for file in model.manifest["files"]}:
        raise UsageError(
            f"the store has another model named {model.name}",
            f"remove it with: bay models remove {model.name}; or skip the bundle's models with --no-models",
        )
    return True


@contextmanager
def lock_model(model: BundledModel, store: ModelStore, say: Say) -> Iterator[None]:
    """Hold the model's exclusive lock, which pulls use too."""
    lock = store.root / ".locks" / validate_name(model.name)
    waiting = f"another process is using {model.name}; waiting for it"
    with translate_disk_errors(model.name, store.root), exclusive_lock(lock, lambda: say(waiting)):
        yield


def install_model(model: BundledModel, parts: SplitArchive, store: ModelStore, advance: Advance) -> None:
    """Unpack and verify the model's files in a hidden folder, then rename it to the model's name."""
    manifest = _parse_model_manifest(model)
    archived = {file.path: file for file in model.files}
    folder = store.root / ".partial" / f"{model.name}~bundle"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        for record in manifest.files:
            file = archived.get(f"models/{model.name}/{record.path}")
            if file is None or not is_inside(record.path) or file.sha256 != record.sha256:
                raise _invalid_manifest_error(model, record.path)
            with translate_bundle_errors():
                unpack(parts, asdict(file), folder / record.path, advance)
        manifest.write(folder)
        folder.rename(store.root / model.name)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _parse_model_manifest(model: BundledModel) -> ModelManifest:
    try:
        manifest = ModelManifest(
            **{**model.manifest, "files": tuple(FileRecord(**file) for file in model.manifest["files"])}
        )
    except TypeError as error:
        raise _invalid_manifest_error(model, str(error)) from None
    if not is_inside(manifest.path) or not manifest.files:
        raise _invalid_manifest_error(model, manifest.path)
    return manifest


def _invalid_manifest_error(model: BundledModel, detail: str) -> EnginebayError:
    return EnginebayError(f"the bundle manifest is invalid for the model {model.name}: {detail}", "copy it again")
