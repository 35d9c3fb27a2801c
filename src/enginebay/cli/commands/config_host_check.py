"""What a configuration names and this host does not have, as `bay serve` would find out."""

from __future__ import annotations

from collections.abc import Iterator

from enginebay.config.entries.config_entry import ConfigEntry
from enginebay.config.resolved_config import Config, ConfigWarning, ModelConfig
from enginebay.config.sections.config_keys import AUTO
from enginebay.engines import registry
from enginebay.environments import find_environment
from enginebay.errors import EnginebayError, UnknownModel
from enginebay.fleet.engine_selection.engine_resolver import decide_engine_for
from enginebay.fleet.lifecycle.launch_plan import needs_weights
from enginebay.models import KNOWN_MODELS, resolve_model
from enginebay.models.model_sources import FileSource, looks_like_source, parse_source


def find_missing_on_host(config: Config) -> list[ConfigWarning]:
    """Engines that are not installed, and models that are not here and that nothing would fetch; each once."""
    named = [name for name in (config.model, *config.models) if name]
    found = [*_check_engine(config.engine_for(), config.engine_entry(), "engine")]
    for name in dict.fromkeys(named):
        found += _check_model(config, name)
    return list(dict.fromkeys(found))


def _check_model(config: Config, name: str) -> Iterator[ConfigWarning]:
    about = config.models.get(name) or ModelConfig(name)
    kind, place = config.engine_for(name), f"models.{name}" if name in config.models else "model"
    yield from _check_engine(kind, config.engine_entry(name), f"{place}.engine")
    for other in config.fallback_for(name):
        yield from _check_engine(other, about.entries.get("fallback"), f"{place}.fallback")
    if kind == AUTO or needs_weights(registry.get_spec(kind)):
        yield from _check_weights(about.source or name, kind, config.offline, about.entries.get("source"), place)


def _check_engine(kind: str, entry: ConfigEntry | None, key_path: str) -> Iterator[ConfigWarning]:
    try:
        if kind != AUTO:
            find_environment(kind)
    except EnginebayError as error:
        yield _to_warning(error, entry, key_path)


def _check_weights(
    source: str, kind: str, offline: bool, entry: ConfigEntry | None, key_path: str
) -> Iterator[ConfigWarning]:
    """Of a model's files, and of the engine that would be chosen for them."""
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
