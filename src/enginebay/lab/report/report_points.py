"""Series and points of the report: a series is one engine with its settings, a point is a series at one load."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from enginebay.lab.report.manifest_access import get_external_url, get_section
from enginebay.lab.report.setting_values import find_differing, format_setting, select_engine_settings
from enginebay.lab.statistics.confidence_intervals import ConfidenceInterval
from enginebay.lab.statistics.cycle_statistics import compute_cycle_intervals
from enginebay.lab.statistics.run_groups import RunGroup, group_runs
from enginebay.lab.store.run_reader import Run
from enginebay.util.text_format import pluralize

MAX_LABEL_SETTINGS = 3  # differing settings per label


@dataclass(frozen=True, slots=True)
class ReportWorkload:
    """`requested` is the value on the load axis; None if the load has no single number (offline, traces)."""

    kind: str
    label: str
    requested: float | None = None
    unit: str = ""


def describe_workload(profile: Mapping[str, Any]) -> ReportWorkload:
    """Describe the profile of a manifest; an unknown kind keeps its name."""
    kind = str(profile.get("kind", "unknown"))
    rate = _to_number(profile.get("rate"))
    concurrency = _to_number(profile.get("concurrency"))
    if concurrency is not None:
        return ReportWorkload(kind, f"closed loop, {concurrency:g} concurrent", concurrency, "concurrent requests")
    if rate is not None:
        extra = _to_number(profile.get("burstiness"))
        tail = f", burstiness {extra:g}" if extra is not None else ""
        return ReportWorkload(kind, f"{_kind_title(kind)}, {rate:g}/s{tail}", rate, "requests/s offered")
    start, end = _to_number(profile.get("from_rate")), _to_number(profile.get("to_rate"))
    if start is not None and end is not None:
        return ReportWorkload(kind, f"ramp, {start:g} to {end:g}/s")
    return ReportWorkload(kind, _kind_title(kind))


def _kind_title(kind: str) -> str:
    return "Poisson" if kind == "poisson" else kind


def _to_number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


@dataclass(frozen=True)
class ReportSeries:
    """One engine with its settings; `number` selects its colour, dash and mark."""

    number: int
    label: str
    first: Run


@dataclass(frozen=True)
class ReportPoint:
    """The cycles of one engine at one load; `figures` are means over the counted runs with 95% intervals."""

    series: ReportSeries
    workload: ReportWorkload
    group: RunGroup
    figures: Mapping[str, ConfidenceInterval]

    @property
    def status(self) -> str:
        return self.group.status

    @property
    def name(self) -> str:
        return f"{self.series.label} · {self.workload.label}"

    def describe_runs(self) -> str:
        """Return how many runs count, and how many are excluded."""
        left_out = len(self.group.runs) - len(self.group.counted)
        text = pluralize(len(self.group.counted), "run")
        return f"{text}, {left_out} invalid excluded" if left_out else text


@dataclass(frozen=True)
class ReportContent:
    """Everything that the sections render."""

    title: str
    runs: tuple[Run, ...]
    series: tuple[ReportSeries, ...]
    points: tuple[ReportPoint, ...]


def arrange_runs(runs: Sequence[Run], title: str = "") -> ReportContent:
    """Sort the runs into series and points."""
    groups = group_runs(runs)
    heads: dict[str, Run] = {}
    for group in groups:
        heads.setdefault(make_series_key(group.runs[0]), group.runs[0])
    named = zip(heads, make_labels(list(heads.values())), strict=True)
    series = {key: ReportSeries(number, label, heads[key]) for number, (key, label) in enumerate(named)}
    points = [_make_point(series[make_series_key(group.runs[0])], group) for group in groups]
    ordered = sorted(_disambiguate(points), key=_sort_key)
    return ReportContent(
        title or _make_title(runs, list(series.values())), tuple(runs), tuple(series.values()), tuple(ordered)
    )


def _make_point(series: ReportSeries, group: RunGroup) -> ReportPoint:
    figures = compute_cycle_intervals([run.measures for run in group.counted])
    return ReportPoint(series, describe_workload(get_section(group.runs[0], "profile")), group, figures)


def _disambiguate(points: Sequence[ReportPoint]) -> list[ReportPoint]:
    """Append the study's label to points of one series with the same load."""
    names = Counter(point.name for point in points)
    return [_add_study_label(point) if names[point.name] > 1 else point for point in points]


def _add_study_label(point: ReportPoint) -> ReportPoint:
    first = point.group.runs[0]
    return replace(point, workload=replace(point.workload, label=f"{point.workload.label} ({first.label or first.id})"))


def _sort_key(point: ReportPoint) -> tuple[int, str, float]:
    requested = point.workload.requested
    return point.series.number, point.workload.unit, -1.0 if requested is None else requested


def _make_title(runs: Sequence[Run], series: Sequence[ReportSeries]) -> str:
    models = dict.fromkeys(run.model or "a model" for run in runs)
    engines = dict.fromkeys(get_engine_name(entry.first) for entry in series)
    return f"{_join_with_and(list(models))} on {_join_with_and(list(engines))}"


def _join_with_and(names: Sequence[str]) -> str:
    return "".join(names) if len(names) < 2 else f"{', '.join(names[:-1])} and {names[-1]}"


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
    effective = get_section(run, "effective") if get_external_url(run) else {}
    return select_engine_settings({**get_section(run, "config"), **effective})


def _describe_identity(run: Run) -> dict[str, str]:
    return {
        "engine": get_engine_name(run),
        "version": str(get_section(run, "engine").get("version") or ""),
        "model": run.model,
        "url": get_external_url(run),
    }
