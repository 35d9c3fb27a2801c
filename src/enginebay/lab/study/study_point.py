"""A point of a study: one engine with its settings, or one running server, under one workload. Plain, storable data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from enginebay.errors import ConfigError
from enginebay.lab.measures.slo import Slo, slo_from_dict
from enginebay.lab.profiles.profile import ClosedLoopProfile, OfflineProfile, Profile, RunLimits, limits_from_dict
from enginebay.lab.profiles.profile_config import profiles_from_dict
from enginebay.lab.profiles.send_schedule import count_requests_needed
from enginebay.lab.store.study_plan import StudyStep
from enginebay.lab.workload.field_checks import check_keys, check_whole_number
from enginebay.lab.workload.workload_config import workload_from_dict
from enginebay.lab.workload.workload_spec import WorkloadSpec

DEFAULT_REQUESTS = 100
_PARITY_PROMPTS, _PARITY_TOKENS = 8, 32


@dataclass(frozen=True, slots=True)
class WarmupPlan:
    """The requests before the measured window. Their prompts differ from the run's, so they fill no prefix cache for it."""

    requests: int | None = None  # None: the concurrency, at least 8 and at most 256
    enabled: bool = True


@dataclass(frozen=True, slots=True)
class ParityPlan:
    """Prompts answered greedily before the run, to compare the answers of engines."""

    prompts: int = _PARITY_PROMPTS
    tokens: int = _PARITY_TOKENS
    enabled: bool = True


@dataclass(frozen=True, slots=True)
class StudyPoint:
    """All parameters of a run. `serve`: the configuration of `bay serve`; None: a server runs at `url`."""

    label: str
    engine: str
    model: str
    workload: Mapping[str, Any]
    profile: Mapping[str, Any]
    limits: Mapping[str, Any] = field(default_factory=dict)
    serve: Mapping[str, Any] | None = None
    url: str | None = None
    body: Mapping[str, Any] = field(default_factory=dict)  # sampling fields of every request
    seed: int = 0
    arrivals_seed: int | None = None  # of the send times; None: `seed`
    slo: Mapping[str, Any] | None = None
    price_per_hour: float | None = None
    warmup: Mapping[str, Any] | bool | None = None
    parity: Mapping[str, Any] | bool | None = None
    tokenizer: str | None = None  # path
    source: Mapping[str, Any] = field(default_factory=dict)  # origin of the model, if known
    warnings: Sequence[str] = ()  # settings that the engine ignores, as the user allowed
    varied: Sequence[str] = ()  # names of the engine settings that the study varies

    @property
    def timeout_s(self) -> float:
        """How long a request may be without a byte."""
        return limits_from_dict(self.limits).stall_timeout_s

    def derive_seeds(self, cycle: int) -> dict[str, int]:
        """Return the seeds of a cycle: of the prompts, and of the send times."""
        arrivals = self.seed if self.arrivals_seed is None else self.arrivals_seed
        return {"requests": self.seed + cycle, "arrivals": arrivals + cycle}

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def to_config(self) -> dict[str, Any]:
        """Return the configuration with which `bay experiment` reproduces this point."""
        settings = {} if self.serve is None else {self.engine: self.serve.get(self.engine) or {}}
        config = {
            "engine": self.engine or None,
            "model": self.model,
            **settings,
            "sampling": {name: value for name, value in self.body.items() if name != "seed"},  # that is random_seed
            "workload": dict(self.workload),
            "profile": dict(self.profile),
            "limits": dict(self.limits),
            "random_seed": self.seed,
            "traffic_simulation": None if self.arrivals_seed is None else {"seed": self.arrivals_seed},
            "slo": self.slo,
            "price_per_hour": self.price_per_hour,
            "warmup": self.warmup,
            "parity": self.parity,
        }
        return {name: value for name, value in config.items() if value is not None and value != {}}


@dataclass(frozen=True, slots=True)
class RunPlan:
    """A point's workload, profile and limits, parsed and checked."""

    workload: WorkloadSpec
    profile: Profile
    limits: RunLimits
    slo: Slo | None
    warmup: WarmupPlan
    parity: ParityPlan

    @property
    def concurrency(self) -> int | None:
        return self.profile.concurrency if isinstance(self.profile, ClosedLoopProfile) else None

    @property
    def warmup_requests(self) -> int:
        if not self.warmup.enabled:
            return 0
        return self.warmup.requests or max(8, min(self.concurrency or 8, 256))


def point_from_dict(data: Mapping[str, Any]) -> StudyPoint:
    return msgspec.convert(dict(data), StudyPoint)


def plan_run(point: StudyPoint, folder: Path | None = None) -> RunPlan:
    """Parse and check a point. Raise `ConfigError`."""
    (profile,) = profiles_from_dict(point.profile)
    limits = limits_from_dict(point.limits)
    if isinstance(profile, OfflineProfile) and limits.until_stable:
        raise ConfigError(
            "an offline run ends when all requests are answered",
            "remove until_stable, or use another profile",
            param="limits",
        )
    return RunPlan(
        workload=workload_from_dict(point.workload, folder),
        profile=profile,
        limits=limits,
        slo=slo_from_dict(point.slo) if point.slo else None,
        warmup=_parse_warmup(point.warmup),
        parity=_parse_parity(point.parity),
    )


def count_requests(plan: RunPlan) -> int | None:
    """Return how many requests a run prepares. None: as many as the workload has. Pure."""
    needed, requested = count_requests_needed(plan.profile, plan.limits), plan.workload.requests
    if needed is not None:
        return needed if requested is None else min(needed, requested)
    if requested is not None or plan.workload.kind != "synthetic":
        return requested
    return plan.limits.max_requests if plan.limits.duration_s is not None else DEFAULT_REQUESTS


def _parse_warmup(config: Mapping[str, Any] | bool | None) -> WarmupPlan:
    if not isinstance(config, Mapping):
        return WarmupPlan(enabled=config is not False)
    options = check_keys("warmup", config, ("requests",))
    return WarmupPlan(check_whole_number("warmup.requests", options["requests"]) if "requests" in options else None)


def _parse_parity(config: Mapping[str, Any] | bool | None) -> ParityPlan:
    if not isinstance(config, Mapping):
        return ParityPlan(enabled=config is not False)
    options = check_keys("parity", config, ("prompts", "tokens"))
    counts = {name: check_whole_number(f"parity.{name}", value) for name, value in options.items()}
    return ParityPlan(counts.get("prompts", _PARITY_PROMPTS), counts.get("tokens", _PARITY_TOKENS))


def schedule_steps(labels: Sequence[str], cycles: int) -> list[StudyStep]:
    """Return the runs of a study in order: each cycle has all points, every second cycle in reverse.

    So drift of the machine (heat, memory growth) affects all points alike, and pairs are close in time. Pure.
    """
    steps = []
    for cycle in range(1, cycles + 1):
        points = range(len(labels)) if cycle % 2 else reversed(range(len(labels)))
        steps += [StudyStep(point, cycle, labels[point]) for point in points]
    return steps
