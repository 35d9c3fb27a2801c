"""The engine registry: built-in and third-party engines by kind.

Kinds come from the built-in table, from entry points of the group `enginebay.engines` in this environment, and from the
specs stored beside installed environments. The first source that knows a kind wins: a built-in kind cannot be replaced.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

from enginebay.contract import EngineSpec
from enginebay.errors import UnknownEngine
from enginebay.util.paths import engines_dir
from enginebay.util.text_format import find_nearest

GROUP = "enginebay.engines"

BUILT_IN: dict[str, str] = {
    "llamacpp": "enginebay.engines.llamacpp.spec:SPEC",
    "transformers": "enginebay.engines.transformers.spec:SPEC",
    "vllm": "enginebay.engines.vllm.spec:SPEC",
    "fake": "enginebay.engines.fake.spec:SPEC",
    "openai": "enginebay.engines.openai.spec:SPEC",
}


def load_specs() -> dict[str, EngineSpec]:
    """Return every known engine by kind, built-in ones first."""
    specs: dict[str, EngineSpec] = {}
    for spec in (*_get_registered().values(), *read_stored_specs()):
        specs.setdefault(spec.kind, spec)
    return specs


def get_spec(kind: str) -> EngineSpec:
    """Return the engine with this kind or alias. Raises `UnknownEngine`, which names the closest match."""
    registered = _get_registered()
    if kind in registered:  # the common case: reads no file
        return registered[kind]
    known = load_specs()
    by_alias = {alias: spec for spec in known.values() for alias in spec.aliases}
    spec = known.get(kind) or by_alias.get(kind)
    if spec is None:
        raise build_unknown_engine_error(kind, [*known, *by_alias])
    return spec


def list_kinds() -> list[str]:
    return list(load_specs())


def load_built_in_specs() -> list[EngineSpec]:
    """Return the specs of the engines in this package, for the documentation page."""
    return [_load_spec(target) for target in BUILT_IN.values()]


def build_unknown_engine_error(kind: str, known: list[str]) -> UnknownEngine:
    matches = find_nearest(kind, known)
    hint = f"did you mean {matches[0]}?" if matches else f"available: {', '.join(known)}"
    return UnknownEngine(f"unknown engine {kind!r}", hint)


def read_stored_specs(folder: Path | None = None) -> Iterator[EngineSpec]:
    """Yield the specs that probes stored beside installed environments."""
    base = engines_dir() if folder is None else folder
    for path in sorted(base.glob("[!.]*/spec.json"), reverse=True):
        try:
            yield EngineSpec.from_json(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError):
            continue  # `bay doctor` reports damaged environments; the others must keep working


def list_faulty_entry_points() -> dict[str, str]:
    """Return third-party entry points that failed to load, with the reason."""
    return _discover()[1]


def _get_registered() -> dict[str, EngineSpec]:
    return _discover()[0]


@cache
def _discover() -> tuple[dict[str, EngineSpec], dict[str, str]]:
    """Return the registered specs, and the faulty third-party entry points; one fault does not affect other engines."""
    points = {point.name: point.value for point in entry_points(group=GROUP)}
    built_in = {
        name: points[name] if _is_built_in(points.get(name, "")) else target for name, target in BUILT_IN.items()
    }
    specs = {spec.kind: spec for spec in map(_load_spec, built_in.values())}
    faults: dict[str, str] = {}
    for name, target in points.items():
        if _is_built_in(target):
            continue
        try:
            spec = _load_spec(target)
        except Exception as error:  # a third-party module may raise anything on import
            faults[name] = f"{target}: {type(error).__name__}: {error}"
            continue
        if spec.kind in specs:
            faults[name] = f"{target}: the kind {spec.kind!r} is already registered"
        else:
            specs[spec.kind] = spec
    return specs, faults


def _is_built_in(target: str) -> bool:
    return target.startswith("enginebay.")


def _load_spec(target: str) -> EngineSpec:
    module, _, attribute = target.partition(":")
    spec = getattr(import_module(module), attribute)
    if not isinstance(spec, EngineSpec):
        raise TypeError(f"{target} is not an EngineSpec")
    return spec
