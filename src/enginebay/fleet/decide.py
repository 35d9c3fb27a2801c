"""The choice of an engine on this host, now: gathers the facts and asks the pure rule."""

from __future__ import annotations

from enginebay.engines import registry
from enginebay.fleet.environments import installed
from enginebay.fleet.host import read_host
from enginebay.fleet.selection import Decision, ModelFacts, choose


def decide(model: str, asked: str | None = None) -> Decision:
    """Which engine runs the stored model `model`. `asked`: a kind or alias, "auto" or None."""
    from enginebay.fleet.models import resolve

    stored = resolve(model)
    return decide_for(ModelFacts(stored.format, stored.architecture or "", stored.name), asked)


def decide_for(facts: ModelFacts, asked: str | None = None) -> Decision:
    kind = registry.spec(asked).kind if asked and asked != "auto" else None
    formats = {spec.kind: spec.formats for spec in registry.specs().values()}
    return choose(facts, read_host(), installed(), kind, formats)
