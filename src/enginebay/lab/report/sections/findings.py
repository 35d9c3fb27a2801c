"""What the comparisons settle, in a few sentences; what they do not settle is not said here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from enginebay.lab.measures.figures import better
from enginebay.lab.report.comparing import Pair
from enginebay.lab.report.figures import digits
from enginebay.lab.report.markup import Html, h, join
from enginebay.lab.report.metrics import TITLES
from enginebay.lab.report.points import worst

HEADLINES = ("output_tokens_per_s", "ttft_s.p95", "tpot_s.median", "j_per_output_token")


def findings(pairs: Sequence[Pair]) -> Html | None:
    """For each headline metric, the engine that is ahead of all others at the heaviest load where one is."""
    said = [sentence for key in HEADLINES if (sentence := _finding(key, pairs)) is not None]
    if not said:
        return None
    return join(h("h3", "What is settled"), h("ul", *(h("li", one) for one in said), class_="findings"))


def _finding(key: str, pairs: Sequence[Pair]) -> Html | None:
    sound = [pair for pair in pairs if pair.found["valid"] and key in pair.found["figures"]]
    loads = {pair.a.load.label: pair.a.load for pair in sound}
    for load in sorted(loads.values(), key=lambda one: one.asked or 0.0, reverse=True):
        here = [pair for pair in sound if pair.a.load.label == load.label]
        for name in dict.fromkeys(point.series.label for pair in here for point in (pair.a, pair.b)):
            beaten = _beaten_by(name, key, here)
            if beaten is not None:
                return _sentence(name, key, load.label, beaten)
    return None


def _beaten_by(name: str, key: str, pairs: Sequence[Pair]) -> list[tuple[Pair, str]] | None:
    """The pairs in which this engine is ahead, with the ratio in words; None unless it is ahead in all and of all."""
    own = [pair for pair in pairs if name in (pair.a.series.label, pair.b.series.label)]
    rivals = {point.series.label for pair in pairs for point in (pair.a, pair.b)} - {name}
    if len(own) < len(rivals):
        return None
    told = []
    for pair in own:
        ratio = _ahead(pair, key, name == pair.b.series.label)
        if ratio is None:
            return None
        told.append((pair, ratio))
    return told


def _ahead(pair: Pair, key: str, is_b: bool) -> str | None:
    """How many times the other's figure this engine has, if that is settled and to its advantage."""
    found = pair.found["figures"][key]
    ratio: Mapping[str, Any] | None = found["ratio"]
    if not found["differs"] or ratio is None or not ratio["low"] or not ratio["high"] or ratio["low"] <= 0:
        return None
    ends = [ratio["estimate"], ratio["low"], ratio["high"]]
    estimate, low, high = ends if is_b else [1 / ends[0], 1 / ends[2], 1 / ends[1]]
    if (estimate > 1) != (better(key) == "higher"):
        return None
    return f"{digits(estimate)}\u202f× [{digits(low)}, {digits(high)}]"


def _sentence(name: str, key: str, load: str, beaten: Sequence[tuple[Pair, str]]) -> Html:
    others = [f"{ratio} that of {_other(pair, name)}" for pair, ratio in beaten]
    extreme = "highest" if better(key) == "higher" else "lowest"
    status = worst(point.status for pair, _ in beaten for point in (pair.a, pair.b))
    tail = "" if status == "valid" else f" ({status})"
    return join(f"{TITLES[key]} at {load}: ", h("strong", name), f" is {extreme}, {' and '.join(others)}{tail}.")


def _other(pair: Pair, name: str) -> str:
    return pair.a.series.label if pair.b.series.label == name else pair.b.series.label
