"""Verdicts: whether the numbers may be published, and why not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from enginebay.lab.report.manifest_access import get_cycle, get_section
from enginebay.lab.report.markup import Html, h, join_html, render_badge, render_details, render_section, render_table
from enginebay.lab.report.report_points import ReportContent, ReportPoint
from enginebay.lab.report.setting_values import format_setting
from enginebay.lab.store.run_environment import list_gpu_products
from enginebay.lab.store.run_manifest import STATUSES
from enginebay.lab.store.run_reader import Run
from enginebay.lab.validity.codes import REASON_RULES
from enginebay.lab.validity.verdict import worst_status
from enginebay.util.text_format import pluralize

# (title, manifest section, key, meaning of a difference)
COMPARED_SECTIONS = (
    ("model", "model", "name", "different models: speed and energy are not comparable"),
    ("model files", "model", "sha256", "different weights; another quantization changes the work"),
    ("host", "environment", "host", "different machines: the hardware may explain the difference"),
    ("CPU", "environment", "cpu", "different processors"),
    ("Enginebay", "environment", "enginebay", "the server or the lab may have changed"),
)

STATUS_SENTENCES = {
    "valid": "may be published as they are",
    "informative": "may be published only together with the reasons",
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
    """Summarize the points. A point is an engine at a load; its numbers are those of its counted runs."""
    total = counts.total()
    return join_html(*(_render_sentence(status, counts[status], total) for status in STATUSES if counts[status]))


def _render_sentence(status: str, count: int, total: int) -> Html:
    which = f"{count} of {total} points" if count < total else f"All {total} points" if total > 1 else "The one point"
    verb, whose = ("is", "its") if count == 1 else ("are", "their")
    return join_html(h("strong", f"{which} {verb} {status}"), f": {whose} numbers {STATUS_SENTENCES[status]}. ")


def _describe_runs(counts: Counter[str], left_out: bool) -> str:
    listed = ", ".join(f"{counts[status]} {status}" for status in STATUSES if counts[status])
    tail = " Means exclude invalid runs if a point has other runs." if left_out else ""
    return f"{pluralize(counts.total(), 'run')}: {listed}.{tail}"


def _group_by_code(runs: Sequence[Run]) -> list[tuple[str, list[dict[str, object]]]]:
    """Return each code with its reasons, most frequent first."""
    groups: dict[str, list[dict[str, object]]] = {}
    for run in runs:
        for reason in run.reasons:
            groups.setdefault(str(reason.get("code", "?")), []).append(reason)
    return sorted(groups.items(), key=lambda item: -len(item[1]))


def _render_reason_summary(runs: Sequence[Run]) -> Html | None:
    groups = _group_by_code(runs)
    if not groups:
        return None
    listed = [
        piece
        for code, reasons in groups
        for piece in (", ", join_html(h("code", code), f" in {pluralize(len(reasons), 'run')}"))
    ]
    return h("p", h("a", "Why", href="#reasons"), ": ", *listed[1:], ".")


def render_reasons(report: ReportContent) -> Html:
    """Render the reasons behind the verdicts."""
    groups = _group_by_code(report.runs)
    head: list[Html | str] = ["reason", "severity", "runs", "example", "concerns", "why it matters"]
    shown = render_table(head, [_make_reason_row(code, reasons) for code, reasons in groups], "Why runs are not valid")
    return render_section(
        "reasons",
        "Reasons",
        shown if groups else h("p", "No check found a problem."),
        _render_unchecked(report.runs),
        render_details(
            "The verdict of each run", _render_each_run(report), opened=bool(groups) and len(report.runs) <= 12
        ),
    )


def _make_reason_row(code: str, reasons: list[dict[str, object]]) -> list[Html | str | None]:
    rule = REASON_RULES.get(code)
    return [
        h("code", code),
        render_badge(worst_status(_get_severity(reason) for reason in reasons)),
        str(len(reasons)),
        str(reasons[0].get("message", "")),
        None if rule is None else ", ".join(rule.concerns),
        None if rule is None else rule.why,
    ]


def _get_severity(reason: dict[str, object]) -> str:
    severity = str(reason.get("severity"))
    return severity if severity in STATUSES else "invalid"


def _render_confounders(report: ReportContent) -> Html | None:
    confounders = find_confounders(report.runs)
    if not confounders:
        return None
    rows: list[list[Html | str | None]] = [[name, " / ".join(values), why] for name, values, why in confounders]
    return join_html(
        h("h3", "Other differences between these runs"),
        render_table(["item", "values", "meaning"], rows, "Differences between runs besides engine and load"),
    )


def _render_unchecked(runs: Sequence[Run]) -> Html | None:
    """List the checks that lacked facts and so claim nothing."""
    codes = Counter(str(code) for run in runs for code in get_section(run, "verdict").get("unchecked") or ())
    if not codes:
        return None
    listed = [
        piece for code, count in codes.items() for piece in (", ", h("code", code), _format_share(count, len(runs)))
    ][1:]
    return h("p", "Not checked for lack of data: ", *listed, ".", class_="note")


def _format_share(count: int, total: int) -> str | None:
    return None if count == total else f" ({count} of {total} runs)"


def _render_each_run(report: ReportContent) -> Html:
    rows = [_make_run_row(point, run) for point in report.points for run in point.group.runs]
    return render_table(["run", "engine", "load", "cycle", "verdict", "reasons"], rows, "The verdict of each run")


def _make_run_row(point: ReportPoint, run: Run) -> list[Html | str | None]:
    cycle = get_cycle(run)
    reasons = [_render_reason(reason) for reason in run.reasons]
    return [
        h("code", run.id),
        point.series.label,
        point.workload.label,
        None if cycle is None else str(cycle),
        render_badge(run.status),
        h("ul", *reasons, class_="plain") if reasons else "none",
    ]


def _render_reason(reason: dict[str, object]) -> Html:
    return h("li", h("code", str(reason.get("code", "?"))), f" {reason.get('message', '')}")


def find_confounders(runs: Sequence[Run]) -> list[tuple[str, list[str], str]]:
    """Return rows of what differs, its values and what that means."""
    rows = []
    for title, name, key, why in COMPARED_SECTIONS:
        stored = (get_section(run, name).get(key) for run in runs)
        values = list(dict.fromkeys(format_setting(value) for value in stored if value is not None))
        if len(values) > 1:
            rows.append((title, [value[:60] for value in values], why))
    products = (list_gpu_products(get_section(run, "environment")) for run in runs)
    gpus = list(dict.fromkeys(" + ".join(dict.fromkeys(names)) for names in products if names))
    if len(gpus) > 1:
        rows.append(("GPU", [value[:60] for value in gpus], "different GPUs"))
    mixed = _find_mixed_cycles(runs)
    if mixed:
        rows.append(("requests", mixed, "engines got different requests in the same cycle"))
    return rows


def _find_mixed_cycles(runs: Sequence[Run]) -> list[str]:
    """Return cycles of one study at one load in which engines got different requests; cycles may differ from each other."""
    sent: dict[tuple[str, str, int | None], set[str]] = {}
    for run in runs:
        digest = get_section(run, "workload").get("sha256")
        if digest is not None:
            key = (str(get_section(run, "study").get("id")), repr(run.manifest.get("profile")), get_cycle(run))
            sent.setdefault(key, set()).add(str(digest))
    return [f"cycle {key[2]}: {len(digests)} workloads" for key, digests in sent.items() if len(digests) > 1]
