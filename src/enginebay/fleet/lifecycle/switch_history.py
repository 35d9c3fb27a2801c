"""History of model switches: what was loaded, what it replaced, and how long each phase took."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

PHASES = ("drain", "free", "import", "load", "compile", "capture", "first_token")
_MAX_KEPT = 200

# Advice for the slowest phase.
_ADVICE = {
    "drain": "the replaced model finished its running requests first",
    "free": "the replaced worker was slow to free its memory",
    "import": "list the engine under fleet.standby to import its library ahead of time",
    "load": "keep the model asleep (sleep: 1) or pinned, or use a smaller or quantized copy",
    "compile": "the compiled code is cached for the next load; enforce_eager skips compilation",
    "capture": "enforce_eager skips CUDA graph capture",
    "first_token": "the first prompt was long, or other requests ran before it",
}


@dataclass(frozen=True, slots=True)
class Switch:
    """One model that became ready for requests."""

    at: float  # when the switch began, unix time
    model: str
    engine: str
    loaded_from: str  # cold, standby or asleep
    replaced: tuple[str, ...] = ()
    phases: Mapping[str, float] = field(default_factory=dict)  # seconds, by the names in PHASES
    slo_s: float = 60.0

    @property
    def total_s(self) -> float:
        return sum(self.phases.values())

    @property
    def met_slo(self) -> bool:
        return self.total_s <= self.slo_s

    def find_slowest_phase(self) -> tuple[str, float]:
        """Return the longest phase and its seconds, or ("", 0.0)."""
        return max(self.phases.items(), key=lambda item: item[1], default=("", 0.0))

    def with_phase(self, name: str, seconds: float) -> Switch:
        return replace(self, phases=sort_phases({**self.phases, name: seconds}))

    def format_slo_warning(self) -> str | None:
        """Return one line that names the slowest phase, or None if the switch met its SLO."""
        if self.met_slo:
            return None
        phase, seconds = self.find_slowest_phase()
        replaced = f", replacing {', '.join(self.replaced)}" if self.replaced else ""
        advice = _ADVICE.get(phase)
        return (
            f"switching to {self.model} on {self.engine} ({self.loaded_from}{replaced}) took {self.total_s:.1f} s, "
            f"over switch_slo_s {self.slo_s:g}: {phase} took {seconds:.1f} s" + (f"; {advice}" if advice else "")
        )

    def to_log_fields(self) -> dict[str, Any]:
        """Return the fields of the log event; fields that do not apply are None."""
        phases = {f"{name}_s": round(seconds, 3) for name, seconds in self.phases.items()}
        replaced = ", ".join(self.replaced) or None
        fields = {"model": self.model, "engine": self.engine, "came_from": self.loaded_from, "replaced": replaced}
        return {**fields, "seconds": round(self.total_s, 3), "missed": not self.met_slo or None, **phases}

    def to_json(self) -> dict[str, Any]:
        phase, seconds = self.find_slowest_phase()
        return {
            "at": round(self.at, 3),
            "model": self.model,
            "engine": self.engine,
            "from": self.loaded_from,
            "replaced": list(self.replaced),
            "phases": {name: round(taken, 4) for name, taken in sort_phases(self.phases).items()},
            "total_s": round(self.total_s, 4),
            "slo_s": self.slo_s,
            "met": self.met_slo,
            "slowest": {"phase": phase, "seconds": round(seconds, 4)} if phase else None,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Switch:
        """Parse the output of `to_json`. Derived values are recomputed."""
        return cls(
            at=data["at"],
            model=data["model"],
            engine=data["engine"],
            loaded_from=data["from"],
            replaced=tuple(data["replaced"]),
            phases=sort_phases(data["phases"]),
            slo_s=data["slo_s"],
        )


def merge_phases(spent: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Sum the phases of all models that took part in one switch."""
    totals: dict[str, float] = {}
    for phases in spent:
        for name, seconds in phases.items():
            totals[name] = totals.get(name, 0.0) + seconds
    return sort_phases(totals)


def sort_phases(phases: Mapping[str, float]) -> dict[str, float]:
    """Sort phases in the order they run; unknown names come last."""
    known = {name: phases[name] for name in PHASES if name in phases}
    return {**known, **{name: taken for name, taken in phases.items() if name not in known}}


class SwitchHistory:
    """The latest switches, oldest first."""

    def __init__(self, kept: int = _MAX_KEPT) -> None:
        self._all: deque[Switch] = deque(maxlen=kept)
        self._freed: list[tuple[float, str, Mapping[str, float]]] = []  # started at, model, phases

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Switch]:
        return iter(tuple(self._all))

    @property
    def last(self) -> Switch | None:
        return self._all[-1] if self._all else None

    def add(self, switch: Switch) -> None:
        self._all.append(switch)

    def record_freed(self, started: float, model: str, phases: Mapping[str, float]) -> None:
        """Record a model that freed its memory, for the next switch. `started` is on the monotonic clock."""
        self._freed.append((started, model, phases))

    def record_ready(
        self, model: str, engine: str, loaded_from: str, phases: Mapping[str, float], requested_at: float, slo_s: float
    ) -> Switch:
        """Record a model that became ready, together with those that freed memory since `requested_at`."""
        freed = [entry for entry in self._freed if entry[0] >= requested_at and entry[1] != model]
        self._freed = []
        phases = merge_phases([phases, *(spent for _, _, spent in freed)])
        replaced = tuple(name for _, name, _ in freed)
        switch = Switch(time.time() - sum(phases.values()), model, engine, loaded_from, replaced, phases, slo_s)
        self.add(switch)
        return switch

    def add_phase(self, switch: Switch, name: str, seconds: float) -> Switch:
        """Add a phase that ended after the switch, such as the first token. Return the updated switch."""
        updated = switch.with_phase(name, seconds)
        for index, known in enumerate(self._all):
            if known is switch:
                self._all[index] = updated
                break
        return updated

    def compute_means(self) -> dict[str, float]:
        """Return the mean switch time in seconds by `loaded_from`."""
        totals: dict[str, list[float]] = {}
        for switch in self._all:
            totals.setdefault(switch.loaded_from, []).append(switch.total_s)
        return {kind: sum(taken) / len(taken) for kind, taken in totals.items()}

    def count_missed(self) -> int:
        return sum(not switch.met_slo for switch in self._all)

    def to_json(self) -> dict[str, Any]:
        return {
            "switches": [switch.to_json() for switch in self._all],
            "mean_s": {kind: round(mean, 4) for kind, mean in self.compute_means().items()},
            "missed": self.count_missed(),
        }
