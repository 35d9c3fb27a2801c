"""Comparison of engines with intervals, and parity of their answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from enginebay.lab.measures.flat_figures import better_direction
from enginebay.lab.report.engine_pairs import MAX_ALL_PAIRS, EnginePair
from enginebay.lab.report.figure_format import format_figure, format_number, format_ratio
from enginebay.lab.report.markup import Html, h, join_html, render_badge, render_section, render_table
from enginebay.lab.report.report_metrics import COMPARED_METRICS, METRIC_TITLES
from enginebay.lab.validity.verdict import worst_status
from enginebay.util.text_format import pluralize

PARITY_TITLES = {
    "answers": "answers compared",
    "same_prompt_ids": "same prompt token ids",
    "identical_answers": "identical answers",
    "greedy_agreement": "greedy tokens before the first difference",
    "first_divergence": "first divergence at token, median",
    "logprob_distance": "logprob distance, mean",
    "logprob_distance_max": "logprob distance, largest",
    "output_length_ratio": "output length ratio",
}
COUNT_MEASURES = ("answers", "first_divergence")
SHARE_MEASURES = ("identical_answers", "greedy_agreement")


def render_comparison(pairs: Sequence[EnginePair]) -> Html | None:
    if not pairs:
        return None
    keys = [key for key in COMPARED_METRICS if any(key in pair.comparison["figures"] for pair in pairs)]
    head: list[Html | str] = ["engines", "load", "pairs", *(METRIC_TITLES[key] for key in keys)]
    rows = [[*_pair_cells(pair), *(_render_cell(pair, key) for key in keys)] for pair in pairs]
    many = len({pair.b.series.number for pair in pairs} | {pair.a.series.number for pair in pairs}) > MAX_ALL_PAIRS
    return render_section(
        "comparison",
        "Comparison",
        h(
            "p",
            "The first engine's figure as a multiple of the second's, with its 95% interval, from runs paired by cycle on the "
            "same seeded arrivals. A difference is significant if its interval excludes 0; each cell has a 5% chance of a "
            "false positive. “+3 runs” would resolve a difference of the observed size with 80% power.",
            " With this many engines, each is compared with the first only." if many else None,
        ),
        _render_problems(pairs),
        render_table(head, rows, "Engines compared in pairs", id="comparison-table", class_="pinned"),
    )


def _render_problems(pairs: Sequence[EnginePair]) -> Html | None:
    problems = [(pair, why) for pair in pairs for why in pair.comparison["problems"]]
    if not problems:
        return None
    items = [h("li", h("strong", f"{_pair_names(pair)} · {pair.a.workload.label}: "), why) for pair, why in problems]
    lead = h("p", h("strong", "Struck-through differences are not reliable."))
    return h("div", lead, h("ul", *items), class_="banner invalid")


def _pair_names(pair: EnginePair) -> str:
    return f"{pair.b.series.label} / {pair.a.series.label}"


def _pair_cells(pair: EnginePair) -> list[Html | str | None]:
    status = worst_status([pair.a.status, pair.b.status])
    return [
        join_html(_pair_names(pair), None if status == "valid" else h("small", render_badge(status))),
        pair.a.workload.label,
        str(pair.comparison["pairs"]),
    ]


def _render_cell(pair: EnginePair, key: str) -> Html | None:
    figure = pair.comparison["figures"].get(key)
    if figure is None or figure["ratio"] is None:
        return None
    ratio = figure["ratio"]
    estimate, interval = format_ratio(ratio["estimate"], ratio["low"], ratio["high"])
    shown = join_html(
        h("strong", estimate) if figure["differs"] else estimate,
        h("small", interval, class_="whole") if interval else None,
    )
    if not pair.comparison["valid"]:
        return h("s", shown, title="not reliable")
    return join_html(shown, h("small", _render_finding(pair, key, figure)))


def _render_finding(pair: EnginePair, key: str, figure: Mapping[str, Any]) -> Html | str:
    if figure["differs"]:
        b_is_better = (figure["difference"]["estimate"] > 0) == (better_direction(key) == "higher")
        return h("b", f"{(pair.b if b_is_better else pair.a).series.label} better")
    more = figure["more_runs"]
    return "inconclusive" if more is None else f"inconclusive, +{pluralize(more, 'run')}"


def render_parity(pairs: Sequence[EnginePair]) -> Html | None:
    """Render the agreement of answers: speed compares only for the same work."""
    compared = {
        (pair.a.series.number, pair.b.series.number): pair for pair in reversed(pairs) if pair.comparison["parity"]
    }
    columns = [compared[key] for key in sorted(compared)]
    if not columns:
        return None
    rows: list[list[Html | str | None]] = [
        [title, *(_render_agreement(name, pair.comparison["parity"]) for pair in columns)]
        for name, title in PARITY_TITLES.items()
    ]
    return render_section(
        "parity",
        "Parity",
        h("p", "The same prompts, answered greedily by each engine and compared token by token."),
        render_table(
            ["measure", *(_pair_names(pair) for pair in columns)],
            rows,
            "Agreement of the engines' answers",
            class_="pinned",
        ),
    )


def _render_agreement(name: str, parity: Mapping[str, Any]) -> Html | str | None:
    value = parity.get(name)
    if value is None:
        why = (parity.get("absent") or {}).get(name)
        return "none" if name == "first_divergence" and not why else h("span", why or "–", class_="quiet")
    if isinstance(value, bool):
        return "yes" if value else h("strong", "no")
    if isinstance(value, Mapping):
        value = value["median"]
    if name in COUNT_MEASURES:
        return f"{value:g}"
    return format_figure(value, "share") if name in SHARE_MEASURES else format_number(value)
