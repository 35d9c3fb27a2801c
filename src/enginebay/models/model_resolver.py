"""From what a user calls a model to the model.

    resolve("smollm2")            a stored model; also a path or a source
    ensure("smollm2", say=…)      the same, and fetches it if it is not here

Raises `UnknownModel` with the nearest names, `Offline` where it would have to be fetched and must not be.
"""

from __future__ import annotations

import hashlib
from difflib import get_close_matches
from pathlib import Path

from enginebay.errors import UnknownModel
from enginebay.models.known_models import KNOWN_MODELS
from enginebay.models.model_description import describe_model
from enginebay.models.model_manifest import StoredModel
from enginebay.models.model_sources import FileSource, derive_name, looks_like_source, parse_source
from enginebay.models.model_store import ModelStore
from enginebay.util.child_processes import interruptible
from enginebay.util.progress import Say


def resolve_model(name_or_source: str, store: ModelStore | None = None) -> StoredModel:
    """A model that is here: by name, by path or by the source it came from."""
    store = store or ModelStore()
    stored = store.get(name_or_source)
    if stored is not None:
        return stored
    if name_or_source in KNOWN_MODELS:
        raise UnknownModel(
            f"the model {name_or_source} is not fetched yet", f"fetch it with: bay models pull {name_or_source}"
        )
    if looks_like_source(name_or_source) or Path(name_or_source).exists():
        source = parse_source(name_or_source)
        known = store.find_by_source(source)
        if known is not None:
            return known
        if isinstance(source, FileSource):
            return _describe_unregistered(source, store)
        raise UnknownModel(f"{name_or_source} is not here", f"fetch it with: bay models pull {name_or_source}")
    raise _build_unknown_error(name_or_source, store)


@interruptible()
def ensure_model(
    name_or_source: str,
    *,
    offline: bool = False,
    say: Say | None = None,
    with_code: bool = False,
    store: ModelStore | None = None,
) -> StoredModel:
    """A model that is here now: fetched if it is of the catalogue or given by its source."""
    store = store or ModelStore()
    try:
        return resolve_model(name_or_source, store)
    except UnknownModel:
        if name_or_source not in KNOWN_MODELS and not looks_like_source(name_or_source):
            raise
    return store.pull(name_or_source, offline=offline, say=say, with_code=with_code)


def _describe_unregistered(source: FileSource, store: ModelStore) -> StoredModel:
    """A model used where it lies, without being registered; what is made from it is kept by the store."""
    if not source.path.exists():
        raise UnknownModel(f"there is no model at {source.path}", "check the path")
    found = describe_model(source.path)
    key = hashlib.sha256(str(found.path.resolve()).encode()).hexdigest()[:16]
    name = derive_name(source)
    return StoredModel(
        name=name,
        format=found.format,
        path=found.path,
        architecture=found.architecture,
        context_length=found.context_length,
        size_bytes=found.size_bytes,
        parameters=found.parameters,
        quantisation=found.quantisation,
        source=str(source),
        folder=store.root / ".made" / f"{name}-{key}",
    )


def _build_unknown_error(what: str, store: ModelStore) -> UnknownModel:
    names = sorted({*KNOWN_MODELS, *(model.name for model in store.list_models())})
    near = get_close_matches(what, names, n=3)
    meant = f"did you mean {' or '.join(near)}? " if near else ""
    return UnknownModel(
        f"there is no model {what!r}",
        f"{meant}fetch one with: bay models pull hf:ORG/NAME; `bay models list` shows what there is",
    )
