"""`bay experiment [CONFIG]`: benchmark engines, or a running server, and store the runs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from enginebay.cli.lab import quick_study
from enginebay.cli.lab.lab_credentials import build_admin_headers, build_inference_headers
from enginebay.cli.lab.lab_dependencies import find_missing_packages, require_lab
from enginebay.cli.lab.study_planning import plan_engine_points, plan_url_points, read_tokenizer
from enginebay.cli.options.command_app import ConfigOption, create_app, pick_config_file
from enginebay.cli.options.stack_options import OfflineOption, SetKeyOption
from enginebay.cli.output.console import emit_json, note, print_table
from enginebay.config.layers.layer_sources import parse_assignments
from enginebay.errors import EnginebayError, UsageError
from enginebay.util.text_format import pluralize

if TYPE_CHECKING:
    from enginebay.config.resolved_config import Config
    from enginebay.config.sweep_points import DroppedPoint
    from enginebay.lab.store.study_plan import Study
    from enginebay.lab.study.run_study import StudyOutcome
    from enginebay.lab.study.study_point import StudyPoint

app = create_app()


@dataclass(frozen=True, slots=True)
class StudyOptions:
    """What a new study is planned from."""

    config: Path | None
    preset: str | None
    flags: dict[str, Any]
    url: str | None
    model: str | None
    tokenizer: str | None
    ignore_warnings: bool
    quick: bool


@dataclass(frozen=True, slots=True)
class PlannedStudy:
    """A study before it is stored."""

    points: list[StudyPoint]
    cycles: int
    inputs: dict[str, Any]
    sized_by: Config | None = None  # its size follows from the speed of the engines and this; None: it has a size


@app.command()
def experiment(
    config: Annotated[Path | None, typer.Argument(metavar="[CONFIG]", help="Config file; see docs/lab.md")] = None,
    *,
    engine: Annotated[
        list[str] | None, typer.Option("--engine", "-e", "--backend", help="Engine to measure; repeatable")
    ] = None,
    preset: Annotated[str | None, typer.Option("--preset", help="Preset to start from; see `bay presets`")] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="Model (default: the configured one)")] = None,
    url: Annotated[str | None, typer.Option("--url", help="Measure the running server at this URL")] = None,
    admin_key_env: Annotated[
        str | None,
        typer.Option(
            "--admin-key-env",
            metavar="NAME",
            help="Environment variable that holds the admin key for --url; ENGINEBAY_ADMIN_KEY is only sent to this host",
        ),
    ] = None,
    profile: Annotated[
        str | None, typer.Option("--profile", help="Arrival profile, such as poisson:rate=4,requests=200")
    ] = None,
    cycles: Annotated[int | None, typer.Option("--cycles", min=1, help="Number of repetitions")] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="As many requests as this host answers soon; the default if nothing sets their number"
        ),
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume the last unfinished study, or the one named by --study")
    ] = False,
    study: Annotated[str | None, typer.Option("--study", help="Study to resume")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and run nothing")] = False,
    ignore_warnings: Annotated[
        bool,
        typer.Option(
            "--ignore-engine-warnings", "--ignore-backend-warnings", help="Measure even if an engine ignores a setting"
        ),
    ] = False,
    allow_mixed: Annotated[
        bool, typer.Option("--allow-mixed-engines", "--allow-mixed-backends", help="Also average across engines")
    ] = False,
    tokenizer: Annotated[
        str | None,
        typer.Option("--tokenizer", help="Stored model or path, for prompts of exact length (default: the model's)"),
    ] = None,
    runs: Annotated[Path | None, typer.Option("--runs", metavar="DIR", help="Directory with the runs")] = None,
    json: Annotated[bool, typer.Option("--json", help="Machine-readable output")] = False,
    set_: SetKeyOption = None,
    offline: OfflineOption = None,
    config_option: ConfigOption = None,
) -> None:
    """Benchmark engines, or a running server, under one workload."""
    config = pick_config_file(config, config_option)
    from enginebay.lab.store.run_folders import runs_dir

    if resume or not dry_run:
        require_lab()
    folder, flags = runs or runs_dir(), _build_flags(engine, model, profile, cycles, offline, set_)
    if resume:
        _refuse_changes({"CONFIG": config, "--url": url, "--preset": preset, "--tokenizer": tokenizer,
                         "--ignore-engine-warnings": ignore_warnings or None, "--quick": quick or None}, flags)  # fmt: skip
        _resume_study(folder, study, admin_key_env, allow_mixed, dry_run=dry_run, json=json)
        return
    _check_options(admin_key_env, url, study, quick)
    options = StudyOptions(config, preset, flags, url, model, tokenizer, ignore_warnings, quick)
    _run_new_study(folder, options, admin_key_env, allow_mixed, dry_run=dry_run, json=json)


def _check_options(admin_key_env: str | None, url: str | None, study: str | None, quick: bool) -> None:
    if admin_key_env is not None and not url:
        raise UsageError("--admin-key-env needs a running server", "add --url, or remove it")
    if url and quick:
        raise UsageError("--quick measures engines, not a running server", "remove --quick or --url")
    if study is not None:
        raise UsageError("--study needs --resume", "add --resume, or remove --study")


def _resume_study(
    folder: Path, study: str | None, admin_key_env: str | None, allow_mixed: bool, *, dry_run: bool, json: bool
) -> None:
    from enginebay.lab.study.study_point import point_from_dict

    plan = _load_resumed_study(folder, study)
    if dry_run:
        _show_remaining(folder, plan, json)
        return
    note(f"resuming {plan.id}")
    expected_s = quick_study.estimate_points([point_from_dict(data) for data in plan.points], folder)
    _carry_out(folder, plan, expected_s, admin_key_env, allow_mixed, json)


def _run_new_study(
    folder: Path, options: StudyOptions, admin_key_env: str | None, allow_mixed: bool, *, dry_run: bool, json: bool
) -> None:
    planned = _plan_study(options, dry_run)
    _show_preflight(planned)
    if dry_run:
        _show_plan(planned, folder, json)
        return
    from enginebay.lab.study.run_study import create_study

    points, expected_s = (
        (planned.points, quick_study.estimate_points(planned.points, folder))
        if planned.sized_by is None
        else _size_study(planned.points, planned.sized_by)
    )
    plan = create_study(folder, points, planned.cycles, planned.inputs)
    _carry_out(folder, plan, expected_s, admin_key_env, allow_mixed, json)


def _plan_study(options: StudyOptions, dry_run: bool) -> PlannedStudy:
    if options.url:
        points, dropped, cycles, inputs = plan_url_points(
            options.config, options.preset, options.flags, options.url, options.model, options.tokenizer
        )
        return PlannedStudy(points, cycles, inputs)
    from enginebay.config.loader import load_config

    loaded = load_config(options.config, preset=options.preset, flags=options.flags)
    quick = quick_study.is_quick(loaded, options.quick, from_file=options.config is not None)
    points, dropped, cycles, inputs = plan_engine_points(
        options.config, options.preset, options.flags, options.model, options.tokenizer, options.ignore_warnings,
        convert=not dry_run,
    )  # fmt: skip
    _show_dropped(dropped)
    return PlannedStudy(
        points, quick_study.count_quick_cycles(loaded) if quick else cycles, inputs, loaded if quick else None
    )


def _size_study(points: list[StudyPoint], config: Config) -> tuple[list[StudyPoint], list[float | None]]:
    from enginebay.cli.lab.study_progress import StudyProgress

    progress = StudyProgress()
    sized = quick_study.size_points(points, config, progress.show_phase)
    progress.clear()
    note(sized.summary)
    return sized.points, sized.expected_s


def _carry_out(
    folder: Path,
    plan: Study,
    expected_s: Sequence[float | None],
    admin_key_env: str | None,
    allow_mixed: bool,
    json: bool,
) -> None:
    from enginebay.lab.store.study_plan import lock_study

    with lock_study(folder, plan.id):  # before calibration, which would disturb a running study
        outcome = _run_study(folder, plan, expected_s, admin_key_env)
    _print_results(outcome, folder, allow_mixed, json)


def _build_flags(
    engine: list[str] | None, model: str | None, profile: str | None, cycles: int | None, offline: bool | None,
    set_: list[str] | None,
) -> dict[str, Any]:  # fmt: skip
    engines = engine or []
    return {
        "engine": engines[0] if len(engines) == 1 else None,
        "engines": engines if len(engines) > 1 else None,
        "model": model,
        "profile": profile,
        "num_cycles": cycles,
        "offline": offline,
        **parse_assignments(set_ or []),
    }


def _refuse_changes(options: Mapping[str, object], flags: Mapping[str, object]) -> None:
    """Reject options that would change the plan of a resumed study. Raises `UsageError`."""
    known = {"engine": "--engine", "engines": "--engine", "model": "--model", "profile": "--profile",
             "num_cycles": "--cycles", "offline": "--offline"}  # fmt: skip
    given = {**options, **{known.get(name, "--set"): value for name, value in flags.items() if value is not None}}
    named = [name for name, value in given.items() if value is not None]
    if named:
        raise UsageError(
            f"--resume keeps the plan of the study: {', '.join(named)} cannot change it",
            "remove that, or start a new study without --resume",
        )


def _load_resumed_study(folder: Path, study: str | None) -> Study:
    from enginebay.lab.study.run_study import find_study_to_resume

    plan, problems = find_study_to_resume(folder, study)
    for problem in problems:
        note(f"skipped: {problem.message}")
    return plan


def _show_remaining(folder: Path, plan: Study, json: bool) -> None:
    """Print the runs that --resume would do."""
    from enginebay.lab.store.study_plan import find_finished_runs, list_remaining

    remaining = list_remaining(plan, find_finished_runs(folder, plan.id)[0])
    if json:
        steps = [{"point": step.point, "cycle": step.cycle, "label": step.label} for step in remaining]
        emit_json({"study": plan.id, "runs": len(plan.steps), "remaining": steps})
        return
    print_table(("point", "cycle", "label"), [(step.point + 1, step.cycle, step.label) for step in remaining])
    note(f"{len(remaining)} of {len(plan.steps)} runs of {plan.id} remain; nothing was run")


def _run_study(
    folder: Path, plan: Study, expected_s: Sequence[float | None], admin_key_env: str | None
) -> StudyOutcome:
    from enginebay.cli.lab.study_progress import StudyProgress
    from enginebay.lab.loadgen.calibration import calibrate
    from enginebay.lab.study.run_point import StudyContext
    from enginebay.lab.study.run_study import run_study

    urls = [point.get("url") for point in plan.points]
    admin_headers = build_admin_headers(urls, admin_key_env, os.environ)
    progress = StudyProgress(plan.steps, quick_study.without_unknown(expected_s))
    try:
        progress.show_phase("calibrating the load generator")
        ceiling = calibrate()
        progress.clear()
        note(
            f"{plan.id}: {pluralize(len(plan.steps), 'run')} of {pluralize(len(plan.points), 'point')}{_announce(plan, expected_s)}"
        )
        note(
            f"this client can receive {ceiling.tokens_per_s:,.0f} streamed tokens/s and send {ceiling.requests_per_s:,.0f} "
            f"requests/s ({pluralize(ceiling.processes, 'process', 'processes')})"
        )
        context = StudyContext(
            runs_dir=folder, study_id=plan.id, ceiling=ceiling, config=plan.config, headers=build_inference_headers(urls, os.environ),
            admin_headers=admin_headers, on_status=progress.show_phase, on_progress=progress.show_live, load_tokenizer=read_tokenizer,
        )  # fmt: skip
        return run_study(context, plan, progress.begin_run, progress.end_run)
    except KeyboardInterrupt:
        progress.clear()
        note(f"{plan.id} was interrupted; resume with `bay experiment --resume`")
        raise


def _show_dropped(dropped: list[DroppedPoint]) -> None:
    for point in dropped:
        note(f"skipped {point.label}: {'; '.join(point.reasons)}")


def _announce(plan: Study, expected_s: Sequence[float | None]) -> str:
    """Return how long the study takes, if that is known of all its points."""
    times = [expected_s[step.point] for step in plan.steps]
    known = [seconds for seconds in times if seconds is not None]
    return f", {quick_study.format_about(sum(known))}" if known and len(known) == len(times) else ""


def _show_preflight(planned: PlannedStudy) -> None:
    from enginebay.lab.search.preflight import check_requests_are_sent, check_tokenizers, predict_study_reasons

    points, cycles = planned.points, planned.cycles
    missing = find_missing_packages()
    if missing:  # a dry run
        note(
            f"not checked without {', '.join(missing)}: whether each run sends a request; pip install 'enginebay[lab]'"
        )
    else:
        check_requests_are_sent(points, cycles)
    check_tokenizers([point for point in points if point.serve is not None or point.url is not None])
    for line in predict_study_reasons(points, cycles):
        note(line)


def _show_plan(planned: PlannedStudy, folder: Path, json: bool) -> None:
    points, cycles, quick = planned.points, planned.cycles, planned.sized_by is not None
    expected_s = [None] * len(points) if quick else quick_study.estimate_points(points, folder)
    if json:
        emit_json({"cycles": cycles, "points": [point.to_dict() for point in points], "quick": quick,
                   "expected_run_s": expected_s})  # fmt: skip
        return
    rows = [
        (number, point.label, point.model, _describe_workload(point, quick)) for number, point in enumerate(points, 1)
    ]
    print_table(("point", "label", "model", "workload"), rows)
    whole = (
        f"{pluralize(len(points), 'point')} in {pluralize(cycles, 'cycle')}: {pluralize(len(points) * cycles, 'run')}"
    )
    note(f"{whole}; nothing was run")
    note(
        quick_study.describe_quick_duration(len(points), cycles)
        if quick
        else quick_study.describe_duration(points, expected_s, cycles)
    )


def _describe_workload(point: StudyPoint, quick: bool) -> str:
    from enginebay.lab.study.study_point import count_requests, plan_run

    plan = plan_run(point)
    lengths = {name: point.workload[name] for name in ("input_tokens", "output_tokens") if name in point.workload}
    tokens = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in lengths.items())
    count = count_requests(plan)
    requests = "all requests" if count is None else f"{'up to ' if quick else ''}{pluralize(count, 'request')}"
    return f"{point.workload['kind']}: {requests}{f', {tokens}' if tokens else ''}"


def _print_results(outcome: StudyOutcome, folder: Path, allow_mixed: bool, json: bool) -> None:
    from enginebay.cli.lab.results import show_study_results

    show_study_results(outcome.study_id, outcome.runs, allow_mixed, json)
    if outcome.runs and not json:
        note(f"runs are in {folder}; `bay report {outcome.study_id} -o report.html` writes a page")
    if outcome.failed:
        raise EnginebayError(f"{pluralize(len(outcome.failed), 'point')} failed", "see the messages above")
    if outcome.runs and all(run.measures.get("answered") == 0 for run in outcome.runs):
        raise EnginebayError(
            "no request of the study was answered", f"see the messages above, or `bay results show {outcome.study_id}`"
        )
