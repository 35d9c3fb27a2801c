"""What was found of each engine, how far it can be believed, and which is the best. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from scipy import special

from enginebay.lab.measures.slo import Slo, measure_attainment
from enginebay.lab.search.rate_bisection import SearchResult
from enginebay.lab.validity.codes import codes_about
from enginebay.lab.validity.verdict import Status, worst_status
from enginebay.lab.workload.request_records import Record

# Reasons that are not the load's own doing: a rate that was missed with one of them might be kept without.
DOUBT_CODES = frozenset(
    ("machine_busy", "send_lag", "delivered_rate", "client_saturated", "impossible_records", "thermal_drift",
     "throttled", "no_requests")
)  # fmt: skip
BACKLOG_CODE = "backlog_grows"
_TAIL_PROBABILITY = 0.05  # of a one-sided 95% bound


@dataclass(frozen=True, slots=True)
class ObjectiveResult:
    """How many requests of a run kept one objective."""

    objective: str
    percent: float  # that must
    kept: int
    count: int

    @property
    def share(self) -> float:
        return self.kept / self.count if self.count else 0.0


@dataclass(frozen=True, slots=True)
class Candidate:
    """One engine. `status` and `reasons` are as of a run: valid, informative or invalid."""

    engine: str
    label: str
    version: str = ""
    rate: float | None = None  # the highest that keeps the objective, requests/s
    above: float | None = None  # the lowest that misses it
    confirmed: bool = False
    sure: bool = False  # so many requests kept it that chance alone is no explanation
    limit: str = ""  # why nothing above was tried
    requests: int | None = None  # of the last run at the rate
    kept: Sequence[ObjectiveResult] = ()  # at the rate, all its runs together
    capacity: float | None = None  # answers a second in a closed loop, whatever they take
    figures: Mapping[str, float] = field(default_factory=dict)  # of the run that confirmed it
    energy: Mapping[str, Any] = field(default_factory=dict)  # j_per_output_token and what it is of; or absent: why
    status: Status = "valid"
    reasons: Sequence[Mapping[str, str]] = ()  # code, severity, message
    why_none: str = ""  # where there is no rate
    runs: Sequence[str] = ()  # ids

    @property
    def joules_per_token(self) -> float | None:
        found = self.energy.get("j_per_output_token")
        return None if found is None else float(found)

    def add_reason(self, code: str, severity: str, message: str) -> Candidate:
        reasons = [*self.reasons, {"code": code, "severity": severity, "message": message}]
        return replace(self, reasons=reasons, status=worst_status(one["severity"] for one in reasons))  # type: ignore[misc]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Ranking:
    """The engines in order, and what put the first one first."""

    order: Sequence[Candidate]
    level: Sequence[str] = ()  # labels of those that the resolution does not tell from the best
    decided_by: str = "rate"  # or energy, where the rates are level

    @property
    def best(self) -> Candidate | None:
        return self.order[0] if self.order and self.order[0].rate is not None else None

    @property
    def status(self) -> Status:
        """The worst of all: a rival that was held up makes the winner doubtful too."""
        return max((one.status for one in self.order), key=("valid", "informative", "invalid").index, default="invalid")


def rank_candidates(candidates: Sequence[Candidate], resolution: float) -> Ranking:
    """The highest rate first. Among those that the search cannot tell apart, the fewest joules, where all are known."""
    order = sorted(candidates, key=lambda one: -(one.rate or 0.0))
    best = order[0].rate if order else None
    if best is None:
        return Ranking(order)
    level = [one for one in order if one.rate is not None and one.rate * (1 + resolution) >= best]
    if len(level) == 1:
        return Ranking(order)
    labels = [one.label for one in level]
    if any(one.joules_per_token is None for one in level):
        return Ranking(order, labels)
    frugal = sorted(level, key=lambda one: one.joules_per_token or 0.0)
    return Ranking([*frugal, *order[len(level) :]], labels, "energy")


def count_kept(records: Sequence[Record], slo: Slo) -> list[ObjectiveResult]:
    """How many kept each objective."""
    count = len(records)
    return [
        ObjectiveResult(one.name, one.percent, round(measure_attainment(records, one) * count) if count else 0, count)
        for one in slo.objectives
    ]


def pool_results(runs: Sequence[Sequence[ObjectiveResult]]) -> list[ObjectiveResult]:
    """Several runs at one rate as one."""
    return [
        ObjectiveResult(
            same[0].objective, same[0].percent, sum(one.kept for one in same), sum(one.count for one in same)
        )
        for same in zip(*runs, strict=True)
    ]


def is_surely_kept(kept: Sequence[ObjectiveResult]) -> bool:
    """Even the lowest share that fits the count is enough (Clopper and Pearson, one-sided 95%)."""
    return all(lower_bound(one.kept, one.count) * 100 >= one.percent for one in kept)


def is_surely_missed(kept: Sequence[ObjectiveResult]) -> bool:
    """Even the highest share that fits the count is too small, in one objective at least."""
    return any(upper_bound(one.kept, one.count) * 100 < one.percent for one in kept)


def lower_bound(kept: int, count: int) -> float:
    return float(special.betaincinv(kept, count - kept + 1, _TAIL_PROBABILITY)) if kept else 0.0


def upper_bound(kept: int, count: int) -> float:
    return float(special.betaincinv(kept + 1, count - kept, 1 - _TAIL_PROBABILITY)) if kept < count else 1.0


def is_doubtful(reasons: Sequence[Mapping[str, Any]]) -> bool:
    """Whether something else than the load may have made the run what it was."""
    return any(one["severity"] == "invalid" and one["code"] in DOUBT_CODES for one in reasons)


def add_verdict(
    candidate: Candidate, result: SearchResult, run_reasons: Sequence[Mapping[str, Any]], above_doubtful: bool
) -> Candidate:
    """With the verdict: that of the run behind the rate, and what the search itself leaves open."""
    about = codes_about("latency") | codes_about("throughput")
    for one in run_reasons:
        if one["code"] in about:
            candidate = candidate.add_reason(one["code"], one["severity"], one["message"])
    if above_doubtful:
        message = f"{_format_rate(result.above)} was missed while something else disturbed the run: the highest rate may be more"
        candidate = candidate.add_reason(
            "miss_doubtful", "informative" if result.rate is not None else "invalid", message
        )
    if result.rate is None:
        return candidate
    if not result.confirmed:
        message = f"{_format_rate(result.rate)} was kept once and not confirmed: the runs were used up"
        candidate = candidate.add_reason("not_confirmed", "informative", message)
    if not result.narrow:
        to = (
            f"and missed at {_format_rate(result.above)}"
            if result.above is not None
            else "and nothing above it was tried"
        )
        message = f"kept at {_format_rate(result.rate)} {to}: the runs were used up before the resolution was reached"
        candidate = candidate.add_reason("coarse", "informative", message)
    if not candidate.sure:
        closest = min(candidate.kept, key=lambda one: one.share * 100 - one.percent)
        message = (
            f"{closest.share:.1%} of {closest.count} requests kept {closest.objective}, and {closest.percent:g}% must: "
            "with so few it could be chance"
        )
        candidate = candidate.add_reason("narrowly_kept", "informative", message)
    return candidate


def summarize_energy(measures: Mapping[str, Any], run_reasons: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Joules per output token and of which devices; where it is not known or not to be believed, why."""
    value = measures.get("j_per_output_token")
    if value is None:
        absent = measures.get("absent", {})
        meters = "; ".join(f"{name}: {absent[name]}" for name in ("energy", "nvml", "rapl") if name in absent)
        return {"absent": meters or absent.get("j_per_output_token", "no energy was read")}
    wrong = [one for one in run_reasons if one["severity"] == "invalid" and one["code"] in codes_about("energy")]
    if wrong:
        return {"absent": f"{wrong[0]['code']}: {wrong[0]['message']}"}
    return {"j_per_output_token": value, "of": measures.get("energy_of", "")}


def _format_rate(rate: float | None) -> str:
    return f"{rate:.3g} requests/s"
