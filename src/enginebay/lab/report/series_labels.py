"""Engine labels of the report: the shortest names that distinguish the series."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from enginebay.lab.report.manifest_access import get_external_url, get_section
from enginebay.lab.report.setting_values import find_differing, format_setting, select_engine_settings
from enginebay.lab.store.run_reader import Run

MAX_LABEL_SETTINGS = 3  # differing settings per label


def get_engine_name(run: Run) -> str:
    """Return the engine's kind; for an unknown external server, its URL."""
    return run.engine or str(get_section(run, "server").get("url") or "unknown engine")


def make_series_key(run: Run) -> str:
    """Return a key that is equal for runs of one engine with the same settings, whatever the load."""
    return json.dumps([_describe_identity(run), _collect_settings(run)], sort_keys=True, default=str)


def make_labels(heads: Sequence[Run]) -> list[str]:
    """Return a label per series: the engine's name, plus the differences if several share it."""
    return [" · ".join([get_engine_name(run), *_list_distinctions(run, heads)]) for run in heads]


def _list_distinctions(run: Run, heads: Sequence[Run]) -> list[str]:
    namesakes = [other for other in heads if get_engine_name(other) == get_engine_name(run)]
    identity = _describe_identity(run)
    parts = [
        identity[name] for name in find_differing([_describe_identity(other) for other in namesakes]) if identity[name]
    ]
    settings = _collect_settings(run)
    names = find_differing([_collect_settings(other) for other in namesakes])
    return parts + [
        f"{name.split('.')[-1]}={format_setting(settings.get(name))}" for name in names[:MAX_LABEL_SETTINGS]
    ]


def _collect_settings(run: Run) -> dict[str, Any]:
    """Return the requested settings; for an external server, those it reports."""
    return select_engine_settings(
        {**get_section(run, "config"), **(get_section(run, "effective") if get_external_url(run) else {})}
    )


def _describe_identity(run: Run) -> dict[str, str]:
    return {
        "engine": get_engine_name(run),
        "version": str(get_section(run, "engine").get("version") or ""),
        "model": run.model,
        "url": get_external_url(run),
    }
