"""Keys of an experiment. Serving a model needs none of them.

`workload`, `profile`, `limits`, `slo`, `warmup` and `parity` are plain data here: the lab parses and checks them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from enginebay.config.entries.config_entry import ConfigEntry
from enginebay.contract import Setting

EXPERIMENT_KEYS: dict[str, Setting] = {
    "num_input_prompts": Setting("int", "prompts per run", minimum=1),
    "max_input_tokens": Setting("int", "truncate longer prompts to this", minimum=1),
    "num_cycles": Setting("int", "number of repetitions", minimum=1),
    "traffic_simulation.enabled": Setting("bool", "send requests over time instead of all at once"),
    "traffic_simulation.mode": Setting("str", "distribution of arrivals", choices=("poisson", "constant")),
    "traffic_simulation.target_qps": Setting("float", "requests per second on average", minimum=0.001),
    "traffic_simulation.seed": Setting("int", "seed of the arrival times"),
    "engines": Setting("list|str", "engines to measure; unset: engine"),
    "workload": Setting("map", "what to send, by kind: synthetic, jsonl or trace"),
    "profile": Setting(
        "map|str", "when to send it, by kind: offline, closed, poisson, ...; or the short form of --profile"
    ),
    "limits": Setting("map", "when a run ends: requests, duration_s, until_stable"),
    "warmup": Setting("map|bool", "requests before the measurement; false: none"),
    "parity": Setting("map|bool", "compare the engines' answers; false: do not"),
    "slo": Setting("map", "latency objectives in seconds, such as ttft_p95: 0.8"),
    "price_per_hour": Setting("float", "hourly price of this host, for the cost per token", minimum=0),
    "sweep": Setting(
        "map|list",
        "grid of values by dotted key: every combination is measured; auto: the values that the engine suggests; or a list of grids",
    ),
}

SWEEP_KEY = "sweep"

# Keys of the whole study, which its points cannot vary.
STUDY_WIDE_KEYS = (SWEEP_KEY, "engines", "num_cycles")


@dataclass(frozen=True, slots=True)
class TrafficSimulation:
    """When an experiment sends its requests, as in `traffic_simulation`."""

    enabled: bool = False
    mode: str = "poisson"
    target_qps: float = 1.0
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class ExperimentConfig:
    """The experiment keys of a config. None means unset."""

    num_input_prompts: int | None = None
    max_input_tokens: int | None = None
    num_cycles: int = 1
    traffic_simulation: TrafficSimulation = field(default_factory=TrafficSimulation)
    engines: tuple[str, ...] = ()  # kinds; `Config.list_study_engines` returns the effective ones
    workload: Mapping[str, Any] | None = None
    profile: Mapping[str, Any] | str | None = None  # `effective_profile` is the one that applies
    limits: Mapping[str, Any] | None = None
    warmup: Mapping[str, Any] | bool | None = None
    parity: Mapping[str, Any] | bool | None = None
    slo: Mapping[str, Any] | None = None
    price_per_hour: float | None = None
    sweep: Mapping[str, Any] | list[Any] | None = None

    @property
    def effective_profile(self) -> Mapping[str, Any] | str | None:
        """Return `profile`, else `traffic_simulation` converted to a profile."""
        if self.profile is not None or not self.traffic_simulation.enabled:
            return self.profile
        return {"kind": self.traffic_simulation.mode, "rate": self.traffic_simulation.target_qps}

    @classmethod
    def from_entries(cls, entries: Mapping[str, ConfigEntry]) -> ExperimentConfig:
        values = {name: entry.value for name, entry in entries.items() if entry.value is not None}
        nested = "traffic_simulation."
        traffic = {name.removeprefix(nested): value for name, value in values.items() if name.startswith(nested)}
        plain = {name: value for name, value in values.items() if not name.startswith(nested)}
        return cls(**plain, traffic_simulation=TrafficSimulation(**traffic))
