"""`bay choose MODEL --slo ttft_p95=0.8`: find the installed engine with the highest request rate within an SLO."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from enginebay.cli.lab import choose_output as output
from enginebay.cli.lab import quick_study
from enginebay.cli.lab.lab_dependencies import require_lab
from enginebay.cli.lab.search_options import check_token_lengths, parse_search_options
from enginebay.cli.lab.study_progress import SearchProgress
from enginebay.cli.options.command_app import ConfigOption, create_app
from enginebay.cli.options.stack_options import OfflineOption, SetKeyOption
from enginebay.cli.output.console import emit_json, note
from enginebay.config.layers.layer_sources import parse_assignments
from enginebay.errors import ConfigError, EnginebayError, EngineMissing, UnknownModel, UsageError

if TYPE_CHECKING:
    from enginebay.config.resolved_config import Config
    from enginebay.lab.search.candidates import Candidate, Ranking
    from enginebay.lab.search.rate_search import SearchGoal
    from enginebay.lab.study.engine_speed import EngineSpeed
    from enginebay.lab.study.study_point import StudyPoint
    from enginebay.models import StoredModel

app = create_app()


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """Everything decided before the first run."""

    model: str
    points: list[StudyPoint]
    goal: SearchGoal
    inputs: dict[str, Any]
    study_id: str
    runs: Path


@app.command()
def choose(
    model: Annotated[str, typer.Argument(help="A model in the store, the catalogue or the configuration, or a path")],
    *,
    slo: Annotated[
        list[str] | None,
        typer.Option("--slo", help="Latency objectives in seconds, such as ttft_p95=0.8,tpot_p95=0.05"),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile", help="Arrivals, without a rate: poisson (default), constant, or gamma:burstiness=0.5"
        ),
    ] = None,
    engines: Annotated[
        list[str] | None,
        typer.Option(
            "--engines", "--engine", "-e", help="Engines to compare, such as vllm,llamacpp (default: all installed)"
        ),
    ] = None,
    requests: Annotated[int | None, typer.Option("--requests", min=1, help="Minimum requests per run")] = None,
    seconds: Annotated[
        float | None, typer.Option("--seconds", min=0.1, help="Minimum duration per run in seconds (default: 15)")
    ] = None,
    input_tokens: Annotated[int | None, typer.Option("--input-tokens", min=1, help="Tokens per prompt")] = None,
    output_tokens: Annotated[int | None, typer.Option("--output-tokens", min=1, help="Tokens per answer")] = None,
    resolution: Annotated[float, typer.Option("--resolution", help="Precision of the rate: 0.1 is 10%")] = 0.10,
    most_runs: Annotated[int, typer.Option("--most-runs", min=2, help="Maximum runs per engine")] = 12,
    out: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write the configuration to this file")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file")] = False,
    even_if_invalid: Annotated[
        bool, typer.Option("--even-if-invalid", help="Use the result for `engine: auto` even if a run is invalid")
    ] = False,
    forget: Annotated[
        bool, typer.Option("--forget", help="Delete the saved choice for this model on this host")
    ] = False,
    config: ConfigOption = None,
    preset: Annotated[str | None, typer.Option("--preset", help="Preset to start from; see `bay presets`")] = None,
    ignore_warnings: Annotated[
        bool, typer.Option("--ignore-engine-warnings", help="Measure even if an engine ignores a setting")
    ] = False,
    runs: Annotated[Path | None, typer.Option("--runs", metavar="DIR", help="Directory with the runs")] = None,
    json: Annotated[bool, typer.Option("--json", help="Machine-readable output")] = False,
    set_: SetKeyOption = None,
    offline: OfflineOption = None,
) -> None:
    """Find the highest request rate each installed engine sustains within an SLO. `engine: auto` uses the best one."""
    from enginebay.config.loader import load_config

    flag_lengths = {"input_tokens": input_tokens, "output_tokens": output_tokens}
    lengths = {name: value for name, value in flag_lengths.items() if value is not None}
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
    _check_options(loaded, lengths, out, force)
    goal = parse_search_options(loaded.experiment, slo or [], profile, requests, seconds, resolution, most_runs)
    points, inputs = _build_points(model, loaded, config, preset, flags, engines, goal, ignore_warnings)
    plan, ranking = _search_engines(_make_plan(model, points, goal, inputs, runs), loaded)
    _print_results(plan, ranking, loaded, out, json, even_if_invalid)


def _check_options(loaded: Config, lengths: dict[str, int], out: Path | None, force: bool) -> None:
    """Reject what cannot work before anything is prepared. Raises `EnginebayError`."""
    check_token_lengths(loaded.experiment, lengths)
    require_lab()
    output.check_output_path(out, force)
    if loaded.experiment.sweep:
        raise ConfigError(
            "bay choose compares engines, each with one set of settings", "use bay experiment for a sweep"
        )


def _make_plan(
    model: str, points: list[StudyPoint], goal: SearchGoal, inputs: dict[str, Any], runs: Path | None
) -> SearchPlan:
    from enginebay.lab.store.run_folders import runs_dir

    study_id = datetime.now(UTC).strftime("choose-%Y%m%d-%H%M%S")
    return SearchPlan(model, points, goal, inputs, study_id, runs or runs_dir())


def _search_engines(plan: SearchPlan, loaded: Config) -> tuple[SearchPlan, Ranking]:
    """Measure the engines. Return the plan with the lengths that were measured."""
    from enginebay.lab.search.preflight import predict_search_reasons
    from enginebay.lab.study.study_size import shorten_preparation

    for line in predict_search_reasons(plan.goal):
        note(line)
    progress = SearchProgress()
    plan = replace(plan, points=[shorten_preparation(point) for point in plan.points])
    try:
        speeds = _measure_speeds(plan, progress)
        plan, speeds = _shorten_requests(plan, loaded, speeds)
        return plan, _measure_engines(plan, speeds, progress)
    except KeyboardInterrupt:
        progress.clear()
        note(f"{plan.study_id} was interrupted, and nothing was chosen; `bay results list` shows the finished runs")
        raise


def _build_points(
    model: str, loaded: Config, config: Path | None, preset: str | None, flags: dict[str, Any],
    engines: list[str] | None, goal: SearchGoal, ignore_warnings: bool,
) -> tuple[list[StudyPoint], dict[str, Any]]:  # fmt: skip
    """Build one point per engine, without its rate."""
    from enginebay.cli.lab.study_planning import plan_engine_points

    named = [name.strip() for text in engines or () for name in text.split(",") if name.strip()]
    kinds = named or list(loaded.experiment.engines) or _find_candidates(model, loaded)
    versions = [name for name in kinds if "==" in name]
    if versions:
        raise UsageError(
            f"{versions[0]} names a version, but `engine: auto` runs the newest",
            "remove the version; `bay engines list` shows what is installed",
        )
    # A placeholder for the rates of the search, so that everything else is checked now.
    point_flags = {**flags, "engine": None, "engines": kinds, "profile": {**goal.profile, "rate": 1.0}}
    points, dropped, _, inputs = plan_engine_points(config, preset, point_flags, model, None, ignore_warnings)
    for point in dropped:
        note(f"skipped {point.label}: {'; '.join(point.reasons)}")
    workloads = [{name: value for name, value in point.workload.items() if name != "requests"} for point in points]
    kept = ("stall_timeout_s",)  # every other limit follows from the search
    bare = [
        replace(
            point,
            label=point.engine,
            workload=workload,
            limits={name: value for name, value in point.limits.items() if name in kept},
        )
        for point, workload in zip(points, workloads, strict=True)
    ]
    return bare, inputs


def _find_candidates(model: str, config: Config) -> list[str]:
    """List the installed engines that can run the model."""
    from enginebay.cli.options.stack_options import StatusLine
    from enginebay.fleet.engine_selection.engine_resolver import list_candidates_for
    from enginebay.models import ensure_model

    progress = StatusLine()
    stored = ensure_model(_resolve_source(model, config), offline=config.offline, say=progress.update)
    progress.clear()
    kinds, rejected = list_candidates_for(stored)
    for kind, reason in rejected.items():
        note(f"skipped {kind}: {reason}")
    if not kinds:
        raise EngineMissing(f"no installed engine runs {model}", f"see why with: bay engines why {model}")
    return kinds


def _resolve_source(model: str, config: Config) -> str:
    configured = config.models.get(model)
    return configured.source if configured is not None and configured.source else model


def _measure_speeds(plan: SearchPlan, progress: SearchProgress) -> list[EngineSpeed | EnginebayError]:
    speeds = quick_study.measure_speeds(plan.points, progress.show_phase)
    progress.clear()
    return speeds


def _shorten_requests(
    plan: SearchPlan, loaded: Config, speeds: Sequence[EngineSpeed | EnginebayError]
) -> tuple[SearchPlan, list[EngineSpeed | EnginebayError]]:
    """Shorten prompts and answers on a slow host, unless the user chose their length. Return the speeds that follow."""
    from enginebay.lab.search.search_duration import ENGINE_BUDGET_S, pick_lengths, scale_prompts
    from enginebay.lab.study.study_point import plan_run

    known = [speed for speed in speeds if not isinstance(speed, EnginebayError)]
    lengths = quick_study.list_lengths(plan.points[0], loaded)
    if not known or not lengths:
        return plan, list(speeds)
    usual = lengths[0]
    prompt, answer = pick_lengths(known, plan.goal, plan_run(plan.points[0]).parity, lengths)
    if (prompt, answer) == usual:
        return plan, list(speeds)
    note(
        f"this host is slow: prompts of {prompt} and answers of {answer} tokens instead of {usual[0]} and {usual[1]}, to "
        f"keep the search near {ENGINE_BUDGET_S / 60:.0f} minutes per engine; to override: --input-tokens {usual[0]} "
        f"--output-tokens {usual[1]}"
    )
    shorter = {"input_tokens": prompt, "output_tokens": answer}
    points = [replace(point, workload={**point.workload, **shorter}) for point in plan.points]
    scaled = [
        speed if isinstance(speed, EnginebayError) else scale_prompts(speed, prompt / usual[0]) for speed in speeds
    ]
    return replace(plan, points=points), scaled


def _plan_searches(plan: SearchPlan, speeds: Sequence[EngineSpeed | EnginebayError]) -> list[float]:
    """Return how long the search takes on each engine."""
    from enginebay.lab.search.search_duration import plan_search_s
    from enginebay.lab.study.study_point import plan_run

    return [
        0.0
        if isinstance(speed, EnginebayError)
        else plan_search_s(speed, plan.goal, quick_study.get_output_tokens(point), plan_run(point).parity)
        for point, speed in zip(plan.points, speeds, strict=True)
    ]


def _announce(plan: SearchPlan, expected_s: Sequence[float]) -> None:
    goal = plan.goal
    engines = ", ".join(
        f"{point.engine} ({quick_study.format_about(seconds)})"
        for point, seconds in zip(plan.points, expected_s, strict=True)
    )
    note(
        f"{plan.study_id}: {engines} within {output.format_objective(goal.slo)}; "
        f"runs of at least {goal.requests} requests and {goal.seconds:g} s, to {goal.rules.resolution:.0%}; "
        f"{quick_study.format_about(sum(expected_s))} in all"
    )


def _measure_engines(
    plan: SearchPlan, speeds: Sequence[EngineSpeed | EnginebayError], progress: SearchProgress
) -> Ranking:
    from enginebay.cli.lab.study_planning import read_tokenizer
    from enginebay.lab.loadgen.calibration import calibrate
    from enginebay.lab.search import rate_search
    from enginebay.lab.search.candidate_parity import flag_parity_breaks
    from enginebay.lab.search.candidates import rank_candidates
    from enginebay.lab.search.search_duration import ANNOUNCED_SLACK
    from enginebay.lab.study.run_point import StudyContext

    progress.show_phase("calibrating the load generator")
    ceiling = calibrate()
    progress.clear()
    expected_s = _plan_searches(plan, speeds)
    _announce(plan, expected_s)
    context = StudyContext(
        runs_dir=plan.runs, study_id=plan.study_id, ceiling=ceiling, config=plan.inputs, on_status=progress.show_phase,
        on_progress=progress.show_live, load_tokenizer=read_tokenizer,
    )  # fmt: skip
    callbacks = rate_search.SearchCallbacks(progress.begin_search_run, progress.end_search_run)
    candidates: list[Candidate] = []
    for number, (point, speed) in enumerate(zip(plan.points, speeds, strict=True)):
        progress.ends_at_s = monotonic() + sum(expected_s[number:])
        progress.begin_engine(point.label, number + 1, len(plan.points))
        if isinstance(speed, EnginebayError):
            candidates.append(rate_search.make_failed_candidate(point, speed))
        else:
            single_s = speed.single_s(quick_study.get_output_tokens(point))
            pace = rate_search.SearchPace(single_s, monotonic() + expected_s[number] / ANNOUNCED_SLACK)
            candidates.append(rate_search.find_highest_rate(context, point, plan.goal, callbacks, number, pace))
        progress.end_engine(candidates[-1])
    return rank_candidates(flag_parity_breaks(candidates, plan.runs), plan.goal.rules.resolution)


def _print_results(
    plan: SearchPlan, ranking: Ranking, loaded: Config, out: Path | None, json: bool, even_if_invalid: bool
) -> None:
    points = {point.label: point for point in plan.points}
    best = ranking.best
    config = None
    if best is not None:
        point = points[best.label]
        configured = loaded.sampling_for(point.engine, point.model)
        config = output.build_config(point, best, plan.goal, configured)
    saved, why_not = _save_choice(plan, ranking, points, loaded, even_if_invalid)
    if json:
        result = output.to_json(ranking, plan.goal, plan.model, plan.study_id, config)
        emit_json(
            {
                **result,
                "kept": str(saved) if saved else None,
                "why_not_kept": why_not,
                "file": str(out) if out and config else None,
            }
        )
    else:
        output.print_ranking(ranking, plan.goal)
    if best is None or config is None:
        raise _no_engine_error(plan, ranking)
    _write_config(config, ranking, plan, out, json)
    if saved is None:
        note(f"`engine: auto` does not use the result: {why_not}")
    else:
        note(f"`engine: auto` now runs {plan.model} on {best.engine}; see `bay engines why {plan.model}`")


def _no_engine_error(plan: SearchPlan, ranking: Ranking) -> EnginebayError:
    message = f"no engine meets {output.format_objective(plan.goal.slo)} for {plan.model} on this host"
    if ranking.status == "invalid":
        return EnginebayError(message, "its runs are invalid (see above): measure again on an idle host")
    return EnginebayError(
        message, "relax the objective, or shorten prompts and answers with --input-tokens and --output-tokens"
    )


def _save_choice(
    plan: SearchPlan, ranking: Ranking, points: dict[str, StudyPoint], loaded: Config, even_if_invalid: bool
) -> tuple[Path | None, str]:
    """Save the choice for `engine: auto`. Return its path, or why it was not saved."""
    from enginebay.environments import get_installed_engines
    from enginebay.fleet.engine_selection import tuned_engines
    from enginebay.fleet.engine_selection.engine_resolver import list_candidates_for
    from enginebay.util.hardware import read_host

    if ranking.best is None:
        return None, "no engine meets the objective"
    if ranking.status == "invalid" and not even_if_invalid:
        return None, "one of its runs is invalid; measure again, or pass --even-if-invalid"
    stored = _find_stored_model(plan.model, loaded)
    if stored is None:
        return None, f"{plan.model} has no files on this host"
    if ranking.best.engine not in list_candidates_for(stored)[0]:
        return None, f"{ranking.best.engine} cannot run the files of {plan.model}"
    choice = output.build_choice(
        ranking, points, plan.goal, stored, read_host(), get_installed_engines(), plan.study_id
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
    text = output.render_config(config, ranking, plan.goal, command)
    if out is not None:
        out.write_text(text, encoding="utf-8")
        note(f"wrote {out}; use it with: bay serve --config {out}")
    elif not json:
        print(f"\n{text}", end="")
        note("copy these lines to enginebay.yaml, or write them to a file with -o FILE")


def _forget_choice(model: str, config: Config) -> None:
    from enginebay.fleet.engine_selection import tuned_engines
    from enginebay.models import resolve_model
    from enginebay.util.hardware import read_host

    existed = tuned_engines.forget(resolve_model(_resolve_source(model, config)), read_host())
    note(f"forgot the choice for {model}" if existed else f"no choice is saved for {model} on this host")
