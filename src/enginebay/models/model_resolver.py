"""Resolves a model name, path or source to a local model, and fetches it if needed.

    resolve_model("smollm2")            a local model
    ensure_model("smollm2", say=…)      the same, fetched if missing

Raises `UnknownModel` with the nearest names, and `Offline` if a fetch is needed but not allowed.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from enginebay.errors import UnknownModel
from enginebay.models.known_models import KNOWN_MODELS
from enginebay.models.model_description import describe_model
from enginebay.models.model_manifest import StoredModel
from enginebay.models.model_sources import FileSource, derive_name, looks_like_source, parse_source
from enginebay.models.model_store import ModelStore
from enginebay.util.child_processes import interruptible
from enginebay.util.progress import Say
from enginebay.util.text_format import find_nearest

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+(?:@[\w./-]+)?(?::[^:]+\.gguf)?")


def resolve_model(name_or_source: str, store: ModelStore | None = None) -> StoredModel:
    """Return a local model by name, path or source."""
    store = store or ModelStore()
    stored = store.get(name_or_source)
    if stored is not None:
        return stored
    if name_or_source in KNOWN_MODELS:
        raise UnknownModel(
            f"the model {name_or_source} is not downloaded", f"download it with: bay models pull {name_or_source}"
        )
    if looks_like_source(name_or_source) or Path(name_or_source).exists():
        source = parse_source(name_or_source)
        stored = store.find_by_source(source)
        if stored is not None:
            return stored
        if isinstance(source, FileSource):
            return _describe_unregistered(source, store)
        raise UnknownModel(f"{name_or_source} is not downloaded", f"download it with: bay models pull {name_or_source}")
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
    """Return a local model. Fetches it if it is in the catalogue or given by its source."""
    store = store or ModelStore()
    try:
        return resolve_model(name_or_source, store)
    except UnknownModel:
        if name_or_source not in KNOWN_MODELS and not looks_like_source(name_or_source):
            raise
    return store.pull(name_or_source, offline=offline, say=say, with_code=with_code)


def _describe_unregistered(source: FileSource, store: ModelStore) -> StoredModel:
    """Describe a model that is used in place, unregistered. The store caches the files derived from it."""
    if not source.path.exists():
        raise UnknownModel(f"model not found: {source.path}", "check the path")
    model = describe_model(source.path)
    key = hashlib.sha256(str(model.path.resolve()).encode()).hexdigest()[:16]
    name = derive_name(source)
    return StoredModel(
        name=name,
        format=model.format,
        path=model.path,
        architecture=model.architecture,
        context_length=model.context_length,
        size_bytes=model.size_bytes,
        parameters=model.parameters,
        quantisation=model.quantisation,
        source=str(source),
        folder=store.root / ".made" / f"{name}-{key}",
    )


def _build_unknown_error(requested: str, store: ModelStore) -> UnknownModel:
    names = sorted({*KNOWN_MODELS, *(model.name for model in store.list_models())})
    if _HUB_NAME.fullmatch(requested):
        return UnknownModel(
            f"unknown model {requested!r}",
            f"for the model on the Hugging Face hub, use hf:{requested}; for a path, ./{requested}",
            param="model",
        )
    near = find_nearest(requested, names, 3)
    suggestion = f"did you mean {' or '.join(near)}? " if near else ""
    return UnknownModel(
        f"unknown model {requested!r}",
        f"{suggestion}list models with: bay models list; download one with: bay models pull hf:ORG/NAME",
    )
