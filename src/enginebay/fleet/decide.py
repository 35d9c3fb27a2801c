"""The choice of an engine on this host, now: gathers the facts and asks the pure rule."""

from __future__ import annotations

from enginebay.engines import registry
from enginebay.fleet import choices
from enginebay.fleet.environments import installed
from enginebay.fleet.host import HostFacts, read_host
from enginebay.fleet.models import StoredModel, resolve
from enginebay.fleet.selection import Decision, ModelFacts, Preference, candidates, choose

_DENSE_BYTES = 2  # of one parameter in 16 bits


def decide(model: str, asked: str | None = None) -> Decision:
    """Which engine runs the model called `model`, which must be here."""
    return decide_stored(resolve(model), asked)


def decide_stored(stored: StoredModel, asked: str | None = None) -> Decision:
    """Which engine runs a stored model. `asked`: a kind or alias, "auto" or None.

    Left to choose, it goes by what was measured for this model on this host, where something was.
    """
    facts, host = _facts(stored), read_host()
    if asked and asked != "auto":
        return choose(facts, host, installed(), registry.spec(asked).kind, _formats())
    measured, notes = _measured(stored, host)
    return choose(facts, host, installed(), None, _formats(), measured, notes)


def candidates_for(stored: StoredModel) -> tuple[list[str], dict[str, str]]:
    """The installed engines that can run a stored model here, and what is against the others."""
    return candidates(_facts(stored), read_host(), installed(), _formats())


def _measured(stored: StoredModel, host: HostFacts) -> tuple[Preference | None, tuple[str, ...]]:
    looked = choices.find(stored, host)
    choice = looked.choice
    if choice is None:
        return None, looked.ignored
    return Preference(choice.engine, choice.best.version, choices.told(choice), choice.date), ()


def _facts(stored: StoredModel) -> ModelFacts:
    dense_bytes = stored.parameters * _DENSE_BYTES if stored.parameters else None
    return ModelFacts(stored.format, stored.architecture, stored.name, dense_bytes)


def _formats() -> dict[str, tuple[str, ...]]:
    return {spec.kind: spec.formats for spec in registry.specs().values()}
