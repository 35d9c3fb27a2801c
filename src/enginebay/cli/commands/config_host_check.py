"""Checks a configuration for engines and models that this host lacks."""

from __future__ import annotations

from collections.abc import Iterator

from enginebay.config.entries.config_entry import ConfigEntry
from enginebay.config.resolved_config import Config, ConfigWarning, ModelConfig
from enginebay.config.sections.config_keys import AUTO
from enginebay.engines import registry
from enginebay.environments import find_environment
from enginebay.errors import EnginebayError, UnknownModel
from enginebay.fleet.engine_selection.engine_resolver import decide_engine_for
from enginebay.models import KNOWN_MODELS, resolve_model
from enginebay.models.model_sources import FileSource, looks_like_source, parse_source


def find_missing_on_host(config: Config) -> list[ConfigWarning]:
    """Return a warning for each engine not installed, and each model that is neither stored nor downloadable."""
    named = [name for name in (config.model, *config.models) if name]
    warnings = [*_check_engine(config.engine_for(), config.engine_entry(), "engine")]
    for name in dict.fromkeys(named):
        warnings += _check_model(config, name)
    return list(dict.fromkeys(warnings))


def _check_model(config: Config, name: str) -> Iterator[ConfigWarning]:
    model = config.models.get(name) or ModelConfig(name)
    kind, key_path = config.engine_for(name), f"models.{name}" if name in config.models else "model"
    yield from _check_engine(kind, config.engine_entry(name), f"{key_path}.engine")
    for other in config.fallback_for(name):
        yield from _check_engine(other, model.entries.get("fallback"), f"{key_path}.fallback")
    if kind == AUTO or registry.get_spec(kind).needs_weights:
        yield from _check_weights(model.source or name, kind, config.offline, model.entries.get("source"), key_path)


def _check_engine(kind: str, entry: ConfigEntry | None, key_path: str) -> Iterator[ConfigWarning]:
    try:
        if kind != AUTO:
            find_environment(kind)
    except EnginebayError as error:
        yield _to_warning(error, entry, key_path)


def _check_weights(
    source: str, kind: str, offline: bool, entry: ConfigEntry | None, key_path: str
) -> Iterator[ConfigWarning]:
    """Check a model's files and, for `auto`, the engine they would run on."""
    try:
        stored = resolve_model(source)
        if kind == AUTO:
            find_environment(decide_engine_for(stored).kind)
    except UnknownModel as error:
        if offline or not _is_downloadable(source):
            yield _to_warning(error, entry, key_path)
    except EnginebayError as error:
        yield _to_warning(error, entry, key_path)


def _is_downloadable(source: str) -> bool:
    return source in KNOWN_MODELS or (looks_like_source(source) and not isinstance(parse_source(source), FileSource))


def _to_warning(error: EnginebayError, entry: ConfigEntry | None, key_path: str) -> ConfigWarning:
    message = f"{error.message}; {error.hint}" if error.hint else error.message
    if entry is None or entry.origin.source == "default":
        return ConfigWarning(key_path, message)
    return ConfigWarning(entry.key_path or key_path, message, entry.origin.line, str(entry.origin))
