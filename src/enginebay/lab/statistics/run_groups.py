"""Group runs that repeat each other: same engine, model, settings and workload on the same host. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from enginebay.lab.statistics.cycle_statistics import compute_cycle_intervals
from enginebay.lab.store.canonical_json import hash_value
from enginebay.lab.store.run_environment import list_gpu_products
from enginebay.lab.store.run_errors import MixedEngines
from enginebay.lab.store.run_reader import Run
from enginebay.lab.validity.verdict import worst_status


def aggregate_runs(runs: Sequence[Run], allow_mixed_engines: bool = False) -> list[dict[str, Any]]:
    """Return one entry per group: its identity, its verdict, and the mean of every figure over its runs."""
    if not allow_mixed_engines:
        check_one_engine(runs)
    return [_aggregate_group(group) for group in group_runs(runs, mixed=allow_mixed_engines)]


def _aggregate_group(group: RunGroup) -> dict[str, Any]:
    mixed = len(group.engines) > 1
    intervals = compute_cycle_intervals([run.measures for run in group.counted])
    return {
        **group.to_dict(),
        # An average over engines describes no real system, however valid its runs are.
        "verdict": "invalid" if mixed else group.status,
        "mixed_engines": mixed,
        "figures": {name: asdict(interval) for name, interval in intervals.items()},
    }


@dataclass(frozen=True)
class RunGroup:
    """The runs of one point, oldest first."""

    runs: tuple[Run, ...]

    @property
    def counted(self) -> tuple[Run, ...]:
        """The runs that count for the point: invalid ones only if there are no others."""
        return tuple(run for run in self.runs if run.status != "invalid") or self.runs

    @property
    def status(self) -> str:
        """The worst verdict of the counted runs."""
        return worst_status(run.status for run in self.counted)

    @property
    def engines(self) -> list[str]:
        return sorted({run.engine for run in self.runs})

    @property
    def name(self) -> str:
        """Engine, model, and the rest of the label."""
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
    """Group runs that repeat each other; with `mixed`, across engines."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(_group_key(run, mixed), []).append(run)
    return [
        RunGroup(tuple(sorted(group, key=lambda run: (run.manifest["created"], run.id)))) for group in groups.values()
    ]


def check_one_engine(runs: Sequence[Run]) -> None:
    """Raise MixedEngines if the runs are of several engines."""
    engines = sorted({run.engine for run in runs})
    if len(engines) > 1:
        raise MixedEngines(
            f"mixed engines: {', '.join(engines)}; aggregating results of different engines is statistically invalid",
            "pass runs of one engine, compare them with `bay results compare`, or override with --allow-mixed-engines",
        )


def has_same_workload(a: RunGroup, b: RunGroup) -> bool:
    """Return whether both ran the same workload, so that their engines may be compared."""
    return _workload_key(a.runs[0]) == _workload_key(b.runs[0])


def _workload_key(run: Run) -> list[Any]:
    """Return the requested workload. Whether requests were identical byte for byte, its hash says."""
    config = run.manifest["config"]
    return [run.model, run.manifest["profile"], config.get("workload"), config.get("limits")]


def _group_key(run: Run, mixed: bool) -> str:
    host = run.manifest["environment"]
    common = [*_workload_key(run), host.get("host"), list_gpu_products(host)]
    if mixed:
        return hash_value(common)
    engine, config = run.manifest["engine"], run.manifest["config"]
    # An external server is identified by its address and the settings it reports.
    external = None if config.get("engine") else [run.manifest["server"].get("url"), run.manifest["effective"]]
    return hash_value([*common, run.engine, engine.get("version"), run.label, config, external])
