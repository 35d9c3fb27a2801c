"""The points of a study: its engines and the changes of its sweep, without those that an engine cannot run."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from enginebay.config.keys import AUTO, ROOT_ALIASES, TO_SAMPLING, Vocabulary
from enginebay.config.load import assess, load_config
from enginebay.config.model import Config
from enginebay.config.sweep import expand, fingerprint
from enginebay.contract import EngineSpec
from enginebay.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Point:
    """One engine with one choice of the swept values."""

    engine: str  # a kind; "auto" where the config says so and nobody said what it stands for
    changes: Mapping[str, Any]  # by dotted key, those for other engines left out
    config: Config  # with this engine and these changes

    @property
    def label(self) -> str:
        return label(self.engine, self.changes)


@dataclass(frozen=True, slots=True)
class Dropped:
    """A point that is not run, and why."""

    engine: str
    changes: Mapping[str, Any]
    reasons: tuple[str, ...]

    @property
    def label(self) -> str:
        return label(self.engine, self.changes)


def label(engine: str, changes: Mapping[str, Any]) -> str:
    """Short and readable: `vllm max_num_seqs=32 batching.batch_size=8`."""
    named = {key.removeprefix(f"{engine}."): value for key, value in changes.items() if key != "engine"}
    texts = {key: value if isinstance(value, str) else json.dumps(value, default=str) for key, value in named.items()}
    return " ".join([engine, *(f"{key}={text}" for key, text in texts.items())])


def points(
    path: Path | None = None,
    *,
    preset: str | None = None,
    flags: Mapping[str, Any] = MappingProxyType({}),
    environ: Mapping[str, str] = os.environ,
    strict: bool = False,
    specs: Mapping[str, EngineSpec] | None = None,
    auto: str | None = None,
) -> tuple[list[Point], list[Dropped]]:
    """The points to run, in the order of the sweep for each engine in turn, and those that are left out.

    `specs`: what each engine can do, at its installed version where that is known. `auto`: the engine that auto stands
    for here. Raises `ConfigError` for what is wrong on every engine.
    """
    base = load_config(path, preset=preset, flags=flags, environ=environ, strict=strict, specs=specs)
    words = Vocabulary(base.specs)
    swept = expand(base.experiment.sweep)
    _check_flags(swept, flags, words)
    wanted, dropped = _plan(base, swept, words, auto)
    kept: list[Point] = []
    for engine, changes in wanted:
        on_top = {**changes, "engine": engine}
        found = assess(
            path, preset=preset, flags=flags, changes=on_top, environ=environ, strict=strict, specs=base.specs
        )
        reasons = [str(problem) for problem in found.problems] or _without_effect(found.config, changes)
        if reasons:
            dropped.append(Dropped(engine, changes, tuple(reasons)))
        else:
            kept.append(Point(engine, changes, found.config))
    return kept, dropped


def _plan(
    base: Config, swept: list[dict[str, Any]], words: Vocabulary, auto: str | None
) -> tuple[list[tuple[str, dict[str, Any]]], list[Dropped]]:
    """Each engine with the changes that are meant for it, and what is left out because none of it is."""
    where = [_engines(base, changes, words, auto) for changes in swept]
    wanted: list[tuple[str, dict[str, Any]]] = []
    dropped: list[Dropped] = []
    for engine in dict.fromkeys(kind for kinds in where for kind in kinds):
        mine = [changes for changes, kinds in zip(swept, where, strict=True) if engine in kinds]
        kept, lost = _of_one(engine, mine, words)
        wanted += [(engine, changes) for changes in kept]
        dropped += lost
    return wanted, dropped


def _of_one(engine: str, swept: list[dict[str, Any]], words: Vocabulary) -> tuple[list[dict[str, Any]], list[Dropped]]:
    """Its changes without those for other engines, each once; an engine to which none apply runs once as it is."""
    kept: dict[str, dict[str, Any]] = {}
    dropped: list[Dropped] = []
    left = [_meant_for(engine, changes, words) for changes in swept]
    some_apply = any(left)
    for changes, own in zip(swept, left, strict=True):
        foreign = [key for key in changes if key not in own and _spelled(key, words) != "engine"]
        repeats = fingerprint(own) in kept or (not own and some_apply)
        if foreign and repeats:
            dropped.append(Dropped(engine, changes, tuple(f"{key}: does not belong to {engine}" for key in foreign)))
        else:
            kept.setdefault(fingerprint(own), own)
    return list(kept.values()), dropped


def _engines(base: Config, changes: Mapping[str, Any], words: Vocabulary, auto: str | None) -> tuple[str, ...]:
    """Where these changes are tried: on the engine they name, else on each one of the study."""
    swept = [value for key, value in changes.items() if _spelled(key, words) == "engine"]
    asked = [words.kind(str(name)) or AUTO for name in swept] or base.study_engines()
    return tuple(dict.fromkeys(auto if auto and kind == AUTO else kind for kind in asked))


def _meant_for(engine: str, changes: Mapping[str, Any], words: Vocabulary) -> dict[str, Any]:
    """Without the settings of other engines, and without the choice of the engine itself."""
    return {
        key: value
        for key, value in changes.items()
        if _spelled(key, words) != "engine" and (engine == AUTO or _owner(key, words) in (None, engine))
    }


def _owner(key: str, words: Vocabulary) -> str | None:
    """The engine whose block this key is in, also within a model."""
    parts = _spelled(key, words).split(".")
    within = parts[2] if parts[0] == "models" and len(parts) > 2 else parts[0]
    return words.kind(within)


def _spelled(key: str, words: Vocabulary) -> str:
    """The key in its one spelling."""
    head, dot, rest = key.removeprefix("inference.").partition(".")
    if head in TO_SAMPLING:
        return f"sampling.{TO_SAMPLING[head]}"
    one = "sampling" if head == "decoder" else ROOT_ALIASES.get(head) or words.kind(head) or head
    return f"{one}{dot}{rest}"


def _check_flags(swept: list[dict[str, Any]], flags: Mapping[str, Any], words: Vocabulary) -> None:
    """A flag must not be undone by the sweep, nor the sweep by a flag."""
    fixed = set(_fixed(flags, "", words))
    for key in dict.fromkeys(key for changes in swept for key in changes):
        if any(_overlap(_spelled(key, words), flag) for flag in fixed):
            raise ConfigError(f"{key} is swept, and set by a flag too", "leave the flag out, or the key of the sweep")


def _overlap(one: str, other: str) -> bool:
    """Are they the same key, or one within the other?"""
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


def _fixed(flags: Mapping[str, Any], prefix: str, words: Vocabulary) -> Iterator[str]:
    for key, value in flags.items():
        if isinstance(value, Mapping):
            yield from _fixed(value, f"{prefix}{key}.", words)
        elif value is not None:
            yield _spelled(f"{prefix}{key}", words)


def _without_effect(config: Config, changes: Mapping[str, Any]) -> list[str]:
    """Changes that this engine takes and ignores: such points would be measured twice under different names."""
    hit = [one for one in config.warnings if any(one.key == key or one.key.startswith(f"{key}.") for key in changes)]
    return [f"{one.key}: {one.message}" for one in hit]
