"""`bay choose MODEL --slo ttft_p95=0.8`: measure which installed engine is the best for a model here."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from enginebay.cli.lab import choose_output as output
from enginebay.cli.lab.lab_dependencies import require_lab
from enginebay.cli.lab.study_progress import SearchProgress
from enginebay.cli.options.stack_options import ConfigOption, OfflineOption, SetKeyOption
from enginebay.cli.output.console import emit_json, note
from enginebay.config.layers.layer_sources import parse_assignments
from enginebay.errors import ConfigError, EnginebayError, EngineMissing, UnknownModel, UsageError

if TYPE_CHECKING:
    from enginebay.config.resolved_config import Config
    from enginebay.lab.search.candidates import Candidate, Ranking
    from enginebay.lab.search.rate_search import SearchGoal
    from enginebay.lab.study.study_point import StudyPoint
    from enginebay.models import StoredModel

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """All that is decided before anything is measured."""

    model: str
    points: list[StudyPoint]
    search_spec: SearchGoal
    inputs: dict[str, Any]
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
    config: ConfigOption = None,
    preset: Annotated[str | None, typer.Option("--preset", help="Settings by name: see `bay presets`")] = None,
    ignore_warnings: Annotated[
        bool, typer.Option("--ignore-engine-warnings", help="Measure although an engine ignores a setting")
    ] = False,
    runs: Annotated[Path | None, typer.Option("--runs", metavar="DIR", help="Where runs are kept")] = None,
    json: Annotated[bool, typer.Option("--json", help="The result for programs")] = False,
    set_: SetKeyOption = None,
    offline: OfflineOption = None,
) -> None:
    """Find each installed engine's highest rate that keeps an objective, and have `engine: auto` go by it."""
    from enginebay.cli.lab.search_options import check_token_lengths, parse_search_options
    from enginebay.config.loader import load_config

    named = (("input_tokens", input_tokens), ("output_tokens", output_tokens))
    lengths = {name: value for name, value in named if value is not None}
    flags = {
        "model": model,
        "offline": offline,
        **parse_assignments(set_ or []),
        **{f"workload.{name}": value for name, value in lengths.items()},
    }
    loaded = load_config(config, preset=preset, flags=flags)
    if forget:
        _forget_choice(model, loaded)
        return
    check_token_lengths(loaded.experiment, lengths)
    require_lab()
    from enginebay.lab.search.preflight import predict_search_reasons
    from enginebay.lab.store.run_folders import runs_dir

    output.check_output_path(out, force)
    if loaded.experiment.sweep:
        raise ConfigError("choose compares engines, each with one choice of settings", "use bay experiment for a sweep")
    wish = parse_search_options(loaded.experiment, slo or [], profile, requests, seconds, resolution, most_runs)
    points, given = _build_points(model, loaded, config, preset, flags, engines, wish, ignore_warnings)
    study_id = datetime.now(UTC).strftime("choose-%Y%m%d-%H%M%S")
    plan = SearchPlan(model, points, wish, given, study_id, runs or runs_dir())
    for line in predict_search_reasons(wish):
        note(line)
    progress = SearchProgress()
    try:
        ranking = _measure_engines(plan, progress)
    except KeyboardInterrupt:
        progress.clear()
        note(f"{study_id} was interrupted, and nothing was chosen; `bay results list` shows the runs that were made")
        raise
    _print_results(plan, ranking, loaded, out, json, even_if_invalid)


def _build_points(
    model: str, loaded: Config, config: Path | None, preset: str | None, flags: dict[str, Any],
    engines: list[str] | None, search_spec: SearchGoal, ignore_warnings: bool,
) -> tuple[list[StudyPoint], dict[str, Any]]:  # fmt: skip
    """One point for each engine, without its load."""
    from enginebay.cli.lab.experiment import plan_engine_points

    named = [name.strip() for text in engines or () for name in text.split(",") if name.strip()]
    kinds = named or list(loaded.experiment.engines) or _find_candidates(model, loaded)
    versions = [name for name in kinds if "==" in name]
    if versions:
        raise UsageError(
            f"{versions[0]} names a version, and `engine: auto` runs the newest",
            "leave the version out; `bay engines list` shows which are installed",
        )
    # The rate stands in for those of the search, so that all else is checked now.
    asked = {**flags, "engine": None, "engines": kinds, "profile": {**search_spec.profile, "rate": 1.0}}
    points, dropped, _, given = plan_engine_points(config, preset, asked, model, None, ignore_warnings)
    for one in dropped:
        note(f"left out: {one.label}: {'; '.join(one.reasons)}")
    workloads = [{name: value for name, value in point.workload.items() if name != "requests"} for point in points]
    bare = [
        replace(point, label=point.engine, workload=workload, limits={})
        for point, workload in zip(points, workloads, strict=True)
    ]
    return bare, given


def _find_candidates(model: str, config: Config) -> list[str]:
    """The installed engines that can run the model."""
    from enginebay.cli.options.stack_options import StatusLine
    from enginebay.fleet.engine_selection.engine_resolver import list_candidates_for
    from enginebay.models import ensure_model

    progress = StatusLine()
    stored = ensure_model(_resolve_source(model, config), offline=config.offline, say=progress.update)
    progress.clear()
    kinds, against = list_candidates_for(stored)
    for kind, reason in against.items():
        note(f"left out: {kind}: {reason}")
    if not kinds:
        raise EngineMissing(f"no installed engine runs {model}", f"see why with: bay engines why {model}")
    return kinds


def _resolve_source(model: str, config: Config) -> str:
    configured = config.models.get(model)
    return configured.source if configured is not None and configured.source else model


def _measure_engines(plan: SearchPlan, progress: SearchProgress) -> Ranking:
    from enginebay.cli.lab.experiment import read_tokenizer
    from enginebay.lab.loadgen.calibration import calibrate
    from enginebay.lab.search.candidate_parity import flag_parity_breaks
    from enginebay.lab.search.candidates import rank_candidates
    from enginebay.lab.search.rate_search import SearchCallbacks, find_highest_rate
    from enginebay.lab.study.run_point import StudyContext

    progress.show_phase("measuring the load client itself")
    ceiling = calibrate()
    progress.clear()
    wish = plan.search_spec
    note(
        f"{plan.study_id}: {', '.join(point.engine for point in plan.points)} within {output.format_objective(wish.slo)}; "
        f"runs of {wish.requests} requests and {wish.seconds:g} s at least, to {wish.rules.resolution:.0%}"
    )
    bench = StudyContext(
        runs_dir=plan.runs, study_id=plan.study_id, ceiling=ceiling, config=plan.inputs, on_status=progress.show_phase,
        on_progress=progress.show_live, load_tokenizer=read_tokenizer,
    )  # fmt: skip
    watcher = SearchCallbacks(progress.begin_search_run, progress.end_search_run)
    found: list[Candidate] = []
    for number, point in enumerate(plan.points):
        progress.begin_engine(point.label, number + 1, len(plan.points))
        found.append(find_highest_rate(bench, point, wish, watcher, number))
        progress.end_engine(found[-1])
    return rank_candidates(flag_parity_breaks(found, plan.runs), wish.rules.resolution)


def _print_results(
    plan: SearchPlan, ranking: Ranking, loaded: Config, out: Path | None, json: bool, even_if_invalid: bool
) -> None:
    points = {point.label: point for point in plan.points}
    best = ranking.best
    config = None
    if best is not None:
        point = points[best.label]
        configured = loaded.sampling_for(point.engine, point.model)
        config = output.build_config(point, best, plan.search_spec, configured)
    kept, why_not = _save_choice(plan, ranking, points, loaded, even_if_invalid)
    if json:
        told = output.to_json(ranking, plan.search_spec, plan.model, plan.study_id, config)
        emit_json(
            {
                **told,
                "kept": str(kept) if kept else None,
                "why_not_kept": why_not,
                "file": str(out) if out and config else None,
            }
        )
    else:
        output.print_ranking(ranking, plan.search_spec)
    if best is None or config is None:
        raise _no_engine_error(plan, ranking)
    _write_config(config, ranking, plan, out, json)
    if kept is None:
        note(f"`engine: auto` does not go by it: {why_not}")
    else:
        note(f"`engine: auto` now runs {plan.model} on {best.engine} here: see `bay engines why {plan.model}`")


def _no_engine_error(plan: SearchPlan, ranking: Ranking) -> EnginebayError:
    message = f"no engine keeps {output.format_objective(plan.search_spec.slo)} for {plan.model} here"
    if ranking.status == "invalid":
        return EnginebayError(message, "its runs are invalid, as said above: measure again when nothing else runs")
    return EnginebayError(
        message, "raise the limit, or shorten prompts and answers with --input-tokens and --output-tokens"
    )


def _save_choice(
    plan: SearchPlan, ranking: Ranking, points: dict[str, StudyPoint], loaded: Config, even_if_invalid: bool
) -> tuple[Path | None, str]:
    """Where the choice was kept for `engine: auto`; or why it was not."""
    from enginebay.environments import get_installed_engines
    from enginebay.fleet.engine_selection import tuned_engines
    from enginebay.fleet.engine_selection.engine_resolver import list_candidates_for
    from enginebay.util.hardware import read_host

    if ranking.best is None:
        return None, "no engine keeps the objective"
    if ranking.status == "invalid" and not even_if_invalid:
        return None, "a run that it rests on is invalid; measure again, or insist with --even-if-invalid"
    stored = _find_stored_model(plan.model, loaded)
    if stored is None:
        return None, f"{plan.model} has no files here"
    if ranking.best.engine not in list_candidates_for(stored)[0]:
        return None, f"{ranking.best.engine} does not run the files of {plan.model}"
    choice = output.build_choice(
        ranking, points, plan.search_spec, stored, read_host(), get_installed_engines(), plan.study_id
    )
    return tuned_engines.save(choice), ""


def _find_stored_model(model: str, config: Config) -> StoredModel | None:
    from enginebay.models import resolve_model

    try:
        return resolve_model(_resolve_source(model, config))
    except UnknownModel:
        return None


def _write_config(config: dict[str, Any], ranking: Ranking, plan: SearchPlan, out: Path | None, json: bool) -> None:
    command = shlex.join(["bay", "choose", *sys.argv[2:]])
    text = output.render_config(config, ranking, plan.search_spec, command)
    if out is not None:
        out.write_text(text, encoding="utf-8")
        note(f"wrote {out}; use it with: bay serve --config {out}")
    elif not json:
        print(f"\n{text}", end="")
        note("put these lines into enginebay.yaml, or write them to a file with -o FILE")


def _forget_choice(model: str, config: Config) -> None:
    from enginebay.fleet.engine_selection import tuned_engines
    from enginebay.models import resolve_model
    from enginebay.util.hardware import read_host

    there = tuned_engines.forget(resolve_model(_resolve_source(model, config)), read_host())
    note(f"forgot what was chosen for {model}" if there else f"nothing was chosen for {model} on this host")
