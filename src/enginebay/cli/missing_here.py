"""What a configuration names and this host does not have, as `bay serve` would find out."""

from __future__ import annotations

from collections.abc import Iterator

from enginebay.config.keys import AUTO
from enginebay.config.model import Config, ConfigWarning, ModelConfig
from enginebay.config.tree import Entry
from enginebay.engines import registry
from enginebay.errors import EnginebayError, UnknownModel
from enginebay.fleet.decide import decide_stored
from enginebay.fleet.environments import find
from enginebay.fleet.models import CATALOGUE, resolve
from enginebay.fleet.models.sources import FileSource, looks_like_source, parse
from enginebay.fleet.plan import needs_weights


def missing_here(config: Config) -> list[ConfigWarning]:
    """Engines that are not installed, and models that are not here and that nothing would fetch; each once."""
    named = [name for name in (config.model, *config.models) if name]
    found = [*_engine(config.engine_for(), config.engine_entry(), "engine")]
    for name in dict.fromkeys(named):
        found += _of_model(config, name)
    return list(dict.fromkeys(found))


def _of_model(config: Config, name: str) -> Iterator[ConfigWarning]:
    about = config.models.get(name) or ModelConfig(name)
    kind, place = config.engine_for(name), f"models.{name}" if name in config.models else "model"
    yield from _engine(kind, config.engine_entry(name), f"{place}.engine")
    for other in config.fallback_for(name):
        yield from _engine(other, about.entries.get("fallback"), f"{place}.fallback")
    if kind == AUTO or needs_weights(registry.spec(kind)):
        yield from _weights(about.source or name, kind, config.offline, about.entries.get("source"), place)


def _engine(kind: str, entry: Entry | None, place: str) -> Iterator[ConfigWarning]:
    try:
        if kind != AUTO:
            find(kind)
    except EnginebayError as error:
        yield _warning(error, entry, place)


def _weights(source: str, kind: str, offline: bool, entry: Entry | None, place: str) -> Iterator[ConfigWarning]:
    """Of a model's files, and of the engine that would be chosen for them."""
    try:
        stored = resolve(source)
        if kind == AUTO:
            find(decide_stored(stored).kind)
    except UnknownModel as error:
        if offline or not _is_fetched_when_needed(source):
            yield _warning(error, entry, place)
    except EnginebayError as error:
        yield _warning(error, entry, place)


def _is_fetched_when_needed(source: str) -> bool:
    return source in CATALOGUE or (looks_like_source(source) and not isinstance(parse(source), FileSource))


def _warning(error: EnginebayError, entry: Entry | None, place: str) -> ConfigWarning:
    message = f"{error.message}; {error.hint}" if error.hint else error.message
    if entry is None or entry.origin.source == "default":
        return ConfigWarning(place, message)
    return ConfigWarning(entry.place or place, message, entry.origin.line, str(entry.origin))
