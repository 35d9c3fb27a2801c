"""First of all: may these numbers be published? And if not, why not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from enginebay.lab.report.comparable import differences
from enginebay.lab.report.markup import Html, badge, details, h, join, section, table
from enginebay.lab.report.points import Point, Report, worst
from enginebay.lab.report.source import cycle, part
from enginebay.lab.runs.manifest import STATUSES
from enginebay.lab.runs.reader import Run
from enginebay.lab.validity.codes import CODES
from enginebay.wording import counted

SENTENCES = {
    "valid": "may be published as they stand",
    "informative": "may be published only with the reasons next to them",
    "invalid": "must not be published",
}


def verdicts(report: Report, glance: Html) -> Html:
    return section("verdicts", "Verdict", _banner(report), glance, _differences(report))


def _banner(report: Report) -> Html:
    of_points = Counter(point.status for point in report.points)
    of_runs = Counter(run.status for run in report.runs)
    left_out = any(len(point.group.counted) < len(point.group.runs) for point in report.points)
    colour = worst([*of_points, "informative" if left_out else "valid"])
    return h(
        "div",
        h("p", _headline(of_points)),
        h("p", _of_runs(of_runs, left_out)),
        _reasons_in_short(report.runs),
        class_=f"banner {colour}",
        role="status",
    )


def _headline(counts: Counter[str]) -> Html:
    """A point is an engine at a load; its numbers are those of its counted runs."""
    total = counts.total()
    return join(*(_sentence(one, counts[one], total) for one in STATUSES if counts[one]))


def _sentence(status: str, count: int, total: int) -> Html:
    which = f"{count} of {total} points" if count < total else f"All {total} points" if total > 1 else "The one point"
    verb, whose = ("is", "its") if count == 1 else ("are", "their")
    return join(h("strong", f"{which} {verb} {status}"), f": {whose} numbers {SENTENCES[status]}. ")


def _of_runs(counts: Counter[str], left_out: bool) -> str:
    listed = ", ".join(f"{counts[one]} {one}" for one in STATUSES if counts[one])
    tail = " Invalid runs are left out of the means of points that have other runs." if left_out else ""
    return f"{counted(counts.total(), 'run')}: {listed}.{tail}"


def _by_code(runs: Sequence[Run]) -> list[tuple[str, list[dict[str, object]]]]:
    """Each reason with the places it was found in, the most frequent first."""
    found: dict[str, list[dict[str, object]]] = {}
    for run in runs:
        for reason in run.reasons:
            found.setdefault(str(reason.get("code", "?")), []).append(reason)
    return sorted(found.items(), key=lambda item: -len(item[1]))


def _reasons_in_short(runs: Sequence[Run]) -> Html | None:
    found = _by_code(runs)
    if not found:
        return None
    listed = [
        piece for code, each in found for piece in (", ", join(h("code", code), f" in {counted(len(each), 'run')}"))
    ]
    return h("p", h("a", "Why", href="#reasons"), ": ", *listed[1:], ".")


def reasons(report: Report) -> Html:
    """What lies behind the verdicts."""
    found = _by_code(report.runs)
    head: list[Html | str] = ["reason", "makes a run", "runs", "for example", "concerns", "why it matters"]
    shown = table(head, [_reason_row(code, each) for code, each in found], "Why runs are not simply valid")
    return section(
        "reasons",
        "Reasons",
        shown if found else h("p", "No check found anything against any run."),
        _unchecked(report.runs),
        details("The verdict of each run", _each(report), opened=bool(found) and len(report.runs) <= 12),
    )


def _reason_row(code: str, each: list[dict[str, object]]) -> list[Html | str | None]:
    rule = CODES.get(code)
    return [
        h("code", code),
        badge(worst(_severity(one) for one in each)),
        str(len(each)),
        str(each[0].get("message", "")),
        None if rule is None else ", ".join(rule.concerns),
        None if rule is None else rule.why,
    ]


def _severity(reason: dict[str, object]) -> str:
    found = str(reason.get("severity"))
    return found if found in STATUSES else "invalid"


def _differences(report: Report) -> Html | None:
    found = differences(report.runs)
    if not found:
        return None
    rows: list[list[Html | str | None]] = [[name, " / ".join(values), why] for name, values, why in found]
    return join(
        h("h3", "These runs differ in more than the engine"),
        table(["what", "values", "what it means"], rows, "What differs between the runs besides engine and load"),
    )


def _unchecked(runs: Sequence[Run]) -> Html | None:
    """Checks that lacked their facts claim nothing; a reader should know which."""
    codes = Counter(str(code) for run in runs for code in part(run, "verdict").get("unchecked") or ())
    if not codes:
        return None
    listed = [piece for code, count in codes.items() for piece in (", ", h("code", code), _of(count, len(runs)))][1:]
    return h("p", "Nothing is claimed about these checks, whose facts were not there: ", *listed, ".", class_="note")


def _of(count: int, total: int) -> str | None:
    return None if count == total else f" ({count} of {total} runs)"


def _each(report: Report) -> Html:
    rows = [_row(point, run) for point in report.points for run in point.group.runs]
    return table(["run", "engine", "load", "cycle", "verdict", "reasons"], rows, "The verdict of each run")


def _row(point: Point, run: Run) -> list[Html | str | None]:
    turn = cycle(run)
    said = [_reason(one) for one in run.reasons]
    return [
        h("code", run.id),
        point.series.label,
        point.load.label,
        None if turn is None else str(turn),
        badge(run.status),
        h("ul", *said, class_="plain") if said else "none",
    ]


def _reason(reason: dict[str, object]) -> Html:
    return h("li", h("code", str(reason.get("code", "?"))), f" {reason.get('message', '')}")
