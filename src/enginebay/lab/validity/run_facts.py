"""What a verdict is made from. What is None is not known: its check is left out and nothing is claimed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from enginebay.lab.measures.parity import Parity
from enginebay.lab.workload.request_records import Record, Request
from enginebay.meters.analysis.energy_problems import EnergyProblem
from enginebay.meters.analysis.window_energy import WindowEnergy
from enginebay.meters.sample import Sample

STEADY_OPEN_PROFILES = frozenset(("constant", "poisson", "gamma"))  # a rate that does not change
SCHEDULED_PROFILES = STEADY_OPEN_PROFILES | {"trace", "ramp"}  # send times known beforehand
STEADY_PROFILES = STEADY_OPEN_PROFILES | {"closed"}


@dataclass(frozen=True, slots=True)
class CeilingFacts:
    """What the load client can do at most, as it calibrated itself."""

    requests_per_s: float | None = None
    events_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class WarmupFacts:
    """A series in order of sending, and where its steady part begins by the rule of `profiles/stable.py`."""

    values: Sequence[float]
    end: int
    over: bool  # a steady part was found


@dataclass(frozen=True, slots=True)
class RunFacts:
    """One run. `records` are those of the measured window, `samples` too."""

    records: Sequence[Record]
    window_s: float | None = None
    requests: Sequence[Request] | None = None  # by Record.index
    # the load
    profile: str | None = None  # kind: offline, closed, constant, poisson, gamma, trace, ramp
    rate_per_s: float | None = None  # asked for
    concurrency: int | None = None  # asked for
    scheduled: int | None = (
        None  # how many were due in the window, where records do not show those that were never sent
    )
    ceiling: CeilingFacts | None = None
    client_core_share: float | None = None  # of the busiest process of the client, 1 = a whole core
    # what came out
    measures: Mapping[str, Any] | None = None  # as published
    percentiles: Sequence[float] | None = None  # that something is decided by, such as an objective
    warmup: WarmupFacts | None = None
    shared_prefix: bool | None = None  # the workload shares prompts' beginnings on purpose
    shared_share: float = 0.0  # of its input, 0 to 1, that another prompt begins with too, though not on purpose
    from_file: bool = False  # its prompts are lines of a file: the same whatever the seed
    parity: Parity | None = None  # against the engine that it is compared with
    parity_with: str = ""  # what that one is called
    cycles: int | None = None  # of the study, as planned
    # the engine and the machine
    engine_warnings: Sequence[str] | None = None  # that it gave when it loaded
    varied: Sequence[str] = ()  # settings by name: what its study is about
    others_busy: float | None = None  # share of all cores used by neither server nor client, 0 to 1
    idle_gpu_busy: Mapping[str, float] | None = None  # share by device, engine loaded and nothing asked, 0 to 1
    server_in_flight: float | None = (
        None  # mean over the window, of all requests that the server had, whoever sent them
    )
    samples: Sequence[Sample] | None = None
    energy: Mapping[str, WindowEnergy] | None = None  # each device by itself, of the same window
    idle_problems: Mapping[str, Sequence[EnergyProblem]] | None = (
        None  # found while the idle power was measured, by device
    )
