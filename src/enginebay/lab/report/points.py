"""Runs put together: a series is one engine with its settings, a point is a series under one load."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from enginebay.lab.report.labels import engine_name, labels, series_key
from enginebay.lab.report.loads import Load, load_of
from enginebay.lab.report.source import part
from enginebay.lab.runs import points as repeating
from enginebay.lab.runs.manifest import STATUSES
from enginebay.lab.runs.reader import Run
from enginebay.lab.statistics.cycles import cycle_intervals
from enginebay.lab.statistics.intervals import Interval
from enginebay.wording import counted


@dataclass(frozen=True)
class Series:
    """One engine with its settings; `number` picks its colour, dash and mark everywhere on the page."""

    number: int
    label: str
    first: Run


@dataclass(frozen=True)
class Point:
    """The cycles of one engine at one load; `figures` are means over the counted ones with 95% intervals."""

    series: Series
    load: Load
    group: repeating.Point
    figures: Mapping[str, Interval]

    @property
    def status(self) -> str:
        return self.group.status

    @property
    def name(self) -> str:
        return f"{self.series.label} · {self.load.label}"

    def note(self) -> str:
        """How many runs the numbers come from, and whether some were left out."""
        left_out = len(self.group.runs) - len(self.group.counted)
        text = counted(len(self.group.counted), "run")
        return f"{text}, {left_out} invalid left out" if left_out else text


@dataclass(frozen=True)
class Report:
    """Everything the sections draw from."""

    title: str
    runs: tuple[Run, ...]
    series: tuple[Series, ...]
    points: tuple[Point, ...]


def worst(statuses: Iterable[str]) -> str:
    """The gravest of some verdicts."""
    return max(statuses, key=STATUSES.index)


def arrange(runs: Sequence[Run], title: str = "") -> Report:
    """Sort the runs into series and points."""
    groups = repeating.points(runs)
    heads: dict[str, Run] = {}
    for group in groups:
        heads.setdefault(series_key(group.runs[0]), group.runs[0])
    named = zip(heads, labels(list(heads.values())), strict=True)
    series = {key: Series(number, label, heads[key]) for number, (key, label) in enumerate(named)}
    points = [_point(series[series_key(group.runs[0])], group) for group in groups]
    ordered = sorted(_told_apart(points), key=_order)
    return Report(title or _title(runs, list(series.values())), tuple(runs), tuple(series.values()), tuple(ordered))


def _point(series: Series, group: repeating.Point) -> Point:
    figures = cycle_intervals([run.measures for run in group.counted])
    return Point(series, load_of(part(group.runs[0], "profile")), group, figures)


def _told_apart(points: Sequence[Point]) -> list[Point]:
    """Points of one series that had the same load get their study's own label behind it."""
    names = Counter(point.name for point in points)
    return [_with_label(point) if names[point.name] > 1 else point for point in points]


def _with_label(point: Point) -> Point:
    first = point.group.runs[0]
    return replace(point, load=replace(point.load, label=f"{point.load.label} ({first.label or first.id})"))


def _order(point: Point) -> tuple[int, str, float]:
    return point.series.number, point.load.unit, -1.0 if point.load.asked is None else point.load.asked


def _title(runs: Sequence[Run], series: Sequence[Series]) -> str:
    models = dict.fromkeys(run.model or "a model" for run in runs)
    engines = dict.fromkeys(engine_name(one.first) for one in series)
    return f"{_and(list(models))} on {_and(list(engines))}"


def _and(names: Sequence[str]) -> str:
    return "".join(names) if len(names) < 2 else f"{', '.join(names[:-1])} and {names[-1]}"
