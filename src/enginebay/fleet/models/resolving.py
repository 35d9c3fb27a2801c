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
from enginebay.fleet.children import operation
from enginebay.fleet.models.catalogue import CATALOGUE
from enginebay.fleet.models.describe import describe
from enginebay.fleet.models.manifest import StoredModel
from enginebay.fleet.models.progress import Say
from enginebay.fleet.models.sources import FileSource, default_name, looks_like_source, parse
from enginebay.fleet.models.store import Store


def resolve(what: str, store: Store | None = None) -> StoredModel:
    """A model that is here: by name, by path or by the source it came from."""
    store = store or Store()
    stored = store.get(what)
    if stored is not None:
        return stored
    if what in CATALOGUE:
        raise UnknownModel(f"the model {what} is not fetched yet", f"fetch it with: bay models pull {what}")
    if looks_like_source(what) or Path(what).exists():
        source = parse(what)
        known = store.by_source(source)
        if known is not None:
            return known
        if isinstance(source, FileSource):
            return _loose(source, store)
        raise UnknownModel(f"{what} is not here", f"fetch it with: bay models pull {what}")
    raise _unknown(what, store)


@operation()
def ensure(
    what: str,
    *,
    offline: bool = False,
    say: Say | None = None,
    with_code: bool = False,
    store: Store | None = None,
) -> StoredModel:
    """A model that is here now: fetched if it is of the catalogue or given by its source."""
    store = store or Store()
    try:
        return resolve(what, store)
    except UnknownModel:
        if what not in CATALOGUE and not looks_like_source(what):
            raise
    return store.pull(what, offline=offline, say=say, with_code=with_code)


def _loose(source: FileSource, store: Store) -> StoredModel:
    """A model used where it lies, without being registered; what is made from it is kept by the store."""
    if not source.path.exists():
        raise UnknownModel(f"there is no model at {source.path}", "check the path")
    found = describe(source.path)
    key = hashlib.sha256(str(found.path.resolve()).encode()).hexdigest()[:16]
    name = default_name(source)
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


def _unknown(what: str, store: Store) -> UnknownModel:
    names = sorted({*CATALOGUE, *(model.name for model in store.models())})
    near = get_close_matches(what, names, n=3)
    meant = f"did you mean {' or '.join(near)}? " if near else ""
    return UnknownModel(
        f"there is no model {what!r}",
        f"{meant}fetch one with: bay models pull hf:ORG/NAME; `bay models list` shows what there is",
    )
