"""Containers for the plots with captions and controls; without JavaScript they show a note."""

from __future__ import annotations

from enginebay.lab.report.latency_curves import MAX_EXACT_VALUES, QUANTILE_LEVELS
from enginebay.lab.report.markup import Html, h, join_html, render_section
from enginebay.lab.report.run_timeline import MAX_BINS, MAX_WATERFALL_ROWS

KEYBOARD_HINT = "Focus a plot and use the arrow keys to read its values; Escape leaves it."


def render_plots() -> Html:
    return join_html(
        render_section(
            "distributions",
            "Latency distributions",
            _render_figure(
                "distribution-plot",
                "Share of requests (of gaps, for inter-token latency) at or below a latency, over all counted runs of a "
                f"point. Curves of more than {MAX_EXACT_VALUES:,} values use about {QUANTILE_LEVELS} quantiles, denser in the tail.",
            ),
        ),
        render_section(
            "tradeoff",
            "Throughput against latency",
            _render_figure(
                "tradeoff-plot",
                "Each mark is one engine at one load; bars are 95% confidence intervals over cycles; lines join the loads "
                "of one engine. Hollow marks are informative, crossed ones invalid.",
            ),
        ),
        render_section(
            "energy",
            "Energy against load",
            _render_figure(
                "energy-plot",
                "Energy per token as the load grows; bars are 95% confidence intervals over cycles. Hollow marks are "
                "informative, crossed ones invalid.",
            ),
        ),
        render_section(
            "timeline",
            "One run over time",
            _render_figure(
                "timeline-plot",
                f"Up to {MAX_BINS} bins. Output tokens are the server's usage, spread evenly over the output events of each request. "
                f"Below, up to {MAX_WATERFALL_ROWS} evenly picked requests: pale for send lag, lighter until the first token, full "
                "while tokens arrive, crossed if the request failed.",
            ),
        ),
    )


def _render_figure(name: str, caption: str) -> Html:
    return h(
        "figure",
        h("div", id=f"{name}-controls", class_="controls"),
        h("div", h("p", "This plot needs JavaScript.", class_="note"), id=name, class_="plot"),
        h("figcaption", caption, " ", h("span", KEYBOARD_HINT, class_="keys"), id=f"{name}-caption"),
    )
