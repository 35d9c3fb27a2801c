"""The places that the script draws in, with their captions and controls; without it they say what is missing."""

from __future__ import annotations

from enginebay.lab.report.curves import EXACT, LEVELS
from enginebay.lab.report.markup import Html, h, join, section
from enginebay.lab.report.timeline import BINS, ROWS

KEYS = "Focus a plot and use the arrow keys to read its values; Escape leaves it."


def plots() -> Html:
    return join(
        section(
            "distributions",
            "Latency distributions",
            _figure(
                "distribution-plot",
                "The share of requests (of gaps, for inter-token latency) at or below a latency, all counted runs of a "
                f"point together. Curves of more than {EXACT:,} values are drawn at about {LEVELS} quantiles, denser "
                "towards the tail.",
            ),
        ),
        section(
            "tradeoff",
            "Throughput against latency",
            _figure(
                "tradeoff-plot",
                "Each mark is a point of the study; bars are 95% confidence intervals over cycles; a line joins the loads "
                "of one engine. Hollow marks are informative, crossed ones invalid.",
            ),
        ),
        section(
            "energy",
            "Energy against load",
            _figure(
                "energy-plot",
                "Energy per token as the load grows; bars are 95% confidence intervals over cycles. Hollow marks are "
                "informative, crossed ones invalid.",
            ),
        ),
        section(
            "timeline",
            "One run over time",
            _figure(
                "timeline-plot",
                f"Up to {BINS} bins. Output tokens are those of the server's usage, spread evenly over the output events of each "
                f"request. Below, up to {ROWS} requests evenly picked: pale while the client is late, lighter until the "
                "first token, full while tokens arrive, crossed where the request failed.",
            ),
        ),
    )


def _figure(name: str, caption: str) -> Html:
    return h(
        "figure",
        h("div", id=f"{name}-controls", class_="controls"),
        h("div", h("p", "This plot needs JavaScript.", class_="note"), id=name, class_="plot"),
        h("figcaption", caption, " ", h("span", KEYS, class_="keys"), id=f"{name}-caption"),
    )
