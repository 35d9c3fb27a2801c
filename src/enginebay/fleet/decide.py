"""The choice of an engine on this host, now: gathers the facts and asks the pure rule."""

from __future__ import annotations

from enginebay.engines import registry
from enginebay.fleet.environments import installed
from enginebay.fleet.host import read_host
from enginebay.fleet.models import StoredModel, resolve
from enginebay.fleet.selection import Decision, ModelFacts, choose

_DENSE_BYTES = 2  # of one parameter in 16 bits


def decide(model: str, asked: str | None = None) -> Decision:
    """Which engine runs the model called `model`, which must be here."""
    return decide_stored(resolve(model), asked)


def decide_stored(stored: StoredModel, asked: str | None = None) -> Decision:
    """Which engine runs a stored model. `asked`: a kind or alias, "auto" or None."""
    dense_bytes = stored.parameters * _DENSE_BYTES if stored.parameters else None
    return decide_for(ModelFacts(stored.format, stored.architecture, stored.name, dense_bytes), asked)


def decide_for(facts: ModelFacts, asked: str | None = None) -> Decision:
    kind = registry.spec(asked).kind if asked and asked != "auto" else None
    formats = {spec.kind: spec.formats for spec in registry.specs().values()}
    return choose(facts, read_host(), installed(), kind, formats)
