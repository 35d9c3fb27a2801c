"""Inputs of the validity checks. None means unknown: the check is skipped and nothing is claimed."""

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
SCHEDULED_PROFILES = STEADY_OPEN_PROFILES | {"trace", "ramp"}  # send times fixed in advance
STEADY_PROFILES = STEADY_OPEN_PROFILES | {"closed"}


@dataclass(frozen=True, slots=True)
class CeilingFacts:
    """The client's measured maximum rates."""

    requests_per_s: float | None = None
    events_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class WarmupFacts:
    """A series in send order, and where its steady part begins by the rule of `profiles/stability.py`."""

    values: Sequence[float]
    end: int
    over: bool  # a steady part exists


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Facts about one run. `records` and `samples` are those of the measured window."""

    records: Sequence[Record]
    window_s: float | None = None
    requests: Sequence[Request] | None = None  # by Record.index
    # the workload
    profile: str | None = None  # kind: offline, closed, constant, poisson, gamma, trace, ramp
    rate_per_s: float | None = None  # requested
    concurrency: int | None = None  # requested
    scheduled: int | None = None  # how many were due in the window, including requests never sent and not in `records`
    ceiling: CeilingFacts | None = None
    client_core_share: float | None = None  # of the client's busiest process, 1 = a whole core
    # the results
    measures: Mapping[str, Any] | None = None  # as published
    percentiles: Sequence[float] | None = None  # that an objective depends on
    warmup: WarmupFacts | None = None
    shared_prefix: bool | None = None  # the workload shares prompt prefixes on purpose
    shared_share: float = 0.0  # of its input, 0 to 1, shared as a prefix with another prompt by accident
    from_file: bool = False  # prompts are lines of a file, the same for every seed
    parity: Parity | None = None  # against the reference engine
    parity_with: str = ""  # name of the reference
    cycles: int | None = None  # of the study, as planned
    # the engine and the machine
    engine_warnings: Sequence[str] | None = None  # at load time
    varied: Sequence[str] = ()  # names of the settings that the study varies
    others_busy: float | None = None  # share of all cores used by neither server nor client, 0 to 1
    idle_gpu_busy: Mapping[str, float] | None = None  # share by device with the engine loaded and idle, 0 to 1
    server_in_flight: float | None = None  # mean over the window, requests of all clients
    samples: Sequence[Sample] | None = None
    energy: Mapping[str, WindowEnergy] | None = None  # by device, over the same window
    idle_problems: Mapping[str, Sequence[EnergyProblem]] | None = None  # of the idle power measurement, by device
