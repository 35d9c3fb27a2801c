"""Which engine is better at what, by how much, and how sure that is; and whether they gave the same answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from enginebay.lab.measures.figures import better
from enginebay.lab.report.comparing import EVERY_PAIR, Pair
from enginebay.lab.report.figures import digits, figure
from enginebay.lab.report.markup import Html, h, join, section, table
from enginebay.lab.report.metrics import COMPARED, TITLES

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
SHARES = ("identical_answers", "greedy_agreement")


def comparison(pairs: Sequence[Pair]) -> Html | None:
    if not pairs:
        return None
    head: list[Html | str] = ["metric", "engines", "load", "ratio, 95% interval", "pairs", "finding"]
    rows = [_row(pair, key) for key in COMPARED for pair in pairs if key in pair.found["figures"]]
    many = len({pair.b.series.number for pair in pairs} | {pair.a.series.number for pair in pairs}) > EVERY_PAIR
    return section(
        "comparison",
        "Comparison",
        h(
            "p",
            "Runs of the same cycle in pairs, on the same seeded arrivals. Two engines differ where the 95% interval of "
            "their difference leaves out 0; each line has a 5% chance of a false alarm.",
            " With this many engines, each is compared with the first only." if many else None,
        ),
        _problems(pairs),
        table(head, rows, "Engines compared in pairs"),
    )


def _problems(pairs: Sequence[Pair]) -> Html | None:
    found = [(pair, why) for pair in pairs for why in pair.found["problems"]]
    if not found:
        return None
    items = [h("li", h("strong", f"{_names(pair)} · {pair.a.load.label}: "), why) for pair, why in found]
    return h(
        "div",
        h("p", h("strong", "A difference below may not be the engines'.")),
        h("ul", *items),
        class_="banner informative",
    )


def _names(pair: Pair) -> str:
    return f"{pair.b.series.label} / {pair.a.series.label}"


def _row(pair: Pair, key: str) -> list[Html | str | None]:
    found = pair.found["figures"][key]
    return [
        TITLES[key],
        _names(pair),
        pair.a.load.label,
        _ratio(found["ratio"]),
        str(pair.found["pairs"]),
        _finding(pair, key),
    ]


def _ratio(ratio: Mapping[str, Any] | None) -> str | None:
    if ratio is None:
        return None
    text = f"{digits(ratio['estimate'])}\u202f×"
    if ratio["low"] is None or ratio["high"] is None:
        return text
    return f"{text} [{digits(ratio['low'])}, {digits(ratio['high'])}]"


def _finding(pair: Pair, key: str) -> Html:
    found = pair.found["figures"][key]
    if not found["differs"]:
        return h("span", found["outlook"], class_="quiet")
    b_is_better = (found["difference"]["estimate"] > 0) == (better(key) == "higher")
    winner = (pair.b if b_is_better else pair.a).series.label
    if pair.found["valid"]:
        return join(h("strong", winner), " is better")
    return h("span", f"{winner} is ahead; see the doubts above", class_="quiet")


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
        table(["measure", *(_names(pair) for pair in columns)], rows, "Agreement of the engines' answers"),
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
    return figure(value, "share" if name in SHARES else "")
