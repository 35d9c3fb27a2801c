"""Runs that repeat each other: the same engine, model, settings and load on the same host. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from enginebay.lab.statistics.cycle_statistics import compute_cycle_intervals
from enginebay.lab.store.canonical_json import hash_value
from enginebay.lab.store.run_environment import list_gpu_products
from enginebay.lab.store.run_errors import MixedEngines
from enginebay.lab.store.run_manifest import STATUSES
from enginebay.lab.store.run_reader import Run


def aggregate_runs(runs: Sequence[Run], allow_mixed_engines: bool = False) -> list[dict[str, Any]]:
    """One entry for each point: what it is, its verdict, and the mean of every figure over its runs."""
    if not allow_mixed_engines:
        check_one_engine(runs)
    return [_aggregate_group(point) for point in group_runs(runs, mixed=allow_mixed_engines)]


def _aggregate_group(point: RunGroup) -> dict[str, Any]:
    mixed = len(point.engines) > 1
    intervals = compute_cycle_intervals([run.measures for run in point.counted])
    return {
        **point.to_dict(),
        # An average over engines is of nothing that exists, whatever its runs are worth.
        "verdict": "invalid" if mixed else point.status,
        "mixed_engines": mixed,
        "figures": {name: asdict(interval) for name, interval in intervals.items()},
    }


@dataclass(frozen=True)
class RunGroup:
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

    def to_dict(self) -> dict[str, Any]:
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


def group_runs(runs: Sequence[Run], mixed: bool = False) -> list[RunGroup]:
    """Runs put together with those they repeat; with `mixed`, whatever engine they are of."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(_group_key(run, mixed), []).append(run)
    return [
        RunGroup(tuple(sorted(group, key=lambda run: (run.manifest["created"], run.id)))) for group in found.values()
    ]


def check_one_engine(runs: Sequence[Run]) -> None:
    """Refuse to put several engines into one average."""
    engines = sorted({run.engine for run in runs})
    if len(engines) > 1:
        raise MixedEngines(
            f"mixed engines: {', '.join(engines)}; aggregating results of different engines is statistically invalid",
            "name the runs of one engine, compare them with `bay results compare`, or insist with --allow-mixed-engines",
        )


def has_same_workload(a: RunGroup, b: RunGroup) -> bool:
    """Whether the same was asked of both: then their engines may be compared."""
    return _workload_key(a.runs[0]) == _workload_key(b.runs[0])


def _workload_key(run: Run) -> list[Any]:
    """What was sent and when, as it was asked for. Whether the requests were the same to the byte, the workload's hash says."""
    config = run.manifest["config"]
    return [run.model, run.manifest["profile"], config.get("workload"), config.get("limits")]


def _group_key(run: Run, mixed: bool) -> str:
    host = run.manifest["environment"]
    common = [*_workload_key(run), host.get("host"), list_gpu_products(host)]
    if mixed:
        return hash_value(common)
    engine, config = run.manifest["engine"], run.manifest["config"]
    # A server that was running already is known by its address, and only it knows its settings.
    found = None if config.get("engine") else [run.manifest["server"].get("url"), run.manifest["effective"]]
    return hash_value([*common, run.engine, engine.get("version"), run.label, config, found])
