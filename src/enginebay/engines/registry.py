"""Which engines there are: ours and other people's, all found the same way.

Three sources, the first that knows a kind wins: entry points of the group `enginebay.engines` in this environment,
the built-in table (for a source tree without package metadata), and the specs stored beside installed environments.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

from enginebay.contract import EngineSpec
from enginebay.errors import UnknownEngine
from enginebay.util.paths import engines_dir

GROUP = "enginebay.engines"

BUILT_IN: dict[str, str] = {
    "llamacpp": "enginebay.engines.llamacpp.spec:SPEC",
    "transformers": "enginebay.engines.transformers.spec:SPEC",
    "vllm": "enginebay.engines.vllm.spec:SPEC",
    "fake": "enginebay.engines.fake.spec:SPEC",
    "openai": "enginebay.engines.openai.spec:SPEC",
}


def load_specs() -> dict[str, EngineSpec]:
    """Every known engine by kind: built-in ones first, in their own order."""
    found: dict[str, EngineSpec] = {}
    for one in (*_get_registered().values(), *read_stored_specs()):
        found.setdefault(one.kind, one)
    return found


def get_spec(kind: str) -> EngineSpec:
    """The engine called `kind`, by its name or an alias. Raises `UnknownEngine` naming the nearest."""
    registered = _get_registered()
    if kind in registered:  # the common case reads no file
        return registered[kind]
    known = load_specs()
    by_alias = {alias: one for one in known.values() for alias in one.aliases}
    found = known.get(kind) or by_alias.get(kind)
    if found is None:
        raise build_unknown_engine_error(kind, [*known, *by_alias])
    return found


def list_kinds() -> list[str]:
    return list(load_specs())


def load_built_in_specs() -> list[EngineSpec]:
    """Only the engines that come with this package: what the documentation page is made of."""
    return [_load_spec(target) for target in BUILT_IN.values()]


def build_unknown_engine_error(kind: str, known: list[str]) -> UnknownEngine:
    near = get_close_matches(kind, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known engines: {', '.join(known)}"
    return UnknownEngine(f"there is no engine called {kind!r}", hint)


def read_stored_specs(folder: Path | None = None) -> Iterator[EngineSpec]:
    """Specs that probes wrote beside installed environments."""
    base = engines_dir() if folder is None else folder
    for path in sorted(base.glob("[!.]*/spec.json"), reverse=True):
        try:
            yield EngineSpec.from_json(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError):
            continue  # a damaged environment is `bay doctor`'s business; the others must keep working


def list_faulty_entry_points() -> dict[str, str]:
    """Entry points of other packages that could not be used, with the reason."""
    return _discover()[1]


def _get_registered() -> dict[str, EngineSpec]:
    return _discover()[0]


@cache
def _discover() -> tuple[dict[str, EngineSpec], dict[str, str]]:
    """Built-in engines and those of other packages here; a fault in someone else's stops no other engine."""
    points = {point.name: point.value for point in entry_points(group=GROUP)}
    ours = {name: points[name] if _is_ours(points.get(name, "")) else target for name, target in BUILT_IN.items()}
    found = {one.kind: one for one in map(_load_spec, ours.values())}
    wrong: dict[str, str] = {}
    for name, target in points.items():
        if _is_ours(target):
            continue
        try:
            theirs = _load_spec(target)
        except Exception as error:  # whatever a foreign module raises while it is imported
            wrong[name] = f"{target}: {type(error).__name__}: {error}"
            continue
        if theirs.kind in found:
            wrong[name] = f"{target}: the kind {theirs.kind!r} is taken"
        else:
            found[theirs.kind] = theirs
    return found, wrong


def _is_ours(target: str) -> bool:
    return target.startswith("enginebay.")


def _load_spec(target: str) -> EngineSpec:
    module, _, attribute = target.partition(":")
    loaded = getattr(import_module(module), attribute)
    if not isinstance(loaded, EngineSpec):
        raise TypeError(f"{target} is not an EngineSpec")
    return loaded
