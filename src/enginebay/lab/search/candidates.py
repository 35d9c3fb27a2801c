"""The result of each engine in a search, how far to trust it, and the ranking. Pure."""

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

# Reasons not caused by the load itself: a miss with one of them might be a hit without it.
DOUBT_CODES = frozenset(
    ("machine_busy", "send_lag", "delivered_rate", "client_saturated", "impossible_records", "thermal_drift",
     "throttled", "no_requests")
)  # fmt: skip
BACKLOG_CODE = "backlog_grows"
_TAIL_PROBABILITY = 0.05  # of a one-sided 95% bound


@dataclass(frozen=True, slots=True)
class ObjectiveResult:
    """How many requests met one objective."""

    objective: str
    percent: float  # required
    kept: int
    count: int

    @property
    def share(self) -> float:
        return self.kept / self.count if self.count else 0.0


@dataclass(frozen=True, slots=True)
class Candidate:
    """The search result of one engine. `status` and `reasons` are like a run's: valid, informative or invalid."""

    engine: str
    label: str
    version: str = ""
    rate: float | None = None  # the highest that meets the objective, requests/s
    above: float | None = None  # the lowest that misses it
    confirmed: bool = False
    sure: bool = False  # met by more than chance
    limit: str = ""  # why no higher rate was tried
    requests: int | None = None  # in the last run at `rate`
    kept: Sequence[ObjectiveResult] = ()  # at `rate`, all its runs together
    capacity: float | None = None  # responses/s in a closed loop, at any latency
    figures: Mapping[str, float] = field(default_factory=dict)  # of the confirming run
    energy: Mapping[str, Any] = field(default_factory=dict)  # j_per_output_token and of which devices; or absent: why
    status: Status = "valid"
    reasons: Sequence[Mapping[str, str]] = ()  # code, severity, message
    why_none: str = ""  # why there is no rate
    runs: Sequence[str] = ()  # ids

    @property
    def joules_per_token(self) -> float | None:
        joules = self.energy.get("j_per_output_token")
        return None if joules is None else float(joules)

    def add_reason(self, code: str, severity: str, message: str) -> Candidate:
        reasons = [*self.reasons, {"code": code, "severity": severity, "message": message}]
        return replace(self, reasons=reasons, status=worst_status(reason["severity"] for reason in reasons))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Ranking:
    """The candidates, best first, and what decided."""

    order: Sequence[Candidate]
    level: Sequence[str] = ()  # labels of those within the resolution of the best
    decided_by: str = "rate"  # or "energy", if the rates are level

    @property
    def best(self) -> Candidate | None:
        return self.order[0] if self.order and self.order[0].rate is not None else None

    @property
    def status(self) -> Status:
        """The worst of all: if a rival was disturbed, the winner is doubtful too."""
        return worst_status(candidate.status for candidate in self.order) if self.order else "invalid"


def rank_candidates(candidates: Sequence[Candidate], resolution: float) -> Ranking:
    """Sort by rate, highest first. Rates within the resolution are sorted by energy, if it is known for all of them."""
    order = sorted(candidates, key=lambda candidate: -(candidate.rate or 0.0))
    best = order[0].rate if order else None
    if best is None:
        return Ranking(order)
    level = [rival for rival in order if rival.rate is not None and rival.rate * (1 + resolution) >= best]
    if len(level) == 1:
        return Ranking(order)
    labels = [candidate.label for candidate in level]
    if any(candidate.joules_per_token is None for candidate in level):
        return Ranking(order, labels)
    by_energy = sorted(level, key=lambda candidate: candidate.joules_per_token or 0.0)
    return Ranking([*by_energy, *order[len(level) :]], labels, "energy")


def count_kept(records: Sequence[Record], slo: Slo) -> list[ObjectiveResult]:
    """Count the requests that met each objective."""
    count = len(records)
    return [
        ObjectiveResult(
            objective.name,
            objective.percent,
            round(measure_attainment(records, objective) * count) if count else 0,
            count,
        )
        for objective in slo.objectives
    ]


def pool_results(runs: Sequence[Sequence[ObjectiveResult]]) -> list[ObjectiveResult]:
    """Pool the results of several runs at one rate."""
    return [
        ObjectiveResult(
            same[0].objective,
            same[0].percent,
            sum(result.kept for result in same),
            sum(result.count for result in same),
        )
        for same in zip(*runs, strict=True)
    ]


def is_surely_kept(kept: Sequence[ObjectiveResult]) -> bool:
    """Return whether the lower bound of each share is enough (Clopper-Pearson, one-sided 95%)."""
    return all(lower_bound(result.kept, result.count) * 100 >= result.percent for result in kept)


def is_surely_missed(kept: Sequence[ObjectiveResult]) -> bool:
    """Return whether the upper bound of any share is too small."""
    return any(upper_bound(result.kept, result.count) * 100 < result.percent for result in kept)


def lower_bound(kept: int, count: int) -> float:
    return float(special.betaincinv(kept, count - kept + 1, _TAIL_PROBABILITY)) if kept else 0.0


def upper_bound(kept: int, count: int) -> float:
    return float(special.betaincinv(kept + 1, count - kept, 1 - _TAIL_PROBABILITY)) if kept < count else 1.0


def is_doubtful(reasons: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether something other than the load may have spoiled the run."""
    return any(reason["severity"] == "invalid" and reason["code"] in DOUBT_CODES for reason in reasons)


def add_verdict(
    candidate: Candidate, result: SearchResult, run_reasons: Sequence[Mapping[str, Any]], above_doubtful: bool
) -> Candidate:
    """Add the reasons of the run behind the rate, and what the search leaves open."""
    relevant_codes = codes_about("latency") | codes_about("throughput")
    for reason in run_reasons:
        if reason["code"] in relevant_codes:
            candidate = candidate.add_reason(reason["code"], reason["severity"], reason["message"])
    if above_doubtful:
        message = f"missed the objective at {_format_rate(result.above)}, but something else disturbed the run: the highest rate may be higher"
        candidate = candidate.add_reason(
            "miss_doubtful", "informative" if result.rate is not None else "invalid", message
        )
    if result.rate is None:
        return candidate
    if not result.confirmed:
        message = f"met the objective at {_format_rate(result.rate)} once, not confirmed: the limit of runs or of time was reached"
        candidate = candidate.add_reason("not_confirmed", "informative", message)
    if not result.narrow:
        above = f"missed at {_format_rate(result.above)}" if result.above is not None else "nothing above it was tried"
        message = f"met at {_format_rate(result.rate)}, {above}: the limit of runs or of time was reached before the resolution"
        candidate = candidate.add_reason("coarse", "informative", message)
    if not candidate.sure:
        closest = min(candidate.kept, key=lambda objective: objective.share * 100 - objective.percent)
        message = (
            f"{closest.share:.1%} of {closest.count} requests met {closest.objective}, {closest.percent:g}% must: "
            "with so few requests it could be chance"
        )
        candidate = candidate.add_reason("narrowly_kept", "informative", message)
    return candidate


def summarize_energy(measures: Mapping[str, Any], run_reasons: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the joules per output token and of which devices, or why they are unknown or invalid."""
    value = measures.get("j_per_output_token")
    if value is None:
        absent = measures.get("absent", {})
        meters = "; ".join(f"{name}: {absent[name]}" for name in ("energy", "nvml", "rapl") if name in absent)
        return {"absent": meters or absent.get("j_per_output_token", "no energy was read")}
    invalid = [
        reason for reason in run_reasons if reason["severity"] == "invalid" and reason["code"] in codes_about("energy")
    ]
    if invalid:
        return {"absent": f"{invalid[0]['code']}: {invalid[0]['message']}"}
    return {"j_per_output_token": value, "of": measures.get("energy_of", "")}


def _format_rate(rate: float | None) -> str:
    return f"{rate:.3g} requests/s"
