"""All figures of one run, as flat data. Pure.

Latencies cover every completed request. Rates, energy and cost count the requests that *ended* inside the window, each
in full, by the server's token counts. A request that ends later does not count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from enginebay.lab.measures import latencies
from enginebay.lab.measures.distribution import PERCENTILES, count_needed, is_quotable, summarize
from enginebay.lab.measures.energy_figures import EnergyPhases, compute_cost_figures, compute_energy_figures
from enginebay.lab.measures.slo import Slo, find_missed, is_good, slo_from_dict
from enginebay.lab.workload.request_records import Record
from enginebay.meters.analysis.window_energy import WindowEnergy

_EDGE_TOLERANCE_S = 1e-6  # a window that ends with the last response includes it despite rounding
_GOODPUT_FIGURES = ("goodput_requests_per_s", "goodput_output_tokens_per_s", "goodput_share", "slo_met")


def compute_measures(
    records: Sequence[Record],
    tokens: Mapping[int, Sequence[float]],
    window_s: float,
    slo: Mapping[str, Any] | Slo | None = None,
    energy: Mapping[str, WindowEnergy] | None = None,
    price: float | None = None,
    *,
    phases: EnergyPhases | None = None,
    absent: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return all figures.

    `tokens`: arrival times of each request's outputs, by `Record.index`. `price`: machine price per hour. `absent`: why meters could not read something; overrides the reasons found here.
    """
    if not window_s > 0:
        raise ValueError(f"window_s must be above 0, not {window_s}")
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
    for part, missing in parts:
        figures |= part
        reasons |= missing
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
    known = {name: [value for value in series if value is not None] for name, series in values.items()}
    known["itl_s"] = latencies.collect_token_gaps_s(answered, tokens)
    # Count requests even for token gaps: gaps within one response are not independent.
    count = len(answered)
    short = [name for name, percent in PERCENTILES.items() if not is_quotable(percent, count)]
    figures = {name: _summarize_quotable(series, short) for name, series in known.items() if len(series)}
    absent = {name: _explain_no_latency(name, bool(answered)) for name in known if name not in figures}
    absent |= {f"*.{name}": f"too few answers: {count}, needs {count_needed(PERCENTILES[name])}" for name in short}
    return figures, absent


def _summarize_quotable(values: Sequence[float], short: Collection[str]) -> dict[str, float]:
    """Summarize without the percentiles that need more requests."""
    return {name: value for name, value in summarize(values).to_dict().items() if name not in short}


def _explain_no_latency(name: str, answered: bool) -> str:
    if name == "send_lag_s":
        return "no request was sent"
    if not answered:
        return "no request was answered"
    return {
        "queue_s": "the server does not report queue times",
        "tpot_s": "no response had a second token",
        "itl_s": "no response arrived in more than one piece",
    }.get(name, "no response had any output")


def _count_tokens(ended: Sequence[Record]) -> dict[str, int | None]:
    """Sum the server's token usage; None if any response lacks it, because the sum would be too small."""
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
            absent |= dict.fromkeys((name, f"{name}_per_s"), "the server did not report them for every response")
        else:
            figures |= {name: count, f"{name}_per_s": count / window_s}
    cached = [record.cached_tokens for record in ended if record.cached_tokens is not None]
    if cached:
        figures["cached_input_tokens"] = sum(cached)
    else:
        absent["cached_input_tokens"] = "the server does not report cached tokens"
    events = sum(record.events for record in ended)
    if events and counts["output_tokens"] is not None:
        figures["output_tokens_per_event"] = (
            counts["output_tokens"] / events
        )  # above 1, itl_s is per event, not per token
    return figures, absent


def _compute_goodput_figures(
    records: Sequence[Record], good: Sequence[Record] | None, slo: Slo | None, tokens: int | None, window_s: float
) -> tuple[dict[str, Any], dict[str, str]]:
    if slo is None or good is None:
        return {}, dict.fromkeys(_GOODPUT_FIGURES, "no SLO is set")
    figures: dict[str, Any] = {"goodput_requests_per_s": len(good) / window_s}
    absent: dict[str, str] = {}
    if tokens is None:
        absent["goodput_output_tokens_per_s"] = "the server did not report them for every response"
    else:
        figures["goodput_output_tokens_per_s"] = tokens / window_s
    if not records:
        return figures, absent | dict.fromkeys(("goodput_share", "slo_met"), "no request was sent")
    figures["goodput_share"] = sum(is_good(record, slo) for record in records) / len(records)
    if slo.objectives:
        misses = find_missed(records, slo)
        figures |= {"slo_met": not misses, "slo_missed": misses}
    else:
        absent["slo_met"] = "the SLO limits requests only, not the run"
    return figures, absent
