"""May each model run where the config puts it: on its engine, then on those of its `fallback`? Pure."""

from __future__ import annotations

from collections.abc import Iterator

from enginebay.config.model import Config
from enginebay.config.tree import Entry, Problem


def engine_problems(config: Config) -> list[Problem]:
    """Chains that name an engine again, and prompts that would leave this host though nobody said they may."""
    named = dict.fromkeys([*config.models, *([config.model] if config.model else [])])
    return [problem for name in named for problem in (*_repeated(config, name), *_leaving(config, name))]


def _fallback(config: Config, model: str) -> Entry:
    found = config.models.get(model)
    return Entry(()) if found is None else found.entries.get("fallback", Entry(()))


def _repeated(config: Config, model: str) -> Iterator[Problem]:
    """A preset, flag or variable may well choose an engine of the chain; `Config.fallback_for` leaves it out then."""
    engine, chain = config.engine_entry(model), _fallback(config, model)
    chosen_apart = engine.origin.source == "preset" or engine.origin.rank > chain.origin.rank
    if engine.value in (chain.value or ()) and not chosen_apart:
        yield Problem(chain.place, f"names {engine.value}, the engine it is to replace", chain.origin)


def _leaving(config: Config, model: str) -> Iterator[Problem]:
    engine, chain = config.engine_entry(model), _fallback(config, model)
    for entry, kinds in ((engine, [engine.value]), (chain, chain.value or ())):
        for kind in kinds:
            reason = config.leaving(kind, model)
            if reason:
                yield Problem(entry.place, reason, entry.origin)
