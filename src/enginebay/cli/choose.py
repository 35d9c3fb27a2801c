"""`bay choose MODEL --slo ttft_p95=0.8`: measure which installed engine is the best for a model here."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from enginebay.cli import choose_output as output
from enginebay.cli.choose_progress import ChoiceProgress
from enginebay.cli.lab_parts import need_lab
from enginebay.cli.output import emit_json, note
from enginebay.cli.stack_options import ConfigFile, Offline, SetKey
from enginebay.config.sources import assignment_flags
from enginebay.errors import ConfigError, EnginebayError, EngineMissing, UnknownModel, UsageError

if TYPE_CHECKING:
    from enginebay.config.model import Config
    from enginebay.fleet.models import StoredModel
    from enginebay.lab.candidates import Candidate, Ranking
    from enginebay.lab.highest import Wish
    from enginebay.lab.points import Point

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@dataclass(frozen=True, slots=True)
class Plan:
    """All that is decided before anything is measured."""

    model: str
    points: list[Point]
    wish: Wish
    given: dict[str, Any]
    study_id: str
    runs: Path


@app.command()
def choose(
    model: Annotated[str, typer.Argument(help="A model of the store, the catalogue or the configuration, or a path")],
    *,
    slo: Annotated[
        list[str] | None,
        typer.Option("--slo", help="What must be kept, like ttft_p95=0.8 or ttft_p95=0.8,tpot_p95=0.05 (seconds)"),
    ] = None,
    profile: Annotated[
        str | None, typer.Option("--profile", help="poisson (default), constant, or gamma:burstiness=0.5; without rate")
    ] = None,
    engines: Annotated[
        list[str] | None,
        typer.Option("--engines", "--engine", "-e", help="Only these, like vllm,llamacpp (default: all installed)"),
    ] = None,
    requests: Annotated[int | None, typer.Option("--requests", min=1, help="Of each run, at least")] = None,
    seconds: Annotated[
        float | None, typer.Option("--seconds", min=0.1, help="Of each run, at least (default: 15)")
    ] = None,
    input_tokens: Annotated[int | None, typer.Option("--input-tokens", min=1, help="Of each prompt")] = None,
    output_tokens: Annotated[int | None, typer.Option("--output-tokens", min=1, help="Of each answer")] = None,
    resolution: Annotated[float, typer.Option("--resolution", help="How exact the rate is: 0.1 is 10%")] = 0.10,
    most_runs: Annotated[int, typer.Option("--most-runs", min=2, help="Runs of the search on each engine")] = 12,
    out: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write the configuration here")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over the file")] = False,
    even_if_invalid: Annotated[
        bool, typer.Option("--even-if-invalid", help="Have `engine: auto` go by it although a run is invalid")
    ] = False,
    forget: Annotated[bool, typer.Option("--forget", help="Forget what was chosen for this model here")] = False,
    config: ConfigFile = None,
    preset: Annotated[str | None, typer.Option("--preset", help="Settings by name: see `bay presets`")] = None,
    ignore_warnings: Annotated[
        bool, typer.Option("--ignore-engine-warnings", help="Measure although an engine ignores a setting")
    ] = False,
    runs: Annotated[Path | None, typer.Option("--runs", metavar="DIR", help="Where runs are kept")] = None,
    json: Annotated[bool, typer.Option("--json", help="The result for programs")] = False,
    set_: SetKey = None,
    offline: Offline = None,
) -> None:
    """Find each installed engine's highest rate that keeps an objective, and have `engine: auto` go by it."""
    from enginebay.cli.choose_wish import check_lengths, read_wish
    from enginebay.config.load import load_config

    named = (("input_tokens", input_tokens), ("output_tokens", output_tokens))
    lengths = {name: value for name, value in named if value is not None}
    flags = {
        "model": model,
        "offline": offline,
        **assignment_flags(set_ or []),
        **{f"workload.{name}": value for name, value in lengths.items()},
    }
    loaded = load_config(config, preset=preset, flags=flags)
    if forget:
        _forget(model, loaded)
        return
    check_lengths(loaded.experiment, lengths)
    need_lab()
    from enginebay.lab.foreseen import foreseen_of_search
    from enginebay.lab.runs.folders import runs_dir

    output.check_target(out, force)
    if loaded.experiment.sweep:
        raise ConfigError("choose compares engines, each with one choice of settings", "use bay experiment for a sweep")
    wish = read_wish(loaded.experiment, slo or [], profile, requests, seconds, resolution, most_runs)
    points, given = _points(model, loaded, config, preset, flags, engines, wish, ignore_warnings)
    study_id = datetime.now(UTC).strftime("choose-%Y%m%d-%H%M%S")
    plan = Plan(model, points, wish, given, study_id, runs or runs_dir())
    for line in foreseen_of_search(wish):
        note(line)
    progress = ChoiceProgress()
    try:
        ranking = _measure(plan, progress)
    except KeyboardInterrupt:
        progress.clear()
        note(f"{study_id} was interrupted, and nothing was chosen; `bay results list` shows the runs that were made")
        raise
    _report(plan, ranking, loaded, out, json, even_if_invalid)


def _points(
    model: str, loaded: Config, config: Path | None, preset: str | None, flags: dict[str, Any],
    engines: list[str] | None, wish: Wish, ignore_warnings: bool,
) -> tuple[list[Point], dict[str, Any]]:  # fmt: skip
    """One point for each engine, without its load."""
    from enginebay.cli.experiment import of_engines

    named = [name.strip() for text in engines or () for name in text.split(",") if name.strip()]
    kinds = named or list(loaded.experiment.engines) or _candidates(model, loaded)
    versions = [name for name in kinds if "==" in name]
    if versions:
        raise UsageError(
            f"{versions[0]} names a version, and `engine: auto` runs the newest",
            "leave the version out; `bay engines list` shows which are installed",
        )
    # The rate stands in for those of the search, so that all else is checked now.
    asked = {**flags, "engine": None, "engines": kinds, "profile": {**wish.profile, "rate": 1.0}}
    points, dropped, _, given = of_engines(config, preset, asked, model, None, ignore_warnings)
    for one in dropped:
        note(f"left out: {one.label}: {'; '.join(one.reasons)}")
    workloads = [{name: value for name, value in point.workload.items() if name != "requests"} for point in points]
    bare = [
        replace(point, label=point.engine, workload=workload, limits={})
        for point, workload in zip(points, workloads, strict=True)
    ]
    return bare, given


def _candidates(model: str, config: Config) -> list[str]:
    """The installed engines that can run the model."""
    from enginebay.cli.stack_options import Progress
    from enginebay.fleet.decide import candidates_for
    from enginebay.fleet.models import ensure

    progress = Progress()
    stored = ensure(_source(model, config), offline=config.offline, say=progress.say)
    progress.clear()
    kinds, against = candidates_for(stored)
    for kind, reason in against.items():
        note(f"left out: {kind}: {reason}")
    if not kinds:
        raise EngineMissing(f"no installed engine runs {model}", f"see why with: bay engines why {model}")
    return kinds


def _source(model: str, config: Config) -> str:
    configured = config.models.get(model)
    return configured.source if configured is not None and configured.source else model


def _measure(plan: Plan, progress: ChoiceProgress) -> Ranking:
    from enginebay.cli.experiment import read_tokenizer
    from enginebay.lab.agreement import with_parity
    from enginebay.lab.candidates import rank
    from enginebay.lab.client.ceiling import calibrate
    from enginebay.lab.conduct import Bench
    from enginebay.lab.highest import Watcher, find_highest

    progress.say("measuring the load client itself")
    ceiling = calibrate()
    progress.clear()
    wish = plan.wish
    note(
        f"{plan.study_id}: {', '.join(point.engine for point in plan.points)} within {output.objective_of(wish.slo)}; "
        f"runs of {wish.requests} requests and {wish.seconds:g} s at least, to {wish.rules.resolution:.0%}"
    )
    bench = Bench(
        runs=plan.runs, study_id=plan.study_id, ceiling=ceiling, config=plan.given, say=progress.say,
        live=progress.live, tokenizer=read_tokenizer,
    )  # fmt: skip
    watcher = Watcher(progress.began_load, progress.ended_load)
    found: list[Candidate] = []
    for number, point in enumerate(plan.points):
        progress.engine(point.label, number + 1, len(plan.points))
        found.append(find_highest(bench, point, wish, watcher, number))
        progress.ended_engine(found[-1])
    return rank(with_parity(found, plan.runs), wish.rules.resolution)


def _report(plan: Plan, ranking: Ranking, loaded: Config, out: Path | None, json: bool, even_if_invalid: bool) -> None:
    points = {point.label: point for point in plan.points}
    best = ranking.best
    config = None
    if best is not None:
        point = points[best.label]
        configured = loaded.sampling_for(point.engine, point.model)
        config = output.config_of(point, best, plan.wish, configured)
    kept, why_not = _keep(plan, ranking, points, loaded, even_if_invalid)
    if json:
        told = output.as_data(ranking, plan.wish, plan.model, plan.study_id, config)
        emit_json(
            {
                **told,
                "kept": str(kept) if kept else None,
                "why_not_kept": why_not,
                "file": str(out) if out and config else None,
            }
        )
    else:
        output.show_table(ranking, plan.wish)
    if best is None or config is None:
        raise _nothing(plan, ranking)
    _write(config, ranking, plan, out, json)
    if kept is None:
        note(f"`engine: auto` does not go by it: {why_not}")
    else:
        note(f"`engine: auto` now runs {plan.model} on {best.engine} here: see `bay engines why {plan.model}`")


def _nothing(plan: Plan, ranking: Ranking) -> EnginebayError:
    message = f"no engine keeps {output.objective_of(plan.wish.slo)} for {plan.model} here"
    if ranking.status == "invalid":
        return EnginebayError(message, "its runs are invalid, as said above: measure again when nothing else runs")
    return EnginebayError(
        message, "raise the limit, or shorten prompts and answers with --input-tokens and --output-tokens"
    )


def _keep(
    plan: Plan, ranking: Ranking, points: dict[str, Point], loaded: Config, even_if_invalid: bool
) -> tuple[Path | None, str]:
    """Where the choice was kept for `engine: auto`; or why it was not."""
    from enginebay.fleet import choices
    from enginebay.fleet.decide import candidates_for
    from enginebay.fleet.environments import installed
    from enginebay.fleet.host import read_host

    if ranking.best is None:
        return None, "no engine keeps the objective"
    if ranking.status == "invalid" and not even_if_invalid:
        return None, "a run that it rests on is invalid; measure again, or insist with --even-if-invalid"
    stored = _stored(plan.model, loaded)
    if stored is None:
        return None, f"{plan.model} has no files here"
    if ranking.best.engine not in candidates_for(stored)[0]:
        return None, f"{ranking.best.engine} does not run the files of {plan.model}"
    choice = output.choice_of(ranking, points, plan.wish, stored, read_host(), installed(), plan.study_id)
    return choices.save(choice), ""


def _stored(model: str, config: Config) -> StoredModel | None:
    from enginebay.fleet.models import resolve

    try:
        return resolve(_source(model, config))
    except UnknownModel:
        return None


def _write(config: dict[str, Any], ranking: Ranking, plan: Plan, out: Path | None, json: bool) -> None:
    command = shlex.join(["bay", "choose", *sys.argv[2:]])
    text = output.config_text(config, ranking, plan.wish, command)
    if out is not None:
        out.write_text(text, encoding="utf-8")
        note(f"wrote {out}; use it with: bay serve --config {out}")
    elif not json:
        print(f"\n{text}", end="")
        note("put these lines into enginebay.yaml, or write them to a file with -o FILE")


def _forget(model: str, config: Config) -> None:
    from enginebay.fleet import choices
    from enginebay.fleet.host import read_host
    from enginebay.fleet.models import resolve

    there = choices.forget(resolve(_source(model, config)), read_host())
    note(f"forgot what was chosen for {model}" if there else f"nothing was chosen for {model} on this host")
