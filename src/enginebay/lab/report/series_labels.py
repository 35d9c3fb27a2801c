"""What engines are called on the page: the shortest name that tells each from the others."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from enginebay.lab.report.manifest_access import get_external_url, get_section
from enginebay.lab.report.setting_values import find_differing, format_setting, select_engine_settings
from enginebay.lab.store.run_reader import Run

MAX_LABEL_SETTINGS = 3  # of those that differ, named in a label


def get_engine_name(run: Run) -> str:
    """The engine's kind; of a server that is not ours, its address where it does not say what it is."""
    return run.engine or str(get_section(run, "server").get("url") or "unknown engine")


def make_series_key(run: Run) -> str:
    """The same for runs of one engine with the same settings, whatever the load."""
    return json.dumps([_describe_identity(run), _collect_settings(run)], sort_keys=True, default=str)


def make_labels(heads: Sequence[Run]) -> list[str]:
    """One for each series: the engine's name, and where several share it, what is different."""
    return [" · ".join([get_engine_name(run), *_list_distinctions(run, heads)]) for run in heads]


def _list_distinctions(run: Run, heads: Sequence[Run]) -> list[str]:
    alike = [one for one in heads if get_engine_name(one) == get_engine_name(run)]
    own = _describe_identity(run)
    parts = [own[name] for name in find_differing([_describe_identity(one) for one in alike]) if own[name]]
    settings = _collect_settings(run)
    names = find_differing([_collect_settings(one) for one in alike])
    return parts + [
        f"{name.split('.')[-1]}={format_setting(settings.get(name))}" for name in names[:MAX_LABEL_SETTINGS]
    ]


def _collect_settings(run: Run) -> dict[str, Any]:
    """As they were asked for; of a server that was running already, as it tells them."""
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
