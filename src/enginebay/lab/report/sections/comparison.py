"""Which engine is better at what, by how much, and how sure that is; and whether they gave the same answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from enginebay.lab.measures.figures import better
from enginebay.lab.report.comparing import EVERY_PAIR, Pair
from enginebay.lab.report.figures import digits, figure, times
from enginebay.lab.report.markup import Html, badge, h, join, section, table
from enginebay.lab.report.metrics import COMPARED, TITLES
from enginebay.lab.report.points import worst
from enginebay.wording import counted

PARITY = {
    "answers": "answers compared",
    "same_prompt_ids": "same token ids in",
    "identical_answers": "identical answers",
    "greedy_agreement": "greedy tokens before the first that differs",
    "first_divergence": "first divergence at token, median",
    "logprob_distance": "logprob distance, mean",
    "logprob_distance_max": "logprob distance, largest",
    "output_length_ratio": "output length ratio",
}
COUNTS = ("answers", "first_divergence")
SHARES = ("identical_answers", "greedy_agreement")


def comparison(pairs: Sequence[Pair]) -> Html | None:
    if not pairs:
        return None
    keys = [key for key in COMPARED if any(key in pair.found["figures"] for pair in pairs)]
    head: list[Html | str] = ["engines", "load", "pairs", *(TITLES[key] for key in keys)]
    rows = [[*_which(pair), *(_cell(pair, key) for key in keys)] for pair in pairs]
    many = len({pair.b.series.number for pair in pairs} | {pair.a.series.number for pair in pairs}) > EVERY_PAIR
    return section(
        "comparison",
        "Comparison",
        h(
            "p",
            "The first engine's figure as a multiple of the second's, with its 95% interval, from runs of the same cycle in "
            "pairs on the same seeded arrivals. They differ where the interval of their difference leaves out 0; each cell "
            "has a 5% chance of a false alarm. “+3 runs” would settle a difference of the size seen, 80% of the time.",
            " With this many engines, each is compared with the first only." if many else None,
        ),
        _problems(pairs),
        table(head, rows, "Engines compared in pairs", id="comparison-table", class_="pinned"),
    )


def _problems(pairs: Sequence[Pair]) -> Html | None:
    found = [(pair, why) for pair in pairs for why in pair.found["problems"]]
    if not found:
        return None
    items = [h("li", h("strong", f"{_names(pair)} · {pair.a.load.label}: "), why) for pair, why in found]
    return h(
        "div",
        h("p", h("strong", "Struck-through differences are not to be believed.")),
        h("ul", *items),
        class_="banner invalid",
    )


def _names(pair: Pair) -> str:
    return f"{pair.b.series.label} / {pair.a.series.label}"


def _which(pair: Pair) -> list[Html | str | None]:
    status = worst([pair.a.status, pair.b.status])
    return [
        join(_names(pair), None if status == "valid" else h("small", badge(status))),
        pair.a.load.label,
        str(pair.found["pairs"]),
    ]


def _cell(pair: Pair, key: str) -> Html | None:
    found = pair.found["figures"].get(key)
    if found is None or found["ratio"] is None:
        return None
    ratio = found["ratio"]
    estimate, interval = times(ratio["estimate"], ratio["low"], ratio["high"])
    shown = join(
        h("strong", estimate) if found["differs"] else estimate,
        h("small", interval, class_="whole") if interval else None,
    )
    if not pair.found["valid"]:
        return h("s", shown, title="not to be believed")
    return join(shown, h("small", _finding(pair, key, found)))


def _finding(pair: Pair, key: str, found: Mapping[str, Any]) -> Html | str:
    if found["differs"]:
        b_is_better = (found["difference"]["estimate"] > 0) == (better(key) == "higher")
        return h("b", f"{(pair.b if b_is_better else pair.a).series.label} better")
    more = found["more_runs"]
    return "not settled" if more is None else f"not settled, +{counted(more, 'run')}"


def parity(pairs: Sequence[Pair]) -> Html | None:
    """Speed compares only where the work was the same."""
    told = {(pair.a.series.number, pair.b.series.number): pair for pair in reversed(pairs) if pair.found["parity"]}
    columns = [told[key] for key in sorted(told)]
    if not columns:
        return None
    rows: list[list[Html | str | None]] = [
        [title, *(_agreement(name, pair.found["parity"]) for pair in columns)] for name, title in PARITY.items()
    ]
    return section(
        "parity",
        "Parity",
        h("p", "The same prompts, answered greedily by each engine and compared token by token."),
        table(
            ["measure", *(_names(pair) for pair in columns)], rows, "Agreement of the engines' answers", class_="pinned"
        ),
    )


def _agreement(name: str, found: Mapping[str, Any]) -> Html | str | None:
    value = found.get(name)
    if value is None:
        why = (found.get("absent") or {}).get(name)
        return "they never part" if name == "first_divergence" and not why else h("span", why or "–", class_="quiet")
    if isinstance(value, bool):
        return "yes" if value else h("strong", "no")
    if isinstance(value, Mapping):
        value = value["median"]
    if name in COUNTS:
        return f"{value:g}"
    return figure(value, "share") if name in SHARES else digits(value)
