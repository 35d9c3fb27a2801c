"""The points of a study: its engines and the changes of its sweep, without those that an engine cannot run."""

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
    """One engine with one choice of the swept values."""

    engine: str  # a kind; "auto" where the config says so and nobody said what it stands for
    changes: Mapping[str, Any]  # by dotted key, those for other engines left out
    config: Config  # with this engine and these changes

    @property
    def label(self) -> str:
        return format_label(self.engine, self.changes)


@dataclass(frozen=True, slots=True)
class DroppedPoint:
    """A point that is not run, and why."""

    engine: str
    changes: Mapping[str, Any]
    reasons: tuple[str, ...]

    @property
    def label(self) -> str:
        return format_label(self.engine, self.changes)


def format_label(engine: str, changes: Mapping[str, Any]) -> str:
    """Short and readable: `vllm max_num_seqs=32 batching.batch_size=8`."""
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
    """The points to run, in the order of the sweep for each engine in turn, and those that are left out.

    `specs`: what each engine can do, at its installed version where that is known. `auto`: the engine that auto stands
    for here. Raises `ConfigError` for what is wrong on every engine.
    """
    base = load_config(path, preset=preset, flags=flags, environ=environ, strict=strict, specs=specs)
    words = ConfigKeys(base.specs)
    swept = expand_sweep(base.experiment.sweep)
    _check_flags(swept, flags, words)
    wanted, dropped = _assign_changes(base, swept, words, auto)
    kept: list[SweepPoint] = []
    for engine, changes in wanted:
        on_top = {**changes, "engine": engine}
        found = validate_config(
            path, preset=preset, flags=flags, changes=on_top, environ=environ, strict=strict, specs=base.specs
        )
        reasons = [str(problem) for problem in found.problems] or _explain_no_effect(found.config, changes)
        if reasons:
            dropped.append(DroppedPoint(engine, changes, tuple(reasons)))
        else:
            kept.append(SweepPoint(engine, changes, found.config))
    return kept, dropped


def _assign_changes(
    base: Config, swept: list[dict[str, Any]], known_keys: ConfigKeys, auto: str | None
) -> tuple[list[tuple[str, dict[str, Any]]], list[DroppedPoint]]:
    """Each engine with the changes that are meant for it, and what is left out because none of it is."""
    where = [_resolve_engines(base, changes, known_keys, auto) for changes in swept]
    wanted: list[tuple[str, dict[str, Any]]] = []
    dropped: list[DroppedPoint] = []
    for engine in dict.fromkeys(kind for kinds in where for kind in kinds):
        mine = [changes for changes, kinds in zip(swept, where, strict=True) if engine in kinds]
        kept, lost = _select_changes(engine, mine, known_keys)
        wanted += [(engine, changes) for changes in kept]
        dropped += lost
    return wanted, dropped


def _select_changes(
    engine: str, swept: list[dict[str, Any]], known_keys: ConfigKeys
) -> tuple[list[dict[str, Any]], list[DroppedPoint]]:
    """Its changes without those for other engines, each once; an engine to which none apply runs once as it is."""
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
    """Where these changes are tried: on the engine they name, else on each one of the study."""
    swept = [value for key, value in changes.items() if _canonicalize_key(key, known_keys) == "engine"]
    asked = [known_keys.resolve_kind(str(name)) or AUTO for name in swept] or base.list_study_engines()
    return tuple(dict.fromkeys(auto if auto and kind == AUTO else kind for kind in asked))


def _filter_changes(engine: str, changes: Mapping[str, Any], known_keys: ConfigKeys) -> dict[str, Any]:
    """Without the settings of other engines, and without the choice of the engine itself."""
    return {
        key: value
        for key, value in changes.items()
        if _canonicalize_key(key, known_keys) != "engine"
        and (engine == AUTO or _find_owning_engine(key, known_keys) in (None, engine))
    }


def _find_owning_engine(key: str, known_keys: ConfigKeys) -> str | None:
    """The engine whose block this key is in, also within a model."""
    parts = _canonicalize_key(key, known_keys).split(".")
    within = parts[2] if parts[0] == "models" and len(parts) > 2 else parts[0]
    return known_keys.resolve_kind(within)


def _canonicalize_key(key: str, known_keys: ConfigKeys) -> str:
    """The key in its one spelling."""
    head, dot, rest = key.removeprefix("inference.").partition(".")
    if head in SAMPLING_ALIASES:
        return f"sampling.{SAMPLING_ALIASES[head]}"
    one = "sampling" if head == "decoder" else ROOT_ALIASES.get(head) or known_keys.resolve_kind(head) or head
    return f"{one}{dot}{rest}"


def _check_flags(swept: list[dict[str, Any]], flags: Mapping[str, Any], known_keys: ConfigKeys) -> None:
    """A flag must not be undone by the sweep, nor the sweep by a flag."""
    fixed = set(_iter_flag_keys(flags, "", known_keys))
    for key in dict.fromkeys(key for changes in swept for key in changes):
        if any(_keys_overlap(_canonicalize_key(key, known_keys), flag) for flag in fixed):
            raise ConfigError(f"{key} is swept, and set by a flag too", "leave the flag out, or the key of the sweep")


def _keys_overlap(one: str, other: str) -> bool:
    """Are they the same key, or one within the other?"""
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


def _iter_flag_keys(flags: Mapping[str, Any], prefix: str, known_keys: ConfigKeys) -> Iterator[str]:
    for key, value in flags.items():
        if isinstance(value, Mapping):
            yield from _iter_flag_keys(value, f"{prefix}{key}.", known_keys)
        elif value is not None:
            yield _canonicalize_key(f"{prefix}{key}", known_keys)


def _explain_no_effect(config: Config, changes: Mapping[str, Any]) -> list[str]:
    """Changes that this engine takes and ignores: such points would be measured twice under different names."""
    hit = [one for one in config.warnings if any(one.key == key or one.key.startswith(f"{key}.") for key in changes)]
    return [f"{one.key}: {one.message}" for one in hit]
