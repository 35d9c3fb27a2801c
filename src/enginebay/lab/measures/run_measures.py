"""Every figure of one run, as flat data. Pure.

Latencies are of every answer that came whole. Rates, energy and cost count the answers that *ended* inside the window, each
whole, by the server's own count of its tokens: what ends later is not divided by a window it does not belong to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from enginebay.lab.measures import latencies
from enginebay.lab.measures.distribution import PERCENTILES, count_needed, is_quotable, summarize
from enginebay.lab.measures.energy_figures import EnergyPhases, EnergyUse, compute_cost_figures, compute_energy_figures
from enginebay.lab.measures.slo import Slo, find_missed, is_good, slo_from_dict
from enginebay.lab.workload.request_records import Record

_EDGE_TOLERANCE_S = 1e-6  # a window that ends with the last answer holds it, whatever the rounding
_GOODPUT_FIGURES = ("goodput_requests_per_s", "goodput_output_tokens_per_s", "goodput_share", "slo_met")


def compute_measures(
    records: Sequence[Record],
    tokens: Mapping[int, Sequence[float]],
    window_s: float,
    slo: Mapping[str, Any] | Slo | None = None,
    energy: Mapping[str, EnergyUse] | None = None,
    price: float | None = None,
    *,
    phases: EnergyPhases | None = None,
    absent: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """`tokens`: when each output of a request arrived, by `Record.index`. `price`: of the machine, per hour.

    `absent`: why the meters could not read something; it goes before a reason found here.
    """
    if not window_s > 0:
        raise ValueError(f"a window of {window_s} s measures nothing")
    limits = slo if slo is None or isinstance(slo, Slo) else slo_from_dict(slo)
    ended = [
        record for record in latencies.filter_answered(records) if (record.end_s or 0.0) <= window_s + _EDGE_TOLERANCE_S
    ]
    good = None if limits is None else [record for record in ended if is_good(record, limits)]
    counts = {**_count_tokens(ended), "good_output_tokens": None if good is None else _sum_field(good, "output_tokens")}
    parts = [
        _compute_latency_figures(records, tokens),
        _compute_rate_figures(ended, counts, window_s),
        _compute_goodput_figures(records, good, limits, counts["good_output_tokens"], window_s),
        compute_energy_figures(energy, counts, phases),
        compute_cost_figures(price, window_s, counts),
    ]
    figures: dict[str, Any] = {"window_s": window_s, **_count_outcomes(records, ended)}
    reasons: dict[str, str] = {}
    for found, why in parts:
        figures |= found
        reasons |= why
    return {**figures, "absent": reasons | {name: why for name, why in (absent or {}).items() if name not in figures}}


def _count_outcomes(records: Sequence[Record], ended: Sequence[Record]) -> dict[str, Any]:
    answered = latencies.filter_answered(records)
    codes = Counter(record.error for record in records if record.error is not None)
    return {
        "requests": len(records),
        "answered": len(answered),
        "answered_in_window": len(ended),
        "errors": sum(codes.values()),
        "errors_by_code": dict(sorted(codes.items())),
    }


def _compute_latency_figures(
    records: Sequence[Record], tokens: Mapping[int, Sequence[float]]
) -> tuple[dict[str, Any], dict[str, str]]:
    answered = latencies.filter_answered(records)
    values: dict[str, Any] = {
        "ttft_s": [latencies.ttft_s(record) for record in answered],
        "ttft_from_intended_s": [latencies.ttft_s(record, intended=True) for record in answered],
        "tpot_s": [latencies.tpot_s(record) for record in answered],
        "e2e_s": [latencies.e2e_s(record) for record in answered],
        "e2e_from_intended_s": [latencies.e2e_s(record, intended=True) for record in answered],
        "queue_s": [record.queue_s for record in answered],
        "send_lag_s": latencies.collect_send_lags_s(records),
    }
    known = {name: [value for value in found if value is not None] for name, found in values.items()}
    known["itl_s"] = latencies.collect_token_gaps_s(answered, tokens)
    # Requests count even for gaps between tokens: the gaps of one answer are not independent.
    count = len(answered)
    short = [name for name, percent in PERCENTILES.items() if not is_quotable(percent, count)]
    figures = {name: _summarize_quotable(found, short) for name, found in known.items() if len(found)}
    absent = {name: _explain_no_latency(name, bool(answered)) for name in known if name not in figures}
    absent |= {
        f"*.{name}": f"{count} answers cannot carry it: {count_needed(PERCENTILES[name])} are needed" for name in short
    }
    return figures, absent


def _summarize_quotable(values: Sequence[float], short: Collection[str]) -> dict[str, float]:
    """A distribution without the percentiles that there are too few requests for."""
    return {name: value for name, value in summarize(values).to_dict().items() if name not in short}


def _explain_no_latency(name: str, answered: bool) -> str:
    if name == "send_lag_s":
        return "no request was sent"
    if not answered:
        return "no request was answered"
    return {
        "queue_s": "the server does not say how long a request waited",
        "tpot_s": "no answer had a second token",
        "itl_s": "no answer arrived in more than one piece",
    }.get(name, "no answer had any output")


def _count_tokens(ended: Sequence[Record]) -> dict[str, int | None]:
    """By the server's usage; None where it left one of them out, since a sum without it would be too small."""
    inputs, outputs = _sum_field(ended, "input_tokens"), _sum_field(ended, "output_tokens")
    both = None if inputs is None or outputs is None else inputs + outputs
    return {"input_tokens": inputs, "output_tokens": outputs, "total_tokens": both}


def _sum_field(records: Sequence[Record], name: str) -> int | None:
    counted: list[int | None] = [getattr(record, name) for record in records]
    known = [count for count in counted if count is not None]
    return sum(known) if len(known) == len(counted) else None


def _compute_rate_figures(
    ended: Sequence[Record], counts: Mapping[str, int | None], window_s: float
) -> tuple[dict[str, Any], dict[str, str]]:
    figures: dict[str, Any] = {"requests_per_s": len(ended) / window_s}
    absent: dict[str, str] = {}
    for name in ("input_tokens", "output_tokens", "total_tokens"):
        count = counts[name]
        if count is None:
            absent |= dict.fromkeys((name, f"{name}_per_s"), "the server did not count them in every answer")
        else:
            figures |= {name: count, f"{name}_per_s": count / window_s}
    cached = [record.cached_tokens for record in ended if record.cached_tokens is not None]
    if cached:
        figures["cached_input_tokens"] = sum(cached)
    else:
        absent["cached_input_tokens"] = "the server does not say what it had in its cache"
    events = sum(record.events for record in ended)
    if events and counts["output_tokens"] is not None:
        figures["output_tokens_per_event"] = counts["output_tokens"] / events  # above 1, itl_s is not one per token
    return figures, absent


def _compute_goodput_figures(
    records: Sequence[Record], good: Sequence[Record] | None, slo: Slo | None, tokens: int | None, window_s: float
) -> tuple[dict[str, Any], dict[str, str]]:
    if slo is None or good is None:
        return {}, dict.fromkeys(_GOODPUT_FIGURES, "no slo was given")
    figures: dict[str, Any] = {"goodput_requests_per_s": len(good) / window_s}
    absent: dict[str, str] = {}
    if tokens is None:
        absent["goodput_output_tokens_per_s"] = "the server did not count them in every answer"
    else:
        figures["goodput_output_tokens_per_s"] = tokens / window_s
    if not records:
        return figures, absent | dict.fromkeys(("goodput_share", "slo_met"), "no request was sent")
    figures["goodput_share"] = sum(is_good(record, slo) for record in records) / len(records)
    if slo.objectives:
        misses = find_missed(records, slo)
        figures |= {"slo_met": not misses, "slo_missed": misses}
    else:
        absent["slo_met"] = "the slo has limits for requests, and none for the run"
    return figures, absent
