"""Runs that repeat each other: the same engine, model, settings and load on the same host. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from enginebay.lab.runs.errors import MixedEngines
from enginebay.lab.runs.gpus import products
from enginebay.lab.runs.manifest import STATUSES
from enginebay.lab.runs.plain import digest
from enginebay.lab.runs.reader import Run


@dataclass(frozen=True)
class Point:
    """The cycles of one point, oldest first."""

    runs: tuple[Run, ...]

    @property
    def counted(self) -> tuple[Run, ...]:
        """The runs whose numbers stand for the point: invalid ones only where there is nothing else."""
        return tuple(run for run in self.runs if run.status != "invalid") or self.runs

    @property
    def status(self) -> str:
        """The worst verdict of the counted runs."""
        return max((run.status for run in self.counted), key=STATUSES.index)

    @property
    def engines(self) -> list[str]:
        return sorted({run.engine for run in self.runs})

    @property
    def name(self) -> str:
        """Engine, model, and what the label tells beyond the engine."""
        first, engines = self.runs[0], "+".join(self.engines)
        return " ".join(word for word in (engines, first.model, first.label.removeprefix(f"{engines} ")) if word)

    def described(self) -> dict[str, Any]:
        first = self.runs[0]
        return {
            "name": self.name,
            "engines": self.engines,
            "model": first.model,
            "label": first.label,
            "verdict": self.status,
            "runs": [run.id for run in self.counted],
            "left_out": [run.id for run in self.runs if run not in self.counted],
        }


def points(runs: Sequence[Run], mixed: bool = False) -> list[Point]:
    """Runs put together with those they repeat; with `mixed`, whatever engine they are of."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(_key(run, mixed), []).append(run)
    return [Point(tuple(sorted(group, key=lambda run: (run.manifest["created"], run.id)))) for group in found.values()]


def one_engine(runs: Sequence[Run]) -> None:
    """Refuse to put several engines into one average."""
    engines = sorted({run.engine for run in runs})
    if len(engines) > 1:
        raise MixedEngines(
            f"mixed engines: {', '.join(engines)}; aggregating results of different engines is statistically invalid",
            "name the runs of one engine, compare them with `bay results compare`, or insist with --allow-mixed-engines",
        )


def same_load(a: Point, b: Point) -> bool:
    """Whether the same was asked of both: then their engines may be compared."""
    return _load(a.runs[0]) == _load(b.runs[0])


def _load(run: Run) -> list[Any]:
    """What was sent and when, as it was asked for. Whether the requests were the same to the byte, the workload's hash says."""
    config = run.manifest["config"]
    return [run.model, run.manifest["profile"], config.get("workload"), config.get("limits")]


def _key(run: Run, mixed: bool) -> str:
    host = run.manifest["environment"]
    common = [*_load(run), host.get("host"), products(host)]
    if mixed:
        return digest(common)
    engine, config = run.manifest["engine"], run.manifest["config"]
    # A server that was running already is known by its address, and only it knows its settings.
    found = None if config.get("engine") else [run.manifest["server"].get("url"), run.manifest["effective"]]
    return digest([*common, run.engine, engine.get("version"), run.label, config, found])
