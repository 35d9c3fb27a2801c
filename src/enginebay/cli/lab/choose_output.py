"""Output of `bay choose`: the table, the configuration, and the choice that `engine: auto` uses."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from enginebay import __version__
from enginebay.cli.output.console import note, print_table
from enginebay.cli.output.table_layout import Column
from enginebay.errors import UsageError

if TYPE_CHECKING:
    from enginebay.contract import Probe
    from enginebay.fleet.engine_selection.tuned_engines import TunedEngine
    from enginebay.lab.search.candidates import Candidate, Ranking
    from enginebay.lab.search.rate_search import SearchGoal
    from enginebay.lab.study.study_point import StudyPoint
    from enginebay.models import StoredModel
    from enginebay.util.hardware import HostFacts

_SERVING_KEYS = ("model", "engine", "models", "sampling", "random_seed")


def format_objective(slo: Mapping[str, float]) -> str:
    return ", ".join(f"{name}={value:g}" for name, value in slo.items())


def print_ranking(ranking: Ranking, goal: SearchGoal) -> None:
    """Print one row per engine, best first, then the reasons for verdicts and missing figures."""
    heads = (
        "engine", Column("version", rank=1), "requests/s", "verdict", "missed at", "met by", "output tokens/s", "j/output token"
    )  # fmt: skip
    print_table(heads, [_format_row(candidate) for candidate in ranking.order])
    for candidate in ranking.order:
        label = candidate.label
        if candidate.rate is None:
            note(f"{label}: {candidate.why_none}")
        elif candidate.limit:
            note(f"{label}: rates above {candidate.rate:g} requests/s were not tried: {candidate.limit}")
        if "absent" in candidate.energy:
            note(f"{label}: no energy per token: {candidate.energy['absent']}")
        for reason in candidate.reasons:
            if reason["message"] != candidate.why_none:
                note(f"{label}: {reason['severity']}: {reason['code']}: {reason['message']}")
    if len(ranking.level) > 1:
        decided = "picked the one with the lowest energy" if ranking.decided_by == "energy" else "picked the first"
        note(f"{' and '.join(ranking.level)} are within {goal.rules.resolution:.0%} of each other; {decided}")


def _format_row(candidate: Candidate) -> Sequence[Any]:
    from enginebay.util.number_format import format_digits

    kept = min((objective.share for objective in candidate.kept), default=None)
    return (
        candidate.label,
        candidate.version,
        "none" if candidate.rate is None else f"{candidate.rate:g}",
        f"{candidate.status}{', confirmed' if candidate.confirmed else ''}",
        "-" if candidate.above is None else f"{candidate.above:g}",
        "-" if kept is None else f"{kept:.1%}",
        format_digits(candidate.figures.get("output_tokens_per_s")),
        f"{format_digits(candidate.joules_per_token)} ({candidate.energy['of']})"
        if candidate.joules_per_token is not None
        else "-",
    )


def build_config(
    point: StudyPoint, candidate: Candidate, goal: SearchGoal, configured: Collection[str] = ()
) -> dict[str, Any]:
    """Build a configuration of the engine, its settings and the workload, so that `bay experiment` can repeat the run.

    `configured` names the user's sampling parameters. The lab's own, such as greedy decoding, are not for a server.
    """
    served = dict(point.serve or {})
    # The default task is not written.
    entries = {
        name: {key: value for key, value in entry.items() if (key, value) != ("task", "generate")}
        for name, entry in served.get("models", {}).items()
    }
    models = {name: entry for name, entry in entries.items() if entry}
    measured = replace(
        point,
        body={name: value for name, value in point.body.items() if name in configured},
        workload=_drop_requests(point.workload),
        profile={**goal.profile, "rate": candidate.rate},
        limits={"requests": candidate.requests or goal.requests},
        slo=dict(goal.slo),
    ).to_config()
    if "seed" not in configured:
        del measured["random_seed"]
    return {"model": point.model, "engine": point.engine, **({"models": models} if models else {}), **measured}


def render_config(config: Mapping[str, Any], ranking: Ranking, goal: SearchGoal, command: str) -> str:
    """Render the configuration as YAML, with the measured rates as comments."""
    import yaml

    day = datetime.now(UTC).strftime("%Y-%m-%d")
    rates = [
        f"{engine.label} {engine.version}: "
        f"{f'{engine.rate:g} requests/s' if engine.rate is not None else 'none'} ({engine.status})"
        for engine in ranking.order
    ]
    lines = [f"Measured on {day} by: {command}", f"Highest rate within {format_objective(goal.slo)}:", *rates]
    serving = {name: value for name, value in config.items() if name in (*_SERVING_KEYS, config["engine"])}
    rest = {name: value for name, value in config.items() if name not in serving}
    head = "".join(f"# {line}\n" for line in lines)
    about = "# The measured workload: `bay experiment` repeats it; a server does not need it.\n"
    return f"{head}{_dump_yaml(yaml, serving)}{about}{_dump_yaml(yaml, rest)}"


def _dump_yaml(yaml: Any, data: Mapping[str, Any]) -> str:
    return str(yaml.safe_dump(dict(data), sort_keys=False, allow_unicode=True))


def _drop_requests(workload: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in workload.items() if name != "requests"}


def check_output_path(path: Path | None, force: bool) -> None:
    """Reject an unwritable path before anything is measured. Raises `UsageError`."""
    if path is None:
        return
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise UsageError(f"cannot write {path}", "pass a file path in an existing directory")
    if path.exists() and not force:
        raise UsageError(f"{path} already exists", "choose another name, or overwrite it with --force")


def build_choice(
    ranking: Ranking, points: Mapping[str, StudyPoint], goal: SearchGoal, stored: StoredModel, host: HostFacts,
    installed: Mapping[str, Probe | None], study_id: str,
) -> TunedEngine:  # fmt: skip
    """Build the record that `engine: auto` uses."""
    from enginebay.fleet.engine_selection.tuned_engines import (
        EngineMeasurement,
        TunedEngine,
        fingerprint_host,
        fingerprint_model,
    )

    best = ranking.best
    assert best is not None

    def to_measurement(candidate: Candidate) -> EngineMeasurement:
        probe = installed.get(candidate.engine)
        return EngineMeasurement(
            engine=candidate.engine,
            version=probe.version if probe is not None else candidate.version,
            rate=candidate.rate,
            why_none=candidate.why_none,
            confirmed=candidate.confirmed,
            sure=candidate.sure,
            status=candidate.status,
            reasons=tuple(f"{reason['code']}: {reason['message']}" for reason in candidate.reasons),
            j_per_output_token=candidate.joules_per_token,
            energy_of=str(candidate.energy.get("of", "")),
            energy_absent=str(candidate.energy.get("absent", "")),
            settings=dict((points[candidate.label].serve or {}).get(candidate.engine) or {}),
        )

    return TunedEngine(
        model=stored.name,
        model_files=fingerprint_model(stored),
        source=stored.source,
        host=fingerprint_host(host),
        engine=best.engine,
        slo=dict(goal.slo),
        measured=tuple(map(to_measurement, ranking.order)),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        profile=dict(goal.profile),
        workload=_drop_requests(points[best.label].workload),
        resolution=goal.rules.resolution,
        decided_by=ranking.decided_by,
        status=ranking.status,
        study=study_id,
        enginebay_version=__version__,
    )


def to_json(
    ranking: Ranking, goal: SearchGoal, model: str, study_id: str, config: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Convert the result to JSON."""
    best = ranking.best
    return {
        "model": model,
        "engine": best.engine if best else None,
        "requests_per_s": best.rate if best else None,
        "slo": dict(goal.slo),
        "profile": dict(goal.profile),
        "rules": asdict(goal.rules),
        "verdict": ranking.status,
        "level": list(ranking.level),
        "decided_by": ranking.decided_by,
        "candidates": [candidate.to_dict() for candidate in ranking.order],
        "study": study_id,
        "config": config,
    }
