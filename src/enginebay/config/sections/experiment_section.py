"""Keys of a measured experiment. Serving a model needs none of them.

What is inside `workload`, `profile`, `limits`, `slo`, `warmup` and `parity` is plain data here: the lab reads and
checks it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from enginebay.config.entries.config_entry import ConfigEntry
from enginebay.contract import Setting

EXPERIMENT_KEYS: dict[str, Setting] = {
    "num_input_prompts": Setting("int", "prompts of one run", minimum=1),
    "max_input_tokens": Setting("int", "longer prompts are cut to this", minimum=1),
    "num_cycles": Setting("int", "how often the experiment is repeated", minimum=1),
    "traffic_simulation.enabled": Setting("bool", "send requests over time instead of all at once"),
    "traffic_simulation.mode": Setting("str", "how arrivals are spaced", choices=("poisson", "constant")),
    "traffic_simulation.target_qps": Setting("float", "requests per second on average", minimum=0.001),
    "traffic_simulation.seed": Setting("int", "seed of the arrival times"),
    "engines": Setting("list|str", "the engines of a study; unset: the one of engine"),
    "workload": Setting("map", "what is sent, by its kind: synthetic, jsonl, or a trace"),
    "profile": Setting("map|str", "when it is sent, by its kind: offline, closed, poisson, ...; or as for --profile"),
    "limits": Setting("map", "when a run ends: requests, duration_s, until_stable"),
    "warmup": Setting("map|bool", "what is sent before anything is measured; false: nothing"),
    "parity": Setting("map|bool", "compare what the engines answer; false: do not"),
    "slo": Setting("map", "what counts as good, like ttft_p95: 0.8, in seconds"),
    "price_per_hour": Setting("float", "what this machine costs, for the cost of tokens", minimum=0),
    "sweep": Setting(
        "map|list", "values to try by dotted key: every combination; a list of such grids is tried in turn"
    ),
}

SWEEP_KEY = "sweep"

# They are about the study as a whole, so that its points cannot differ in them.
STUDY_WIDE_KEYS = (SWEEP_KEY, "engines", "num_cycles")


@dataclass(frozen=True, slots=True)
class TrafficSimulation:
    """When an experiment sends its requests, in the words of `traffic_simulation`."""

    enabled: bool = False
    mode: str = "poisson"
    target_qps: float = 1.0
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class ExperimentConfig:
    """What the config says of an experiment. None: it says nothing."""

    num_input_prompts: int | None = None
    max_input_tokens: int | None = None
    num_cycles: int = 1
    traffic_simulation: TrafficSimulation = field(default_factory=TrafficSimulation)
    engines: tuple[str, ...] = ()  # kinds; `Config.study_engines` has those in force
    workload: Mapping[str, Any] | None = None
    profile: Mapping[str, Any] | str | None = None  # `sending` has the one in force
    limits: Mapping[str, Any] | None = None
    warmup: Mapping[str, Any] | bool | None = None
    parity: Mapping[str, Any] | bool | None = None
    slo: Mapping[str, Any] | None = None
    price_per_hour: float | None = None
    sweep: Mapping[str, Any] | list[Any] | None = None

    @property
    def effective_profile(self) -> Mapping[str, Any] | str | None:
        """When requests are sent: `profile`, else `traffic_simulation` in the words of one."""
        if self.profile is not None or not self.traffic_simulation.enabled:
            return self.profile
        return {"kind": self.traffic_simulation.mode, "rate": self.traffic_simulation.target_qps}

    @classmethod
    def from_entries(cls, entries: Mapping[str, ConfigEntry]) -> ExperimentConfig:
        given = {name: entry.value for name, entry in entries.items() if entry.value is not None}
        nested = "traffic_simulation."
        traffic = {name.removeprefix(nested): value for name, value in given.items() if name.startswith(nested)}
        plain = {name: value for name, value in given.items() if not name.startswith(nested)}
        return cls(**plain, traffic_simulation=TrafficSimulation(**traffic))
