"""What engines are called on the page: the shortest name that tells each from the others."""

from __future__ import annotations

import json
from collections.abc import Sequence

from enginebay.lab.report.settings import differing, engine_settings, shown
from enginebay.lab.report.source import part
from enginebay.lab.runs.reader import Run

SETTINGS = 3  # of those that differ, named in a label


def engine_name(run: Run) -> str:
    """The engine's kind; of a server that is not ours, its address where it does not say what it is."""
    return run.engine or str(part(run, "server").get("url") or "unknown engine")


def series_key(run: Run) -> str:
    """The same for runs of one engine with the same settings, whatever the load."""
    return json.dumps([_identity(run), engine_settings(part(run, "config"))], sort_keys=True, default=str)


def labels(heads: Sequence[Run]) -> list[str]:
    """One for each series: the engine's name, and where several share it, what is different."""
    return [" · ".join([engine_name(run), *_distinctions(run, heads)]) for run in heads]


def _distinctions(run: Run, heads: Sequence[Run]) -> list[str]:
    alike = [one for one in heads if engine_name(one) == engine_name(run)]
    own = _identity(run)
    parts = [own[name] for name in differing([_identity(one) for one in alike]) if own[name]]
    settings = engine_settings(part(run, "config"))
    names = differing([engine_settings(part(one, "config")) for one in alike])
    return parts + [f"{name.split('.')[-1]}={shown(settings.get(name))}" for name in names[:SETTINGS]]


def _identity(run: Run) -> dict[str, str]:
    server = part(run, "server")
    return {
        "engine": engine_name(run),
        "version": str(part(run, "engine").get("version") or ""),
        "model": run.model,
        "url": "" if server.get("ours", True) else str(server.get("url") or ""),
    }
