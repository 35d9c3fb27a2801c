"""The record of switches: which model came, what it replaced, and how long each phase took. Data only."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

PHASES = ("drain", "free", "import", "load", "compile", "capture", "first_token")
_MAX_KEPT = 200

# What helps when a phase is the slow one.
_ADVICE = {
    "drain": "requests of the replaced model were still running, and none is cut off",
    "free": "the replaced worker was slow to give its memory back",
    "import": "list the engine under fleet.standby, so that its library is imported beforehand",
    "load": "keep the model asleep (sleep: 1) or pinned, or use a smaller or quantised copy",
    "compile": "compiled code is kept for the next time; enforce_eager goes without",
    "capture": "enforce_eager goes without CUDA graphs",
    "first_token": "the first prompt was long, or others were answered before it",
}


@dataclass(frozen=True, slots=True)
class Switch:
    """One model made ready for requests."""

    at: float  # when it was asked for, unix time
    model: str
    engine: str
    loaded_from: str  # where it came from: cold, standby, asleep
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
        """The phase that took longest, and how long; ("", 0.0) when none is known."""
        return max(self.phases.items(), key=lambda item: item[1], default=("", 0.0))

    def with_phase(self, name: str, seconds: float) -> Switch:
        return replace(self, phases=sort_phases({**self.phases, name: seconds}))

    def format_slo_warning(self) -> str | None:
        """One line for a missed objective, naming the slow phase; None when it was met."""
        if self.met_slo:
            return None
        phase, seconds = self.find_slowest_phase()
        instead = f", in place of {', '.join(self.replaced)}" if self.replaced else ""
        advice = _ADVICE.get(phase)
        return (
            f"switching to {self.model} on {self.engine} ({self.loaded_from}{instead}) took {self.total_s:.1f} s, "
            f"more than switch_slo_s {self.slo_s:g}: {phase} took {seconds:.1f} s" + (f"; {advice}" if advice else "")
        )

    def to_log_fields(self) -> dict[str, Any]:
        """For a line of the log; what does not apply is None."""
        phases = {f"{name}_s": round(seconds, 3) for name, seconds in self.phases.items()}
        replaced = ", ".join(self.replaced) or None
        found = {"model": self.model, "engine": self.engine, "came_from": self.loaded_from, "replaced": replaced}
        return {**found, "seconds": round(self.total_s, 3), "missed": not self.met_slo or None, **phases}

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
        """What `to_json` told; that which follows from the rest is worked out again."""
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
    """The phases of one switch, whoever spent them."""
    found: dict[str, float] = {}
    for phases in spent:
        for name, seconds in phases.items():
            found[name] = found.get(name, 0.0) + seconds
    return sort_phases(found)


def sort_phases(phases: Mapping[str, float]) -> dict[str, float]:
    """As they follow each other; names that are not known come last."""
    known = {name: phases[name] for name in PHASES if name in phases}
    return {**known, **{name: taken for name, taken in phases.items() if name not in known}}


class SwitchHistory:
    """The last ones, oldest first."""

    def __init__(self, kept: int = _MAX_KEPT) -> None:
        self._all: deque[Switch] = deque(maxlen=kept)

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Switch]:
        return iter(tuple(self._all))

    @property
    def last(self) -> Switch | None:
        return self._all[-1] if self._all else None

    def add(self, switch: Switch) -> None:
        self._all.append(switch)

    def add_phase(self, switch: Switch, name: str, seconds: float) -> Switch:
        """What became known later (the first token comes after the switch): the record as it is now."""
        grown = switch.with_phase(name, seconds)
        for place, known in enumerate(self._all):
            if known is switch:
                self._all[place] = grown
                break
        return grown

    def compute_means(self) -> dict[str, float]:
        """Mean seconds of a switch, by where the model came from."""
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
