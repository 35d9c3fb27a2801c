"""The answers in five seconds: which engine is ahead, by how much, at what energy, and whether that is settled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from enginebay.lab.measures.figures import better
from enginebay.lab.report.comparing import Pair, by_load
from enginebay.lab.report.figures import column_unit, digits, named, times, unit_of
from enginebay.lab.report.markup import Html, badge, h, join, swatch
from enginebay.lab.report.metrics import TITLES
from enginebay.lab.report.points import Point, Report, worst
from enginebay.lab.report.source import part
from enginebay.lab.statistics.intervals import Interval

# Of each line the first that was measured.
HEADLINES = (("output_tokens_per_s",), ("ttft_s.p95", "ttft_s.median"), ("tpot_s.median",), ("j_per_output_token",))
ROWS = 6  # engines in a panel; the table of results has all


def glance(report: Report, pairs: Sequence[Pair]) -> Html:
    """A panel for each headline measure, all at one load."""
    points, sound = _most_telling(report, pairs)
    what = points[0].load.label
    if len({run.model for run in report.runs}) > 1:
        what = f"{points[0].group.runs[0].model}, {what}"
    return join(
        h("h3", f"At a glance: {what} ", badge(worst(point.status for point in points))),
        h("div", *(_panel(_first(keys, points), points, pairs) for keys in HEADLINES), class_="panels"),
        h("p", _about(report, points, sound), class_="note"),
    )


def _most_telling(report: Report, pairs: Sequence[Pair]) -> tuple[list[Point], int]:
    """The points at the load with most comparisons that can be believed, and how many; of several, the heaviest load."""

    def worth(points: list[Point]) -> tuple[int, int, float]:
        sound = sum(pair.found["valid"] for pair in pairs if pair.a in points)
        usable = sum(point.status != "invalid" for point in points)
        return sound, usable, points[0].load.asked or 0.0

    best = max(by_load(report.points), key=worth)
    return best, worth(best)[0]


def _about(report: Report, points: Sequence[Point], sound: int) -> str:
    text = "Means over cycles with 95% confidence intervals."
    if len(points) > 1:
        text += (
            " “1.20 × [1.10, 1.30]” is the ratio of the paired runs; it is settled where its difference leaves out 0."
        )
    if len(by_load(report.points)) > 1:
        chosen = "heaviest load with most valid comparisons" if sound else "heaviest load"
        text += f" This is the {chosen}; the others are in the results."
    return text


def _first(keys: Sequence[str], points: Sequence[Point]) -> str:
    """The first that every point has, else that any has, else the first."""
    for enough in (all, any):
        for key in keys:
            if enough(key in point.figures for point in points):
                return key
    return keys[0]


def _panel(key: str, points: Sequence[Point], pairs: Sequence[Pair]) -> Html:
    measured = sorted((point for point in points if key in point.figures), key=lambda point: _rank(point, key))
    if not measured:
        absent = h("p", h("strong", "Not measured"))
        why = h("p", _why_absent(key, points), " ", h("a", "What is not here", href="#absent"), class_="quiet")
        return h("div", h("h4", TITLES[key]), absent, why, class_="panel")
    notes = _notes(key, measured, pairs)
    factor, unit = column_unit([point.figures[key].estimate for point in measured], unit_of(key))
    largest = max(max(point.figures[key].estimate, point.figures[key].high or 0.0) for point in measured) or 1.0
    rows = [_row(point, key, factor, largest, notes.get(point.name)) for point in measured[:ROWS]]
    more = len(measured) - ROWS
    return h(
        "div",
        h("h4", named(TITLES[key], unit)),
        h("p", _conclusion(key, measured, notes)),
        h("ul", *rows, class_="plain"),
        h("p", f"and {more} more in the results", class_="quiet") if more > 0 else None,
        class_="panel",
    )


def _rank(point: Point, key: str) -> tuple[bool, float]:
    """The best first, invalid ones last."""
    estimate = point.figures[key].estimate
    return point.status == "invalid", -estimate if better(key) == "higher" else estimate


def _why_absent(key: str, points: Sequence[Point]) -> str:
    for name in (key, key.partition(".")[0], "energy_j"):
        for run in (run for point in points for run in point.group.runs):
            if why := part(run, "measures", "absent").get(name):
                return f"{str(why).capitalize()}."
    return ""


def _notes(key: str, measured: Sequence[Point], pairs: Sequence[Pair]) -> dict[str, tuple[bool, str]]:
    """Of each valid rival of the first: whether the first is surely ahead, and what is known of that."""
    leader, *others = measured
    rivals = [point for point in others if point.status != "invalid"]
    return {rival.name: _note(key, leader, rival, pairs) for rival in rivals}


def _note(key: str, leader: Point, rival: Point, pairs: Sequence[Pair]) -> tuple[bool, str]:
    pair = next((one for one in pairs if {one.a.name, one.b.name} == {leader.name, rival.name}), None)
    found: Mapping[str, Any] | None = None if pair is None else pair.found["figures"].get(key)
    if pair is None or found is None:
        return False, "not compared in pairs"
    if not pair.found["valid"]:
        return False, f"not to be believed: {pair.found['problems'][0]}"
    if not found["differs"]:
        return False, str(found["outlook"])
    estimate, interval = _ratio_of_leader(found["ratio"], pair.b.name == leader.name)
    return True, f"{leader.series.label} has {estimate} {interval} of this"


def _ratio_of_leader(ratio: Mapping[str, Any] | None, leader_is_b: bool) -> tuple[str, str]:
    if ratio is None or not ratio["estimate"]:
        return "another multiple", ""
    estimate, low, high = ratio["estimate"], ratio["low"], ratio["high"]
    if not leader_is_b:
        estimate, low, high = 1 / estimate, 1 / high if high else None, 1 / low if low else None
    return times(estimate, low, high)


def _conclusion(key: str, measured: Sequence[Point], notes: Mapping[str, tuple[bool, str]]) -> Html:
    leader = measured[0]
    if leader.status == "invalid":
        return h("strong", "Invalid: must not be published")
    if not notes:
        return h("span", "the only one with a number that may be compared" if len(measured) > 1 else "")
    if all(settled for settled, _ in notes.values()):
        return join(h("strong", leader.series.label), f" is {'highest' if better(key) == 'higher' else 'lowest'}")
    return h("strong", "Not settled")


def _row(point: Point, key: str, factor: float, largest: float, note: tuple[bool, str] | None) -> Html:
    found = point.figures[key]
    value: Html = join(digits(found.estimate * factor), _interval(found, factor))
    invalid = point.status == "invalid"
    return h(
        "li",
        h("span", swatch(point.series.number), point.series.label, class_="name"),
        None if point.status == "valid" else badge(point.status),
        h("s", value, title="from an invalid run", class_="number") if invalid else h("span", value, class_="number"),
        _bar(point, found, largest),
        None if note is None else h("small", note[1]),
    )


def _interval(found: Interval, factor: float) -> Html | None:
    if found.low is None or found.high is None:
        return None
    return h("small", f" [{digits(found.low * factor)}, {digits(found.high * factor)}]")


def _bar(point: Point, found: Interval, largest: float) -> Html:
    """The number says it already; the bar is for the eye."""
    end = 100 * max(0.0, found.estimate) / largest
    whisker = None
    if found.low is not None and found.high is not None:
        whisker = h(
            "line", x1=f"{100 * max(0.0, found.low) / largest:.2f}", x2=f"{100 * found.high / largest:.2f}", y1=4, y2=4
        )
    drawn = "hollow" if point.status == "invalid" else "solid"
    return h(
        "svg",
        h("rect", width=f"{end:.2f}", height=8, class_=drawn),
        whisker,
        viewBox="0 0 100 8",
        preserveAspectRatio="none",
        class_=f"bar c{point.series.number % 8}",
        aria_hidden="true",
    )
