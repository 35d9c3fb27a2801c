"""First of all: may these numbers be published? And if not, why not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from enginebay.lab.report.confounders import find_confounders
from enginebay.lab.report.manifest_access import get_cycle, get_section
from enginebay.lab.report.markup import Html, h, join_html, render_badge, render_details, render_section, render_table
from enginebay.lab.report.report_points import ReportContent, ReportPoint, worst_status
from enginebay.lab.store.run_manifest import STATUSES
from enginebay.lab.store.run_reader import Run
from enginebay.lab.validity.codes import REASON_RULES
from enginebay.util.text_format import pluralize

STATUS_SENTENCES = {
    "valid": "may be published as they stand",
    "informative": "may be published only with the reasons next to them",
    "invalid": "must not be published",
}


def render_verdicts(report: ReportContent, glance: Html) -> Html:
    return render_section("verdicts", "Verdict", _render_banner(report), glance, _render_confounders(report))


def _render_banner(report: ReportContent) -> Html:
    of_points = Counter(point.status for point in report.points)
    of_runs = Counter(run.status for run in report.runs)
    left_out = any(len(point.group.counted) < len(point.group.runs) for point in report.points)
    colour = worst_status([*of_points, "informative" if left_out else "valid"])
    return h(
        "div",
        h("p", _render_headline(of_points)),
        h("p", _describe_runs(of_runs, left_out)),
        _render_reason_summary(report.runs),
        class_=f"banner {colour}",
        role="status",
    )


def _render_headline(counts: Counter[str]) -> Html:
    """A point is an engine at a load; its numbers are those of its counted runs."""
    total = counts.total()
    return join_html(*(_render_sentence(one, counts[one], total) for one in STATUSES if counts[one]))


def _render_sentence(status: str, count: int, total: int) -> Html:
    which = f"{count} of {total} points" if count < total else f"All {total} points" if total > 1 else "The one point"
    verb, whose = ("is", "its") if count == 1 else ("are", "their")
    return join_html(h("strong", f"{which} {verb} {status}"), f": {whose} numbers {STATUS_SENTENCES[status]}. ")


def _describe_runs(counts: Counter[str], left_out: bool) -> str:
    listed = ", ".join(f"{counts[one]} {one}" for one in STATUSES if counts[one])
    tail = " Invalid runs are left out of the means of points that have other runs." if left_out else ""
    return f"{pluralize(counts.total(), 'run')}: {listed}.{tail}"


def _group_by_code(runs: Sequence[Run]) -> list[tuple[str, list[dict[str, object]]]]:
    """Each reason with the places it was found in, the most frequent first."""
    found: dict[str, list[dict[str, object]]] = {}
    for run in runs:
        for reason in run.reasons:
            found.setdefault(str(reason.get("code", "?")), []).append(reason)
    return sorted(found.items(), key=lambda item: -len(item[1]))


def _render_reason_summary(runs: Sequence[Run]) -> Html | None:
    found = _group_by_code(runs)
    if not found:
        return None
    listed = [
        piece
        for code, each in found
        for piece in (", ", join_html(h("code", code), f" in {pluralize(len(each), 'run')}"))
    ]
    return h("p", h("a", "Why", href="#reasons"), ": ", *listed[1:], ".")


def render_reasons(report: ReportContent) -> Html:
    """What lies behind the verdicts."""
    found = _group_by_code(report.runs)
    head: list[Html | str] = ["reason", "makes a run", "runs", "for example", "concerns", "why it matters"]
    shown = render_table(head, [_make_reason_row(code, each) for code, each in found], "Why runs are not simply valid")
    return render_section(
        "reasons",
        "Reasons",
        shown if found else h("p", "No check found anything against any run."),
        _render_unchecked(report.runs),
        render_details(
            "The verdict of each run", _render_each_run(report), opened=bool(found) and len(report.runs) <= 12
        ),
    )


def _make_reason_row(code: str, each: list[dict[str, object]]) -> list[Html | str | None]:
    rule = REASON_RULES.get(code)
    return [
        h("code", code),
        render_badge(worst_status(_get_severity(one) for one in each)),
        str(len(each)),
        str(each[0].get("message", "")),
        None if rule is None else ", ".join(rule.concerns),
        None if rule is None else rule.why,
    ]


def _get_severity(reason: dict[str, object]) -> str:
    found = str(reason.get("severity"))
    return found if found in STATUSES else "invalid"


def _render_confounders(report: ReportContent) -> Html | None:
    found = find_confounders(report.runs)
    if not found:
        return None
    rows: list[list[Html | str | None]] = [[name, " / ".join(values), why] for name, values, why in found]
    return join_html(
        h("h3", "These runs differ in more than the engine"),
        render_table(
            ["what", "values", "what it means"], rows, "What differs between the runs besides engine and load"
        ),
    )


def _render_unchecked(runs: Sequence[Run]) -> Html | None:
    """Checks that lacked their facts claim nothing; a reader should know which."""
    codes = Counter(str(code) for run in runs for code in get_section(run, "verdict").get("unchecked") or ())
    if not codes:
        return None
    listed = [
        piece for code, count in codes.items() for piece in (", ", h("code", code), _format_share(count, len(runs)))
    ][1:]
    return h("p", "Nothing is claimed about these checks, whose facts were not there: ", *listed, ".", class_="note")


def _format_share(count: int, total: int) -> str | None:
    return None if count == total else f" ({count} of {total} runs)"


def _render_each_run(report: ReportContent) -> Html:
    rows = [_make_run_row(point, run) for point in report.points for run in point.group.runs]
    return render_table(["run", "engine", "load", "cycle", "verdict", "reasons"], rows, "The verdict of each run")


def _make_run_row(point: ReportPoint, run: Run) -> list[Html | str | None]:
    turn = get_cycle(run)
    said = [_render_reason(one) for one in run.reasons]
    return [
        h("code", run.id),
        point.series.label,
        point.workload.label,
        None if turn is None else str(turn),
        render_badge(run.status),
        h("ul", *said, class_="plain") if said else "none",
    ]


def _render_reason(reason: dict[str, object]) -> Html:
    return h("li", h("code", str(reason.get("code", "?"))), f" {reason.get('message', '')}")
