"""Checks a configuration for what `bay serve` would fail on: what this host lacks, and what no host could run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from enginebay.config.entries.config_entry import ConfigEntry, ConfigProblem
from enginebay.config.resolved_config import Config, ConfigWarning, ModelConfig
from enginebay.config.sections.config_keys import AUTO
from enginebay.contract import EngineSpec
from enginebay.engines import registry
from enginebay.environments import find_environment
from enginebay.errors import ConfigError, EnginebayError, ModelInvalid, UnknownModel
from enginebay.fleet.engine_selection.engine_resolver import decide_engine_for
from enginebay.fleet.memory.gpu_needs import check_gpus, check_pinned, describe_key, list_gpu_capacity
from enginebay.fleet.scheduling.device_placement import GpuNeed
from enginebay.models import KNOWN_MODELS, resolve_model
from enginebay.models.adapter_files import check_adapter
from enginebay.models.model_sources import FileSource, looks_like_source, parse_source
from enginebay.util.hardware import read_host


def find_missing_on_host(config: Config) -> list[ConfigWarning]:
    """Return a warning for each engine not installed, and each model or file that is neither here nor downloadable."""
    warnings = [*_check_engine(config.engine_for(), config.engine_entry(), "engine"), *_check_keys_file(config)]
    for name in _list_models(config):
        warnings += _check_model(config, name)
    warnings += _check_gpus(config)
    warnings += [_to_warning(error, entry, key_path) for error, entry, key_path in _check_adapters(config, ConfigError)]
    return list(dict.fromkeys(warnings))


def find_fatal_problems(config: Config) -> list[ConfigProblem]:
    """Return what `bay serve` fails on, whatever the host: tasks and adapters that an engine does not support."""
    problems = [
        ConfigProblem(key_path, _describe_error(error), entry.origin)
        for error, entry, key_path in (*_check_tasks(config), *_check_adapters(config, ModelInvalid))
    ]
    return list(dict.fromkeys(problems))


def _list_models(config: Config) -> list[str]:
    return list(dict.fromkeys(name for name in (config.model, *config.models) if name))


def _list_engines(config: Config, model: str) -> list[EngineSpec]:
    kinds = (_resolve_engine(config, model), *config.fallback_for(model))
    return [config.specs[kind] for kind in kinds if kind in config.specs]


def _resolve_engine(config: Config, model: str) -> str:
    """Return the engine of a model; for `auto` the one on this host, if the model is stored."""
    kind = config.engine_for(model)
    if kind == AUTO:
        with suppress(EnginebayError):
            configured = config.models.get(model) or ModelConfig(model)
            kind = decide_engine_for(resolve_model(configured.source or model), task=configured.task).kind
    return kind


def _check_keys_file(config: Config) -> Iterator[ConfigWarning]:
    path, entry = config.server.keys_file, config.section_entries["server"].get("keys_file")
    if path is not None and not path.is_file():
        yield _to_warning(
            ConfigError(f"file not found: {path}", "create it: bay keys create NAME"), entry, "server.keys_file"
        )


def _check_tasks(config: Config) -> Iterator[tuple[EnginebayError, ConfigEntry, str]]:
    for name, model in config.models.items():
        for spec in _list_engines(config, name):
            if "task" in model.entries and model.task not in spec.tasks:
                reason = f"{spec.kind} does not support it; it supports {', '.join(spec.tasks)}"
                yield ConfigError(reason), model.entries["task"], f"models.{name}.task"


def _check_adapters(
    config: Config, expected: type[EnginebayError]
) -> Iterator[tuple[EnginebayError, ConfigEntry, str]]:
    """Yield the errors of this type that adapters cause on the engines of their models."""
    for name, model in config.models.items():
        for spec in _list_engines(config, name):
            for adapter, path in model.loras.items():
                try:
                    check_adapter(spec, adapter, Path(path))
                except expected as error:
                    yield error, model.entries["loras"].value[adapter], f"models.{name}.loras.{adapter}"
                except EnginebayError:
                    pass


def _check_gpus(config: Config) -> Iterator[ConfigWarning]:
    """Yield what this host's GPUs cannot give: more than there are, and pinned models that do not fit together."""
    configured = {name: model for name, model in config.models.items() if model.gpus is not None}
    if not configured:
        return
    host, pinned = read_host(), dict[str, GpuNeed]()
    for name, model in configured.items():
        try:
            check_gpus(model.gpus, host)
            if model.pinned and (need := describe_key(model.gpus)) is not None:
                pinned[name] = need
        except ConfigError as error:
            yield _to_warning(error, model.entries.get("gpus"), f"models.{name}.gpus")
    try:
        check_pinned(pinned, list_gpu_capacity(host.gpus, host.memory_bytes, config.fleet.gpu_memory_bytes))
    except ConfigError as error:
        yield _to_warning(error, None, "models")


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
    message = _describe_error(error)
    if entry is None or entry.origin.source == "default":
        return ConfigWarning(key_path, message)
    return ConfigWarning(entry.key_path or key_path, message, entry.origin.line, str(entry.origin))


def _describe_error(error: EnginebayError) -> str:
    return f"{error.message}; {error.hint}" if error.hint else error.message
