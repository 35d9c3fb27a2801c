"""Expands a study into points: each engine with the sweep changes that apply to it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from enginebay.config.loader import load_config, validate_config
from enginebay.config.resolved_config import Config
from enginebay.config.sections.config_keys import AUTO, ROOT_ALIASES, SAMPLING_ALIASES, ConfigKeys
from enginebay.config.sections.sweep_grid import expand_sweep, fingerprint_changes
from enginebay.contract import EngineSpec
from enginebay.errors import ConfigError


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One engine with one set of swept values."""

    engine: str  # a kind, or an unresolved "auto"
    changes: Mapping[str, Any]  # by dotted key, without those of other engines
    config: Config  # with this engine and these changes

    @property
    def label(self) -> str:
        return format_label(self.engine, self.changes)


@dataclass(frozen=True, slots=True)
class DroppedPoint:
    """A skipped point, and why."""

    engine: str
    changes: Mapping[str, Any]
    reasons: tuple[str, ...]

    @property
    def label(self) -> str:
        return format_label(self.engine, self.changes)


def format_label(engine: str, changes: Mapping[str, Any]) -> str:
    """Format a short label: `vllm max_num_seqs=32 batching.batch_size=8`."""
    named = {key.removeprefix(f"{engine}."): value for key, value in changes.items() if key != "engine"}
    texts = {key: value if isinstance(value, str) else json.dumps(value, default=str) for key, value in named.items()}
    return " ".join([engine, *(f"{key}={text}" for key, text in texts.items())])


def expand_points(
    path: Path | None = None,
    *,
    preset: str | None = None,
    flags: Mapping[str, Any] = MappingProxyType({}),
    environ: Mapping[str, str] = os.environ,
    strict: bool = False,
    specs: Mapping[str, EngineSpec] | None = None,
    auto: str | None = None,
) -> tuple[list[SweepPoint], list[DroppedPoint]]:
    """Return the points to run, engine by engine in sweep order, and the skipped ones.

    `specs` are the engines' specs, at their installed versions if known. `auto` is the engine that auto resolves to.
    Raises `ConfigError` for problems on every engine.
    """
    base = load_config(path, preset=preset, flags=flags, environ=environ, strict=strict, specs=specs)
    known_keys = ConfigKeys(base.specs)
    swept = expand_sweep(base.experiment.sweep)
    _check_flags(swept, flags, known_keys)
    assigned, dropped = _assign_changes(base, swept, known_keys, auto)
    kept: list[SweepPoint] = []
    for engine, changes in assigned:
        overrides = {**changes, "engine": engine}
        result = validate_config(
            path, preset=preset, flags=flags, changes=overrides, environ=environ, strict=strict, specs=base.specs
        )
        reasons = [str(problem) for problem in result.problems] or _explain_no_effect(result.config, changes)
        if reasons:
            dropped.append(DroppedPoint(engine, changes, tuple(reasons)))
        else:
            kept.append(SweepPoint(engine, changes, result.config))
    return kept, dropped


def _assign_changes(
    base: Config, swept: list[dict[str, Any]], known_keys: ConfigKeys, auto: str | None
) -> tuple[list[tuple[str, dict[str, Any]]], list[DroppedPoint]]:
    """Assign to each engine the changes that apply to it; return the rest as dropped."""
    targets = [_resolve_engines(base, changes, known_keys, auto) for changes in swept]
    assigned: list[tuple[str, dict[str, Any]]] = []
    dropped: list[DroppedPoint] = []
    for engine in dict.fromkeys(kind for kinds in targets for kind in kinds):
        candidates = [changes for changes, kinds in zip(swept, targets, strict=True) if engine in kinds]
        kept, rejected = _select_changes(engine, candidates, known_keys)
        assigned += [(engine, changes) for changes in kept]
        dropped += rejected
    return assigned, dropped


def _select_changes(
    engine: str, swept: list[dict[str, Any]], known_keys: ConfigKeys
) -> tuple[list[dict[str, Any]], list[DroppedPoint]]:
    """Return the engine's unique changes without those of other engines. If none apply, it runs once unchanged."""
    kept: dict[str, dict[str, Any]] = {}
    dropped: list[DroppedPoint] = []
    left = [_filter_changes(engine, changes, known_keys) for changes in swept]
    some_apply = any(left)
    for changes, own in zip(swept, left, strict=True):
        foreign = [key for key in changes if key not in own and _canonicalize_key(key, known_keys) != "engine"]
        repeats = fingerprint_changes(own) in kept or (not own and some_apply)
        if foreign and repeats:
            dropped.append(
                DroppedPoint(engine, changes, tuple(f"{key}: does not belong to {engine}" for key in foreign))
            )
        else:
            kept.setdefault(fingerprint_changes(own), own)
    return list(kept.values()), dropped


def _resolve_engines(
    base: Config, changes: Mapping[str, Any], known_keys: ConfigKeys, auto: str | None
) -> tuple[str, ...]:
    """Return the engines for these changes: the one they name, else all of the study."""
    swept = [value for key, value in changes.items() if _canonicalize_key(key, known_keys) == "engine"]
    kinds = [known_keys.resolve_kind(str(name)) or AUTO for name in swept] or base.list_study_engines()
    return tuple(dict.fromkeys(auto if auto and kind == AUTO else kind for kind in kinds))


def _filter_changes(engine: str, changes: Mapping[str, Any], known_keys: ConfigKeys) -> dict[str, Any]:
    """Drop settings of other engines, and `engine` itself."""
    return {
        key: value
        for key, value in changes.items()
        if _canonicalize_key(key, known_keys) != "engine"
        and (engine == AUTO or _find_owning_engine(key, known_keys) in (None, engine))
    }


def _find_owning_engine(key: str, known_keys: ConfigKeys) -> str | None:
    """Return the engine whose section this key is in, also within a model."""
    parts = _canonicalize_key(key, known_keys).split(".")
    within = parts[2] if parts[0] == "models" and len(parts) > 2 else parts[0]
    return known_keys.resolve_kind(within)


def _canonicalize_key(key: str, known_keys: ConfigKeys) -> str:
    """Return the canonical spelling of a key."""
    head, dot, rest = key.removeprefix("inference.").partition(".")
    if head in SAMPLING_ALIASES:
        return f"sampling.{SAMPLING_ALIASES[head]}"
    canonical = "sampling" if head == "decoder" else ROOT_ALIASES.get(head) or known_keys.resolve_kind(head) or head
    return f"{canonical}{dot}{rest}"


def _check_flags(swept: list[dict[str, Any]], flags: Mapping[str, Any], known_keys: ConfigKeys) -> None:
    """Reject keys that are both swept and set by a flag. Raises `ConfigError`."""
    fixed = set(_iter_flag_keys(flags, "", known_keys))
    for key in dict.fromkeys(key for changes in swept for key in changes):
        if any(_keys_overlap(_canonicalize_key(key, known_keys), flag) for flag in fixed):
            raise ConfigError(f"{key} is swept and also set by a flag", "remove the flag, or the key from the sweep")


def _keys_overlap(key: str, other: str) -> bool:
    """Return whether the keys are equal or one contains the other."""
    return f"{key}.".startswith(f"{other}.") or f"{other}.".startswith(f"{key}.")


def _iter_flag_keys(flags: Mapping[str, Any], prefix: str, known_keys: ConfigKeys) -> Iterator[str]:
    for key, value in flags.items():
        if isinstance(value, Mapping):
            yield from _iter_flag_keys(value, f"{prefix}{key}.", known_keys)
        elif value is not None:
            yield _canonicalize_key(f"{prefix}{key}", known_keys)


def _explain_no_effect(config: Config, changes: Mapping[str, Any]) -> list[str]:
    """Return why changes have no effect: such points would repeat another under a different label."""
    return [
        f"{warning.key}: {warning.message}"
        for warning in config.warnings
        if any(warning.key == key or warning.key.startswith(f"{key}.") for key in changes)
    ]
