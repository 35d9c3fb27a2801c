"""A point of a study: one engine with its settings, or one server that runs, under one load. Plain data that can be kept."""

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
from enginebay.lab.store.study_plan import StudyStep
from enginebay.lab.workload.field_checks import check_keys, check_whole_number
from enginebay.lab.workload.workload_config import workload_from_dict
from enginebay.lab.workload.workload_spec import WorkloadSpec

_PARITY_PROMPTS, _PARITY_TOKENS = 8, 32


@dataclass(frozen=True, slots=True)
class WarmupPlan:
    """What is sent before anything is measured. Its prompts are others than those of the run, so no cache knows them."""

    requests: int | None = None  # None: as many as run at once, eight at least
    enabled: bool = True


@dataclass(frozen=True, slots=True)
class ParityPlan:
    """Prompts that are answered greedily before the run, so that engines' answers can be compared."""

    prompts: int = _PARITY_PROMPTS
    tokens: int = _PARITY_TOKENS
    enabled: bool = True


@dataclass(frozen=True, slots=True)
class StudyPoint:
    """Everything that one run needs to know. `serve` is the configuration of `bay serve`; None: a server runs at `url`."""

    label: str
    engine: str
    model: str
    workload: Mapping[str, Any]
    profile: Mapping[str, Any]
    limits: Mapping[str, Any] = field(default_factory=dict)
    serve: Mapping[str, Any] | None = None
    url: str | None = None
    body: Mapping[str, Any] = field(default_factory=dict)  # the same in every request: sampling
    seed: int = 0
    arrivals_seed: int | None = None  # of the times of sending; None: the same
    slo: Mapping[str, Any] | None = None
    price_per_hour: float | None = None
    warmup: Mapping[str, Any] | bool | None = None
    parity: Mapping[str, Any] | bool | None = None
    tokenizer: str | None = None  # path of its files
    source: Mapping[str, Any] = field(default_factory=dict)  # of the model, as far as it is known
    warnings: Sequence[str] = ()  # settings that this engine ignores, and the user said that it may
    varied: Sequence[str] = ()  # the engine's settings that the study varies, by name
    timeout_s: float = 120.0

    def derive_seeds(self, cycle: int) -> dict[str, int]:
        """Of one cycle: what prompts are made from, and when they are sent."""
        arrivals = self.seed if self.arrivals_seed is None else self.arrivals_seed
        return {"requests": self.seed + cycle, "arrivals": arrivals + cycle}

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def to_config(self) -> dict[str, Any]:
        """The configuration of `bay experiment` that gives this point again."""
        settings = {} if self.serve is None else {self.engine: self.serve.get(self.engine) or {}}
        whole = {
            "engine": self.engine or None,
            "model": self.model,
            **settings,
            "sampling": {name: value for name, value in self.body.items() if name != "seed"},  # it is random_seed
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
        return {name: value for name, value in whole.items() if value is not None and value != {}}


@dataclass(frozen=True, slots=True)
class RunPlan:
    """A point's load, read and checked."""

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
    """Check what a point's load says. Raises `ConfigError`."""
    (profile,) = profiles_from_dict(point.profile)
    limits = limits_from_dict(point.limits)
    if isinstance(profile, OfflineProfile) and limits.until_stable:
        raise ConfigError(
            "an offline run ends when all is answered",
            "leave out until_stable, or take another profile",
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


def _parse_warmup(given: Mapping[str, Any] | bool | None) -> WarmupPlan:
    if not isinstance(given, Mapping):
        return WarmupPlan(enabled=given is not False)
    known = check_keys("warmup", given, ("requests",))
    return WarmupPlan(check_whole_number("warmup.requests", known["requests"]) if "requests" in known else None)


def _parse_parity(given: Mapping[str, Any] | bool | None) -> ParityPlan:
    if not isinstance(given, Mapping):
        return ParityPlan(enabled=given is not False)
    known = check_keys("parity", given, ("prompts", "tokens"))
    counts = {name: check_whole_number(f"parity.{name}", value) for name, value in known.items()}
    return ParityPlan(counts.get("prompts", _PARITY_PROMPTS), counts.get("tokens", _PARITY_TOKENS))


def schedule_steps(labels: Sequence[str], cycles: int) -> list[StudyStep]:
    """The runs of a study in their order: every cycle has all points, every second one backwards.

    So a drift of the machine (heat, something that grows) meets all points alike, and pairs are close in time. Pure.
    """
    order = []
    for cycle in range(1, cycles + 1):
        points = range(len(labels)) if cycle % 2 else reversed(range(len(labels)))
        order += [StudyStep(point, cycle, labels[point]) for point in points]
    return order
