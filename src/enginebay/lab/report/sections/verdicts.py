"""First of all: may these numbers be published?"""

from __future__ import annotations

from collections import Counter

from enginebay.lab.report.comparable import differences
from enginebay.lab.report.markup import Html, badge, details, h, join, section, table
from enginebay.lab.report.points import Point, Report, worst
from enginebay.lab.report.source import cycle, part
from enginebay.lab.runs.manifest import STATUSES
from enginebay.lab.runs.reader import Run
from enginebay.lab.validity.codes import CODES

SENTENCES = {
    "valid": "may be published as they stand",
    "informative": "may be published only with the reasons below next to them",
    "invalid": "must not be published; the reasons below say why",
}


def verdicts(report: Report, findings: Html | None) -> Html:
    counts = Counter(run.status for run in report.runs)
    overall = worst(counts)
    return section(
        "verdicts",
        "Verdict",
        h("div", h("p", _headline(counts, len(report.runs))), class_=f"banner {overall}", role="status"),
        findings,
        _reason_list(report.runs),
        _differences(report),
        _unchecked(report.runs),
        details("The verdict of each run", _each(report), opened=overall != "valid" and len(report.runs) <= 12),
    )


def _headline(counts: Counter[str], total: int) -> Html:
    if len(counts) == 1:
        only = next(iter(counts))
        which = "The one run is" if total == 1 else f"All {total} runs are"
        return join(h("strong", f"{which} {only}. "), f"The numbers {SENTENCES.get(only, SENTENCES['invalid'])}.")
    parts = [
        join(h("strong", f"{counts[one]} of {total} runs {'is' if counts[one] == 1 else 'are'} {one}"), f": {tail}. ")
        for one, tail in (
            ("invalid", "left out of the means of points that have other runs, and marked wherever they are shown"),
            ("informative", "counted, and marked"),
            ("valid", "counted"),
        )
        if counts[one]
    ]
    return join(*parts)


def _reason_list(runs: tuple[Run, ...]) -> Html | None:
    """Each reason once, with how many runs have it and one of their messages."""
    found: dict[str, list[dict[str, object]]] = {}
    for run in runs:
        for reason in run.reasons:
            found.setdefault(str(reason.get("code", "?")), []).append(reason)
    if not found:
        return None
    ordered = sorted(found.items(), key=lambda item: -len(item[1]))
    rows = [_reason_row(code, each) for code, each in ordered]
    head: list[Html | str] = ["reason", "makes a run", "runs", "for example", "concerns", "why it matters"]
    return table(head, rows, "Why runs are not simply valid")


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


def _unchecked(runs: tuple[Run, ...]) -> Html | None:
    """Checks that lacked their facts claim nothing; a reader should know which."""
    codes = dict.fromkeys(str(code) for run in runs for code in part(run, "verdict").get("unchecked") or ())
    if not codes:
        return None
    listed = [piece for code in codes for piece in (", ", h("code", code))][1:]
    return h("p", "Nothing is claimed about these checks, whose facts were not there: ", *listed, ".", class_="quiet")


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
