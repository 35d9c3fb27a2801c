"""What engines are called on the page: the shortest name that tells each from the others."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from enginebay.lab.report.settings import differing, engine_settings, shown
from enginebay.lab.report.source import part, running_at
from enginebay.lab.runs.reader import Run

SETTINGS = 3  # of those that differ, named in a label


def engine_name(run: Run) -> str:
    """The engine's kind; of a server that is not ours, its address where it does not say what it is."""
    return run.engine or str(part(run, "server").get("url") or "unknown engine")


def series_key(run: Run) -> str:
    """The same for runs of one engine with the same settings, whatever the load."""
    return json.dumps([_identity(run), _settings(run)], sort_keys=True, default=str)


def labels(heads: Sequence[Run]) -> list[str]:
    """One for each series: the engine's name, and where several share it, what is different."""
    return [" · ".join([engine_name(run), *_distinctions(run, heads)]) for run in heads]


def _distinctions(run: Run, heads: Sequence[Run]) -> list[str]:
    alike = [one for one in heads if engine_name(one) == engine_name(run)]
    own = _identity(run)
    parts = [own[name] for name in differing([_identity(one) for one in alike]) if own[name]]
    settings = _settings(run)
    names = differing([_settings(one) for one in alike])
    return parts + [f"{name.split('.')[-1]}={shown(settings.get(name))}" for name in names[:SETTINGS]]


def _settings(run: Run) -> dict[str, Any]:
    """As they were asked for; of a server that was running already, as it tells them."""
    return engine_settings({**part(run, "config"), **(part(run, "effective") if running_at(run) else {})})


def _identity(run: Run) -> dict[str, str]:
    return {
        "engine": engine_name(run),
        "version": str(part(run, "engine").get("version") or ""),
        "model": run.model,
        "url": running_at(run),
    }
