"""What `bay choose` prints and writes: the table, the configuration, and the choice that `engine: auto` goes by."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from enginebay import __version__
from enginebay.cli.output.console import note, print_table
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


def print_ranking(ranking: Ranking, search_spec: SearchGoal) -> None:
    """One row for each engine, the best first; what is behind a verdict or an absent figure is said below."""
    heads = ("ENGINE", "VERSION", "REQUESTS/S", "MISSED AT", "KEPT BY", "OUTPUT TOKENS/S", "J/OUTPUT TOKEN", "VERDICT")
    print_table(heads, [_format_row(one) for one in ranking.order])
    for one in ranking.order:
        if one.rate is None:
            note(f"{one.label}: {one.why_none}")
        elif one.limit:
            note(f"{one.label}: nothing above {one.rate:g} requests/s was tried: {one.limit}")
        if "absent" in one.energy:
            note(f"{one.label}: no energy per token: {one.energy['absent']}")
        for reason in one.reasons:
            if reason["message"] != one.why_none:
                note(f"{one.label}: {reason['severity']}: {reason['code']}: {reason['message']}")
    if len(ranking.level) > 1:
        decided = "the one with the fewest joules is taken" if ranking.decided_by == "energy" else "the first is taken"
        note(f"{' and '.join(ranking.level)} are within {search_spec.rules.resolution:.0%} of each other; {decided}")


def _format_row(candidate: Candidate) -> Sequence[Any]:
    from enginebay.lab.measures.headlines import format_digits

    kept = min((each.share for each in candidate.kept), default=None)
    return (
        candidate.label,
        candidate.version,
        "none" if candidate.rate is None else f"{candidate.rate:g}",
        "-" if candidate.above is None else f"{candidate.above:g}",
        "-" if kept is None else f"{kept:.1%}",
        format_digits(candidate.figures.get("output_tokens_per_s")),
        f"{format_digits(candidate.joules_per_token)} ({candidate.energy['of']})"
        if candidate.joules_per_token is not None
        else "-",
        f"{candidate.status}{', confirmed' if candidate.confirmed else ''}",
    )


def build_config(
    point: StudyPoint, candidate: Candidate, search_spec: SearchGoal, configured: Collection[str] = ()
) -> dict[str, Any]:
    """The engine and its settings, and beside them what was measured, so that `bay experiment` can repeat it.

    `configured`: the sampling parameters that are the user's. The lab's own, such as greedy answers, are not for a server.
    """
    served = dict(point.serve or {})
    # What a model is for is written only where it is not the usual.
    entries = {
        name: {key: value for key, value in entry.items() if (key, value) != ("task", "generate")}
        for name, entry in served.get("models", {}).items()
    }
    models = {name: entry for name, entry in entries.items() if entry}
    again = replace(
        point,
        body={name: value for name, value in point.body.items() if name in configured},
        workload=_drop_requests(point.workload),
        profile={**search_spec.profile, "rate": candidate.rate},
        limits={"requests": candidate.requests or search_spec.requests},
        slo=dict(search_spec.slo),
    ).to_config()
    if "seed" not in configured:
        del again["random_seed"]
    return {"model": point.model, "engine": point.engine, **({"models": models} if models else {}), **again}


def render_config(config: Mapping[str, Any], ranking: Ranking, search_spec: SearchGoal, command: str) -> str:
    """As YAML, with what it rests on as comments."""
    import yaml

    day = datetime.now(UTC).strftime("%Y-%m-%d")
    found = [
        f"{one.label} {one.version}: {f'{one.rate:g} requests/s' if one.rate is not None else 'none'} ({one.status})"
        for one in ranking.order
    ]
    lines = [f"Measured on {day} by: {command}", f"Highest rate within {format_objective(search_spec.slo)}:", *found]
    serving = {name: value for name, value in config.items() if name in (*_SERVING_KEYS, config["engine"])}
    rest = {name: value for name, value in config.items() if name not in serving}
    head = "".join(f"# {line}\n" for line in lines)
    about = "# What it was measured with; `bay experiment` repeats it, and a server does not need it.\n"
    return f"{head}{_dump_yaml(yaml, serving)}{about}{_dump_yaml(yaml, rest)}"


def _dump_yaml(yaml: Any, data: Mapping[str, Any]) -> str:
    return str(yaml.safe_dump(dict(data), sort_keys=False, allow_unicode=True))


def _drop_requests(workload: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in workload.items() if name != "requests"}


def check_output_path(path: Path | None, force: bool) -> None:
    """Said before anything is measured, not after."""
    if path is None:
        return
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise UsageError(f"{path} cannot be written", "give the path of a file in a folder that exists")
    if path.exists() and not force:
        raise UsageError(f"{path} is there already", "take another name, or write over it with --force")


def build_choice(
    ranking: Ranking, points: Mapping[str, StudyPoint], search_spec: SearchGoal, stored: StoredModel, host: HostFacts,
    installed: Mapping[str, Probe | None], study_id: str,
) -> TunedEngine:  # fmt: skip
    """What is kept for `engine: auto`."""
    from enginebay.fleet.engine_selection.tuned_engines import (
        EngineMeasurement,
        TunedEngine,
        fingerprint_host,
        fingerprint_model,
    )

    best = ranking.best
    assert best is not None

    def measured(one: Candidate) -> EngineMeasurement:
        probe = installed.get(one.engine)
        return EngineMeasurement(
            engine=one.engine,
            version=probe.version if probe is not None else one.version,
            rate=one.rate,
            why_none=one.why_none,
            confirmed=one.confirmed,
            sure=one.sure,
            status=one.status,
            reasons=tuple(f"{reason['code']}: {reason['message']}" for reason in one.reasons),
            j_per_output_token=one.joules_per_token,
            energy_of=str(one.energy.get("of", "")),
            energy_absent=str(one.energy.get("absent", "")),
            settings=dict((points[one.label].serve or {}).get(one.engine) or {}),
        )

    return TunedEngine(
        model=stored.name,
        model_files=fingerprint_model(stored),
        source=stored.source,
        host=fingerprint_host(host),
        engine=best.engine,
        slo=dict(search_spec.slo),
        measured=tuple(map(measured, ranking.order)),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        profile=dict(search_spec.profile),
        workload=_drop_requests(points[best.label].workload),
        resolution=search_spec.rules.resolution,
        decided_by=ranking.decided_by,
        status=ranking.status,
        study=study_id,
        enginebay_version=__version__,
    )


def to_json(
    ranking: Ranking, search_spec: SearchGoal, model: str, study_id: str, config: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The result for programs."""
    best = ranking.best
    return {
        "model": model,
        "engine": best.engine if best else None,
        "requests_per_s": best.rate if best else None,
        "slo": dict(search_spec.slo),
        "profile": dict(search_spec.profile),
        "rules": asdict(search_spec.rules),
        "verdict": ranking.status,
        "level": list(ranking.level),
        "decided_by": ranking.decided_by,
        "candidates": [one.to_dict() for one in ranking.order],
        "study": study_id,
        "config": config,
    }
